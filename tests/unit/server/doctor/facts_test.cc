#include "server/doctor/facts.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/unit/server/doctor/findings.h"

namespace scalelab::server::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class FactsTest : public testing::Test {
 protected:
  FactsTest() {
    std::string directory = testing::TempDir() + "facts-XXXXXX";
    root_ = mkdtemp(directory.data());
  }
  ~FactsTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
};

TEST_F(FactsTest, ADirectoryIsReadWithoutLeavingAFile) {
  const DirectoryFacts facts = ReadDirectory(root_);
  EXPECT_EQ(facts.existing, root_);
  EXPECT_TRUE(facts.is_directory);
  EXPECT_EQ(facts.owner, geteuid());
  EXPECT_EQ(facts.mode, 0700u);
  EXPECT_EQ(facts.write_error, "");
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_LT(absl::AbsDuration(facts.clock_offset), absl::Seconds(1));
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(FactsTest, TheClosestParentStandsForADirectoryThatDoesNotExist) {
  EXPECT_EQ(ReadDirectory(root_ + "/a/b").existing, root_);
  std::ofstream(root_ + "/file") << "x";
  EXPECT_FALSE(ReadDirectory(root_ + "/file").is_directory);
}

TEST_F(FactsTest, SecretsAreFoundByTheirNames) {
  for (const char* name : {"server.key", "client.token", "tls.pem", "scalelab.db"}) {
    std::ofstream(root_ + "/" + name) << "x";
    chmod((root_ + "/" + name).c_str(), 0640);
  }
  const std::vector<FileFacts> secrets = ReadSecrets(root_);
  ASSERT_EQ(secrets.size(), 3u);
  EXPECT_EQ(secrets[0].path, root_ + "/client.token");
  EXPECT_EQ(secrets[0].mode, 0640u);
  EXPECT_EQ(secrets[2].path, root_ + "/tls.pem") << "it contains a private key";
  EXPECT_THAT(ReadSecrets(root_ + "/none"), IsEmpty());
}

TEST_F(FactsTest, AServerIsFoundByItsLock) {
  EXPECT_EQ(RunningServer(root_), 0);
  const std::string lock = root_ + "/scalelabd.lock";
  std::ofstream(lock) << "1234\n";
  EXPECT_EQ(RunningServer(root_), 0) << "left over from a server that has ended";
  const int fd = open(lock.c_str(), O_RDWR);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  EXPECT_EQ(RunningServer(root_), 1234);
  close(fd);
}

TEST_F(FactsTest, AnAddressIsFreeOrInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  EXPECT_TRUE(ReadAddress(address).in_use);
  close(fd);
  EXPECT_FALSE(ReadAddress(address).in_use);
  EXPECT_EQ(ReadAddress(address).error, "");
}

TEST_F(FactsTest, AnAddressOfAnotherMachineCannotBeServed) {
  // 192.0.2.0/24 is reserved for documentation.
  EXPECT_THAT(ReadAddress("192.0.2.1:7600").error, HasSubstr("not an address of this machine"));
  EXPECT_THAT(ReadAddress("host.invalid:7600").error, HasSubstr("does not resolve"));
}

TEST_F(FactsTest, ASocketIsInUseWhileAServerListens) {
  const std::string path = root_ + "/s.sock";
  EXPECT_FALSE(ReadAddress("unix:" + path).in_use);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, sizeof name.sun_path - 1);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_TRUE(ReadAddress("unix:" + path).in_use);
  close(fd);
  EXPECT_FALSE(ReadAddress("unix:" + path).in_use) << "the file that a server left";
  EXPECT_THAT(ReadAddress("unix:" + root_ + "/none/s.sock").error, HasSubstr("No such file"));
}

