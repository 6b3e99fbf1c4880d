// `scalelab study archive STUDY FILE`: writes the archive of a final study to a file.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "client/commands/archive/archive.h"
#include "client/commands/archive/transfer.h"
#include "client/output/text.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

struct StudyArchiveOptions {
  std::string study, file;
};

// A temporary file that is renamed to its final name when it is complete.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), part_(path_ + ".part") {}
  ~NewFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(part_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  absl::Status Open() {
    if (access(path_.c_str(), F_OK) == 0)
      return absl::AlreadyExistsError(absl::StrCat(path_, " exists; remove it, or name another file"));
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return fd_ < 0 ? Failed("create") : absl::OkStatus();
  }
  absl::Status Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Failed("write");
      bytes.remove_prefix(static_cast<size_t>(written));
      size_ += written;
    }
    return absl::OkStatus();
  }
  // Syncs the file, renames it to its final name and syncs the folder. After an error the file has neither
  // name: users delete a study that they have archived, so a file whose name a power failure may remove is
  // not an archive.
  absl::Status Keep() {
    if (fsync(fd_) != 0 || rename(part_.c_str(), path_.c_str()) != 0) return Failed("write");
    close(fd_);
    fd_ = -1;
    const std::string folder = std::filesystem::path(path_).parent_path();
    const int directory = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // EINVAL: the filesystem cannot sync folders.
    const bool synced = directory >= 0 && (fsync(directory) == 0 || errno == EINVAL);
    const int error = errno;
    if (directory >= 0) close(directory);
    if (synced) return absl::OkStatus();
    unlink(path_.c_str());
    return absl::FailedPreconditionError(absl::StrCat("cannot sync the folder of ", path_,
                                                      ", so the file was removed: ", std::strerror(error)));
  }
  int64_t size() const { return size_; }

 private:
  absl::Status Failed(const char* what) const {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot ", what, " ", part_, ": ", std::strerror(errno)));
  }

  const std::string path_, part_;
  int fd_ = -1;
  int64_t size_ = 0;
};

absl::StatusOr<ExitCode> ExecuteStudyArchive(const StudyArchiveOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  NewFile file(options.file);
  if (const absl::Status status = file.Open(); !status.ok()) return status;
  scalelab::v1::ReadArchiveRequest request;
  request.set_name(*name);
  const absl::Status read =
      DownloadArchive(session, request, [&file](absl::string_view piece) { return file.Write(piece); });
  if (!read.ok()) return read;
  if (const absl::Status kept = file.Keep(); !kept.ok()) return kept;
  session.Say(absl::StrCat("archived ", *name, " in ", options.file, ", ",
                           Bytes(static_cast<double>(file.size())),
                           "; it stays on the server until you delete it"));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyArchive(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyArchiveOptions>();
  CLI::App* command = study.add_subcommand(
      "archive", "Write a finished study with its runs, results and points to one compressed file");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->add_option("FILE", options->file, "The file to write; it must not exist")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyArchive(*options, session); };
  });
}

}  // namespace scalelab::client
