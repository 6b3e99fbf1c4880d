// The contract of every Printer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/output/printer.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListStudiesResponse;
using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Format {
  const char* name;
  OutputFormat format;
  bool tty;
  // Gives the case a stable name for ctest. By default, the name contains the object's bytes, which differ
  // in each run.
  friend void PrintTo(const Format& value, std::ostream* out) { *out << value.name; }
};

class PrinterContract : public ::testing::TestWithParam<Format> {
 protected:
  std::unique_ptr<Printer> Make(std::ostream& out) const {
    return MakePrinter(GetParam().format, out, Terminal{GetParam().tty, false, true, 40, 24});
  }
  // Returns an answer with a study per name, and a table of the names.
  Answer AnswerOf(const std::vector<std::string>& names) {
    list_.Clear();
    for (const std::string& name : names) list_.add_studies()->set_display_name(name);
    Section section;
    section.columns = {{"number", Column::In::kAll, true}, {"name", Column::In::kAll, false, true}};
    section.empty = "none";
    section.rows = [names](const RowSink& sink) {
      for (size_t i = 0; i < names.size(); ++i) sink({std::to_string(i), Cell(names[i], Tone::kBad)});
    };
    return {list_, {section}};
  }
  std::string Print(const std::vector<std::string>& names) {
    std::ostringstream out;
    EXPECT_TRUE(Make(out)->Print(AnswerOf(names)).ok());
    return out.str();
  }
  ListStudiesResponse list_;
};

TEST_P(PrinterContract, ShowsEveryRowAndEndsInALineBreak) {
  const std::string text = Print({"alpha", "beta", "gamma"});
  for (const char* name : {"alpha", "beta", "gamma"}) EXPECT_THAT(text, HasSubstr(name));
  EXPECT_THAT(text, EndsWith("\n"));
}

TEST_P(PrinterContract, AnEmptyAnswerIsStillAnAnswer) { EXPECT_THAT(Print({}), EndsWith("\n")); }

TEST_P(PrinterContract, RowsAreOneLineEachInTablesWhateverTheyContain) {
  const std::string text = Print({"two\nlines"});
  if (GetParam().format == OutputFormat::kTable || GetParam().format == OutputFormat::kWide) {
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);  // header and row
  } else {
    EXPECT_THAT(text, HasSubstr("two"));
  }
}

TEST_P(PrinterContract, EscapeSequencesReachNoTerminal) {
  const bool exact = GetParam().format == OutputFormat::kCsv;  // CSV is for programs: values are unchanged
  EXPECT_EQ(Print({"red\033[31m"}).find('\033') != std::string::npos, exact);
}

TEST_P(PrinterContract, MachineFormatsAreExact) {
  const std::string hard = "a,\"b\"\nc; größer";
  const std::string text = Print({hard});
  if (GetParam().format == OutputFormat::kJson) {
    EXPECT_EQ(nlohmann::json::parse(text)["studies"][0]["display_name"], hard);
  } else if (GetParam().format == OutputFormat::kCsv) {
    EXPECT_EQ(text, "number,name\n0,\"a,\"\"b\"\"\nc; größer\"\n");
  } else {
    EXPECT_THAT(text, HasSubstr("größer"));
  }
}

TEST_P(PrinterContract, PrintsOneAnswerAfterAnother) {
  std::ostringstream out;
  const auto printer = Make(out);
  ASSERT_TRUE(printer->Print(AnswerOf({"alpha"})).ok());
  const std::string once = out.str();
  ASSERT_TRUE(printer->Print(AnswerOf({"alpha"})).ok());
  EXPECT_EQ(out.str(), once + once);
}

TEST_P(PrinterContract, AStreamThatTakesNothingIsAnError) {
  std::ofstream full("/dev/full");
  EXPECT_FALSE(Make(full)->Print(AnswerOf({"alpha"})).ok());
}

INSTANTIATE_TEST_SUITE_P(All, PrinterContract,
                         ::testing::Values(Format{"Table", OutputFormat::kTable, false},
                                           Format{"TableOnTerminal", OutputFormat::kTable, true},
                                           Format{"Wide", OutputFormat::kWide, false},
                                           Format{"Json", OutputFormat::kJson, false},
                                           Format{"JsonOnTerminal", OutputFormat::kJson, true},
                                           Format{"Csv", OutputFormat::kCsv, false}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace scalelab::client