TEST_F(FactsTest, TheDirectoryOfASocketThatOthersMayNotEnterIsFound) {
  std::filesystem::create_directories(root_ + "/a/b");
  const std::string root = std::filesystem::canonical(root_), address = "unix:" + root_ + "/a/b/s.sock";
  const auto modes = [&](mode_t upper, mode_t lower) {
    chmod(root_.c_str(), upper);
    chmod((root_ + "/a/b").c_str(), lower);
    return ReadAddress(address);
  };
  EXPECT_EQ(modes(0755, 0755).closed_to_others, "");
  EXPECT_EQ(modes(0755, 0755).closed_to_group, "");
  EXPECT_EQ(modes(0700, 0755).closed_to_others, root) << "a directory above that of the socket";
  EXPECT_EQ(modes(0700, 0700).closed_to_others, root + "/a/b");
  EXPECT_EQ(modes(0711, 0711).closed_to_others, "") << "nobody needs to list the directory";
  ASSERT_EQ(chown(root_.c_str(), static_cast<uid_t>(-1), getegid()), 0);
  EXPECT_EQ(modes(0710, 0755).closed_to_group, "");
  EXPECT_EQ(modes(0710, 0755).closed_to_others, root);
  EXPECT_EQ(modes(0701, 0755).closed_to_group, root);
  std::filesystem::create_directory_symlink(root_ + "/a/b", root_ + "/link");
  modes(0755, 0700);
  EXPECT_EQ(ReadAddress("unix:" + root_ + "/link/s.sock").closed_to_others, root + "/a/b");
}

TEST_F(FactsTest, AProgramIsExecutableOrTheReasonIsKnown) {
  const std::string path = root_ + "/post";
  EXPECT_THAT(ReadProgram("sendmail", path).error, HasSubstr("No such file"));
  std::ofstream(path) << "#!/bin/sh\n";
  chmod(path.c_str(), 0644);
  EXPECT_THAT(ReadProgram("sendmail", path).error, HasSubstr("Permission denied"));
  chmod(path.c_str(), 0755);
  const ProgramFacts facts = ReadProgram("notify_commands: chat", path);
  EXPECT_EQ(facts.error, "");
  EXPECT_EQ(facts.privileged, "");
  EXPECT_EQ(facts.setting, "notify_commands: chat");
  EXPECT_EQ(ReadProgram("sendmail", root_).error, "not a file");
}

TEST_F(FactsTest, AProgramThatNeedsASetuidOrSetgidBitIsKnown) {
  const std::string root = std::filesystem::canonical(root_);
  const auto write = [&](const std::string& name, mode_t mode) {
    const std::string path = root + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    chmod(path.c_str(), mode);
    return path;
  };
  const std::string exim = write("exim4", 04755);
  std::filesystem::create_symlink(exim, root + "/mailer");
  EXPECT_EQ(ReadProgram("sendmail", root + "/mailer").privileged, exim) << "Exim: a link to a setuid program";
  EXPECT_EQ(ReadProgram("sendmail", write("dma", 02755)).privileged, root + "/dma");
  const std::string postfix = write("sendmail", 0755);
  EXPECT_EQ(ReadProgram("sendmail", postfix).privileged, "");
  EXPECT_EQ(ReadProgram("sendmail", write("msmtp", 0755)).privileged, "");
  const std::string postdrop = write("postdrop", 02555);
  EXPECT_EQ(ReadProgram("sendmail", postfix).privileged, postdrop) << "Postfix: sendmail starts postdrop";
  EXPECT_EQ(ReadProgram("sendmail", root + "/msmtp").privileged, "") << "it does not start postdrop";
}

TEST_F(FactsTest, AProcessWithoutNewPrivilegesIsFound) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)!write(pipes[1], "x", 1);
    pause();
    _exit(0);
  }
  char set = 0;
  ASSERT_EQ(read(pipes[0], &set, 1), 1);
  EXPECT_EQ(HasNoNewPrivileges(child), true);
  EXPECT_EQ(HasNoNewPrivileges(getpid()), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(HasNoNewPrivileges(child), std::nullopt) << "the process has ended";
  close(pipes[0]);
  close(pipes[1]);
}

TEST_F(FactsTest, ANameResolvesToThisMachineOnlyOrToOthers) {
  EXPECT_TRUE(Resolve("127.0.0.1").loopback);
  EXPECT_TRUE(Resolve("[::1]").loopback);
  EXPECT_FALSE(Resolve("192.0.2.1").loopback);
  EXPECT_THAT(Resolve("host.invalid").error, HasSubstr("does not resolve"));
}

TEST_F(FactsTest, TheMachineIsReadWithoutErrors) {
  EXPECT_TRUE(ReadClock().known);
  EXPECT_GT(ReadLimits().files, 0u);
  EXPECT_GT(ReadLimits().processes, 0u);
}

}  // namespace
}  // namespace scalelab::server::doctor
