// `scalelab study restore FILE`: stores the study of an archive on the server.
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/commands/archive/archive.h"
#include "scalelab/v1/archive.grpc.pb.h"

namespace scalelab::client {
namespace {

using scalelab::v1::RestoreArchiveRequest;
using scalelab::v1::RestoreArchiveResponse;

constexpr size_t kPiece = 256 << 10;

struct StudyRestoreOptions {
  std::string file;
};

absl::StatusOr<ExitCode> ExecuteStudyRestore(const StudyRestoreOptions& options, Session& session) {
  std::ifstream file(options.file, std::ios::binary);
  if (!file)
    return absl::NotFoundError(absl::StrCat("cannot read ", options.file, ": ", std::strerror(errno)));
  auto server = session.Server();
  if (!server.ok()) return server.status();

  // No default timeout, because an archive can be large; --timeout limits the whole transfer.
  const auto context =
      (*server)->MakeContext(absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration()));
  RestoreArchiveResponse response;
  const auto writer = (*server)->archives().RestoreArchive(context.get(), &response);
  RestoreArchiveRequest request;
  for (bool open = true; open && file;) {
    request.mutable_data()->resize(kPiece);
    file.read(request.mutable_data()->data(), kPiece);
    request.mutable_data()->resize(static_cast<size_t>(file.gcount()));
    open = writer->Write(request);  // false if the server has refused the call: Finish returns the reason
  }
  const bool read = file.eof();
  if (!read) context->TryCancel();
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok() && (read || file)) return (*server)->Explain(status);
  if (!read) return absl::UnavailableError(absl::StrCat("cannot read ", options.file));

  const auto& study = response.study();
  Section name;
  name.columns = {{"name"}};
  name.header = false;
  name.rows = [&study](const RowSink& sink) { sink({study.name()}); };
  if (const absl::Status printed = session.Print({response, {std::move(name)}}); !printed.ok())
    return printed;
  session.Say(absl::StrCat("restored ", study.display_name(), " of ", study.owner(), " as ", study.name()));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyRestore(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyRestoreOptions>();
  CLI::App* command =
      study.add_subcommand("restore", "Store the study of an archive under a new number, and print its name");
  command->add_option("FILE", options->file, "A file that `study archive` has written")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyRestore(*options, session); };
  });
}

}  // namespace scalelab::client
