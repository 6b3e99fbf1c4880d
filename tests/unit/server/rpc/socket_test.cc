#include "server/rpc/socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ParseAddress, ReadsUnixAndTcp) {
  EXPECT_EQ(ParseAddress("unix:/run/a.sock")->unix_path, "/run/a.sock");
  EXPECT_EQ(ParseAddress("unix:///run/a.sock")->text(), "unix:/run/a.sock");
  EXPECT_EQ(ParseAddress("unix:a.sock")->unix_path, std::filesystem::current_path().string() + "/a.sock");
  EXPECT_EQ(ParseAddress("login1:50051")->host, "login1");
  EXPECT_EQ(ParseAddress("login1:50051")->port, 50051);
  EXPECT_EQ(ParseAddress("[::1]:0")->text(), "[::1]:0");
}

TEST(ParseAddress, SaysWhatIsWrong) {
  for (const char* text :
       {"", "login1", ":50051", "login1:", "login1:http", "login1:65536", "::1:50051", "/run/a.sock"}) {
    const absl::Status status = ParseAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr("HOST:PORT")) << text;
  }
  EXPECT_THAT(ParseAddress("unix:").status().message(), HasSubstr("needs a path"));
}

TEST(ParseAddress, TakesAUnixPathOf107BytesAndNoMore) {
  EXPECT_TRUE(ParseAddress("unix:/" + std::string(106, 'a')).ok());
  const absl::Status status = ParseAddress("unix:/" + std::string(107, 'a')).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("108 bytes"), HasSubstr("takes 107"), HasSubstr("shorter")));
}

class StaleSocket : public testing::Test {
 protected:
  StaleSocket() {
    std::string directory = testing::TempDir() + "stale-XXXXXX";
    path_ = std::string(mkdtemp(directory.data())) + "/s";
  }
  ~StaleSocket() override { std::filesystem::remove_all(std::filesystem::path(path_).parent_path()); }
  // A socket that listens at path_.
  int Listen() {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path_.c_str());
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd, 1), 0);
    return fd;
  }
  std::string path_;
};

TEST_F(StaleSocket, IsRemoved) {
  close(Listen());
  ASSERT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(RemoveStaleSocket(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(RemoveStaleSocket(path_).ok());
}

TEST_F(StaleSocket, StaysWhenAProgramAnswersOnIt) {
  const int fd = Listen();
  const absl::Status status = RemoveStaleSocket(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("another program listens"), HasSubstr(path_)));
  EXPECT_TRUE(std::filesystem::exists(path_));
  close(fd);
}

TEST_F(StaleSocket, AFileInItsPlaceIsNotTouched) {
  std::ofstream(path_) << "precious";
  const absl::Status status = RemoveStaleSocket(path_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no socket"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace scalelab::server
