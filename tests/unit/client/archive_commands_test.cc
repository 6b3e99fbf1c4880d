// Tests of `study archive` and `study restore`.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "tests/unit/client/client_fixture.h"

static int folder_sync_error = 0;  // if set, fsync of a folder fails with it

// Replaces the function of the C library in this program.
extern "C" int fsync(int fd) {
  struct stat found {};
  if (folder_sync_error == 0 || fstat(fd, &found) != 0 || !S_ISDIR(found.st_mode))
    return static_cast<int>(syscall(SYS_fsync, fd));
  errno = folder_sync_error;
  return -1;
}

namespace scalelab::client {
namespace {

using scalelab::v1::Study;
using ::testing::HasSubstr;

class ArchiveCommands : public ClientTest {
 protected:
  void SetUp() override {
    Start();
    server_.studies = {MakeStudy(8, "b", Study::SUCCEEDED, 0, 0, 9)};
    file_ = dir_ + "/b.archive";
  }
  static std::string Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string file_;
};

TEST_F(ArchiveCommands, AnArchiveIsWrittenToItsFile) {
  server_.archive = {"one ", std::string("t\0wo", 4)};
  const Outcome outcome = Run({"study", "archive", "8", file_});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_EQ(Content(file_), std::string("one t\0wo", 8));
  EXPECT_THAT(outcome.err, HasSubstr("archived studies/8 in " + file_));
}

TEST_F(ArchiveCommands, AFileThatExistsIsNotOverwritten) {
  WriteFile("b.archive", "precious");
  server_.archive = {"one"};
  const Outcome outcome = Run({"study", "archive", "8", file_});
  EXPECT_THAT(outcome, Exits(ExitCode::kFailure));
  EXPECT_THAT(outcome.err, HasSubstr("exists; remove it, or name another file"));
  EXPECT_EQ(Content(file_), "precious");
}

TEST_F(ArchiveCommands, AnErrorLeavesNoFile) {
  server_.archive = {"the first half"};
  server_.error = MakeError(absl::StatusCode::kUnavailable, "TRY_AGAIN", "retention is removing its points");
  const Outcome outcome = Run({"study", "archive", "8", file_});
  EXPECT_THAT(outcome.err, HasSubstr("retention is removing its points"));
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_FALSE(std::filesystem::exists(file_ + ".part"));
  EXPECT_THAT(Run({"study", "archive", "8", "/nowhere/b"}).err, HasSubstr("cannot create /nowhere/b.part"));
}

TEST_F(ArchiveCommands, AFileWhoseFolderCannotBeSyncedIsRemoved) {
  server_.archive = {"one"};
  folder_sync_error = EIO;
  const Outcome outcome = Run({"study", "archive", "8", file_});
  folder_sync_error = 0;
  EXPECT_THAT(outcome, Exits(ExitCode::kFailure));
  EXPECT_THAT(outcome.err,
              HasSubstr(absl::StrCat("cannot sync the folder of ", file_, ", so the file was removed: ")));
  EXPECT_FALSE(std::filesystem::exists(file_));
  EXPECT_FALSE(std::filesystem::exists(file_ + ".part"));
}

TEST_F(ArchiveCommands, AFilesystemThatCannotSyncFoldersCanHaveArchives) {
  server_.archive = {"one"};
  folder_sync_error = EINVAL;
  const Outcome outcome = Run({"study", "archive", "8", file_});
  folder_sync_error = 0;
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_EQ(Content(file_), "one");
}

TEST_F(ArchiveCommands, ARestoreSendsTheWholeFileAndPrintsTheStudy) {
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += static_cast<char>(i * 7);
  WriteFile("b.archive", bytes);
  const Outcome outcome = Run({"study", "restore", file_});
  EXPECT_THAT(outcome, Exits(ExitCode::kOk));
  EXPECT_EQ(outcome.out, "studies/8\n");
  EXPECT_THAT(outcome.err, HasSubstr("restored b of ada as studies/8"));
  EXPECT_EQ(server_.restored, bytes);
}

TEST_F(ArchiveCommands, TheErrorOfARestoreIsThatOfTheServer) {
  WriteFile("b.archive", "x");
  server_.error = MakeError(absl::StatusCode::kDataLoss, "", "the archive is damaged");
  EXPECT_THAT(Run({"study", "restore", file_}).err, HasSubstr("the archive is damaged"));
  EXPECT_THAT(Run({"study", "restore", "/nowhere"}).err, HasSubstr("cannot read /nowhere"));
}

TEST_F(ArchiveCommands, AFileThatCannotBeReadIsNoUnreachableServer) {
  const Outcome folder = Run({"study", "restore", dir_});
  EXPECT_THAT(folder, Exits(ExitCode::kFailure));
  EXPECT_THAT(folder.err, HasSubstr(absl::StrCat("cannot read ", dir_)));
}

}  // namespace
}  // namespace scalelab::client
