// `scalelab study restore FILE`: stores the study of an archive on the server.
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/commands/archive/archive.h"
#include "client/commands/archive/transfer.h"

namespace scalelab::client {
namespace {

constexpr size_t kPiece = 256 << 10;

struct StudyRestoreOptions {
  std::string file;
};

absl::StatusOr<ExitCode> ExecuteStudyRestore(const StudyRestoreOptions& options, Session& session) {
  std::ifstream file(options.file, std::ios::binary);
  if (!file)
    return absl::NotFoundError(absl::StrCat("cannot read ", options.file, ": ", std::strerror(errno)));
  const auto response = UploadArchive(session, std::nullopt, [&](std::string* piece) -> absl::StatusOr<bool> {
    piece->resize(kPiece);
    file.read(piece->data(), kPiece);
    piece->resize(static_cast<size_t>(file.gcount()));
    if (!file && !file.eof())
      return absl::UnknownError(absl::StrCat("cannot read ", options.file, ": ", std::strerror(errno)));
    return !piece->empty();
  });
  if (!response.ok()) return response.status();

  const auto& study = response->study();
  if (const absl::Status printed = PrintStored(session, *response); !printed.ok()) return printed;
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
