// `scalelab data verify DATASET --data-dir DIR`: checks every file of a data set. Needs no server.
#include "absl/strings/str_cat.h"
#include "catalog/images/verify.h"
#include "client/commands/commands.h"
#include "client/session/exit_code.h"
#include "google/protobuf/struct.pb.h"
#include "proto/utf8.h"

namespace scalelab::client {
namespace {

struct DataVerifyOptions {
  std::string dataset, data_dir;
};

google::protobuf::Struct Message(const DataVerifyOptions& options, const Verification& result) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["dataset"].set_string_value(options.dataset);
  fields["files"].set_number_value(static_cast<double>(result.files));
  fields["images"].set_number_value(static_cast<double>(result.images));
  auto& bad = *fields["bad"].mutable_list_value();
  for (const BadFile& file : result.bad) {
    auto& entry = *bad.add_values()->mutable_struct_value()->mutable_fields();
    entry["file"].set_string_value(ValidUtf8(file.path));
    entry["problem"].set_string_value(file.problem);
  }
  return message;
}

Section BadFiles(const Verification& result) {
  Section section;
  section.columns = {{"file"}, {"problem", Column::In::kAll, false, true, 0, true}};
  section.empty = "no bad files";
  section.rows = [&result](const RowSink& sink) {
    for (const BadFile& file : result.bad) sink({file.path, Cell(file.problem, Tone::kBad)});
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteDataVerify(const DataVerifyOptions& options, Session& session) {
  const bool show = session.io().err_terminal.tty && !session.options().quiet;
  const auto result = VerifyDataset(options.dataset, options.data_dir, [&](int64_t done, int64_t all) {
    if (show) session.io().err << absl::StrCat("\r", done, " of ", all, " files") << std::flush;
  });
  if (show) session.io().err << "\r\x1b[K";
  if (!result.ok()) return result.status();
  const google::protobuf::Struct message = Message(options, *result);
  if (const absl::Status status = session.Print({message, {BadFiles(*result)}}); !status.ok()) return status;
  session.Say(absl::StrCat(options.dataset, " in ", options.data_dir, ": ", result->images, " images in ",
                           result->files, " files, ", result->bad.size(), " of them bad"));
  return result->bad.empty() ? ExitCode::kOk : ExitCode::kFailure;
}

}  // namespace

void AddDataVerify(CLI::App& data, Action& chosen) {
  auto options = std::make_shared<DataVerifyOptions>();
  CLI::App* command =
      data.add_subcommand("verify", "Check every file of a data set and list the bad ones; needs no server");
  command->add_option("DATASET", options->dataset, "cifar10 or imagefolder")
      ->required()
      ->check(CLI::IsMember({"cifar10", "imagefolder"}));
  command->add_option("--data-dir", options->data_dir, "Directory of the data set")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteDataVerify(*options, session); };
  });
}

}  // namespace scalelab::client
