#include "manual/roff.h"

#include "CLI/CLI.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::manual {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(Roff, NoCharacterOfATextIsAMacroOrAnEscape) {
  EXPECT_EQ(Escape("a-b \\n"), "a\\-b \\en");
  EXPECT_EQ(Escape(".SH"), "\\&.SH");
  EXPECT_EQ(Escape("first\n.second\n'third"), "first\n\\&.second\n\\&'third");
}

TEST(Roff, AnOptionHasItsNamesItsValueAndItsDescription) {
  CLI::App app("", "program");
  app.set_help_flag();
  std::string value;
  int number = 0;
  bool flag = false;
  app.add_option("FILE", value, "What to read")->required();
  app.add_option("-c,--config", value, "Path")->option_text("PATH");
  app.add_option("--number", number, "A number")->check(CLI::PositiveNumber);
  app.add_flag("--flag", flag, "A switch");
  EXPECT_EQ(Options(app),
            ".TP\n.B FILE\nWhat to read\n"
            ".TP\n.B \\-c, \\-\\-config PATH\nPath\n"
            ".TP\n.B \\-\\-number INT\nA number\n"
            ".TP\n.B \\-\\-flag\nA switch\n");
}

TEST(Roff, EachCommandThatDoesSomethingIsASubsection) {
  CLI::App app("", "program");
  app.footer("Of the program");
  std::string file;
  bool flag = false;
  CLI::App* study = app.add_subcommand("study", "Everything about studies")->require_subcommand(1);
  CLI::App* submit = study->add_subcommand("submit", "Submit a study");
  submit->add_option("FILE", file, "The study")->required();
  submit->add_flag("--dry-run", flag, "Change nothing");
  const std::string page = Commands(app);
  EXPECT_THAT(page, AllOf(HasSubstr(".SS program study submit [OPTIONS] FILE\nSubmit a study\n"),
                          HasSubstr(".B \\-\\-dry\\-run\nChange nothing\n")));
  EXPECT_THAT(page, Not(HasSubstr("Everything")));
  EXPECT_THAT(page, Not(HasSubstr("Of the program"))) << "every command inherits it";
  EXPECT_THAT(page, Not(HasSubstr("\\-\\-help")))
      << "every command has it; the list of global options shows it once";
}

TEST(Roff, OnlyAWholeLineIsReplaced) {
  EXPECT_EQ(ReplaceLine("a\n@KEYS@\nb @KEYS@\n", "@KEYS@", "one\ntwo\n"), "a\none\ntwo\nb @KEYS@\n");
}

}  // namespace
}  // namespace scalelab::manual
