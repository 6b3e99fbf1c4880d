// `scalelab verify FILE`: checks a bundle without a server.
#include "absl/strings/str_cat.h"
#include "client/bundle/bundle_figures.h"
#include "client/bundle/bundle_file.h"
#include "client/commands/bundle/bundle.h"
#include "google/protobuf/struct.pb.h"

namespace scalelab::client {
namespace {

google::protobuf::Struct VerdictMessage(const BundleReader& bundle, const FigureCheck& check) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["sha256"].set_string_value(bundle.sha256());
  fields["files"].set_number_value(static_cast<double>(bundle.entries().size()));
  fields["figures"].set_number_value(static_cast<double>(check.figures));
  fields["runs"].set_number_value(static_cast<double>(check.runs));
  fields["points"].set_number_value(static_cast<double>(check.points));
  fields["equal"].set_bool_value(check.differences.empty());
  auto& differences = *fields["differences"].mutable_list_value();
  for (const std::string& difference : check.differences)
    differences.add_values()->set_string_value(difference);
  auto& not_compared = *fields["not_compared"].mutable_list_value();
  for (const std::string& figure : check.not_compared) not_compared.add_values()->set_string_value(figure);
  return message;
}

absl::StatusOr<ExitCode> ExecuteVerify(const std::string& file, Session& session) {
  auto bundle = BundleReader::Open(file);
  if (!bundle.ok()) return bundle.status();
  const auto check = CheckFigures(*bundle);
  if (!check.ok()) return check.status();
  Section facts;
  facts.columns = {{"check"}, {"result"}};
  facts.header = false;
  facts.rows = [&](const RowSink& sink) {
    sink({"file", absl::StrCat(file, ", SHA-256 ", bundle->sha256())});
    sink({"files",
          Cell(absl::StrCat(bundle->entries().size(), ", every byte as it was written"), Tone::kGood)});
    const bool equal = check->differences.empty();
    sink({"figures", Cell(absl::StrCat(check->figures, " computed again from the raw data, ",
                                       equal ? "all equal" : "with differences"),
                          equal ? Tone::kGood : Tone::kBad)});
    sink({"rows",
          absl::StrCat(check->runs, " runs and ", check->points, " points made again from the raw data")});
    for (const std::string& difference : check->differences)
      sink({"difference", Cell(difference, Tone::kBad)});
    for (const std::string& figure : check->not_compared) sink({"not compared", figure});
  };
  if (const absl::Status status = session.Print({VerdictMessage(*bundle, *check), {std::move(facts)}});
      !status.ok())
    return status;
  return check->differences.empty() ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

void AddVerify(CLI::App& app, Action& chosen) {
  auto file = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "verify", "Check a bundle without a server: every byte, and every figure from the raw data");
  command->add_option("FILE", *file, "A file that `study bundle` has written")->required();
  command->callback([file, &chosen] { chosen = [file](Session& s) { return ExecuteVerify(*file, s); }; });
}

}  // namespace scalelab::client
