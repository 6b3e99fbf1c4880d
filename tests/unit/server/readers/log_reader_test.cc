#include "server/readers/log_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using Request = v1::ReadRunLogRequest;

class LogReaderTest : public testing::Test {
 protected:
  LogReaderTest() {
    std::string pattern = "/tmp/scalelab-log-XXXXXX";
    root_ = mkdtemp(pattern.data());
    directory_ = root_ + "/attempt";
    std::filesystem::create_directory(directory_);
    Write(root_ + "/server.key", "secret");
  }
  ~LogReaderTest() override { std::filesystem::remove_all(root_); }

  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // Returns the text of rank 0, or the error.
  absl::StatusOr<std::string> Read(Request::Stream which = Request::STDOUT, const std::string& directory = "",
                                   int64_t offset = 0) {
    LogReader reader(LocalPieces(directory.empty() ? directory_ : directory), 0, which, offset);
    std::string text;
    while (true) {
      v1::ReadRunLogResponse piece;
      const absl::StatusOr<bool> more = reader.Next(&piece);
      if (!more.ok()) return more.status();
      if (!*more) return text;
      text += piece.data();
    }
  }

  std::string root_, directory_;
};

TEST_F(LogReaderTest, ReadsBothOutputsInOrder) {
  const std::string output(100'000, 'o');
  Write(directory_ + "/rank-0.out", output);
  Write(directory_ + "/rank-0.err", "error");
  EXPECT_EQ(*Read(Request::STREAM_UNSPECIFIED), output + "error");
  std::filesystem::remove(directory_ + "/rank-0.out");
  EXPECT_EQ(*Read(Request::STREAM_UNSPECIFIED), "error");
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
}

TEST_F(LogReaderTest, ReadsFromAPositionOrBeforeTheEnd) {
  std::string output;
  for (int line = 0; line < 40'000; ++line) output += absl::StrCat("line ", line, "\n");
  for (const size_t size :
       {size_t{0}, size_t{5}, kLogPiece - 1, kLogPiece, kLogPiece + 1, 3 * kLogPiece, output.size()}) {
    const std::string text = output.substr(0, size);
    Write(directory_ + "/rank-0.out", text);
    EXPECT_EQ(*Read(Request::STDOUT, "", static_cast<int64_t>(size / 2)), text.substr(size / 2)) << size;
    EXPECT_EQ(*Read(Request::STDOUT, "", -1000), text.substr(size - std::min<size_t>(size, 1000))) << size;
    EXPECT_EQ(*Read(Request::STDOUT, "", static_cast<int64_t>(size)), "") << size;
  }
}

// The worker cuts an output that is too long, and the rank continues to append.
TEST_F(LogReaderTest, APositionBeyondTheEndOfACutFileIsAnError) {
  const std::string path = directory_ + "/rank-0.out";
  Write(path, "0123456789");
  EXPECT_EQ(*Read(), "0123456789");
  EXPECT_EQ(*Read(Request::STDOUT, "", 10), "");
  std::filesystem::resize_file(path, 4);
  std::ofstream(path, std::ios::app) << "ab";
  const auto beyond = Read(Request::STDOUT, "", 10);
  EXPECT_TRUE(absl::IsOutOfRange(beyond.status())) << beyond.status();
  EXPECT_EQ(ReasonOf(beyond.status()), "OFFSET_BEYOND_END");
  EXPECT_THAT(std::string(beyond.status().message()), HasSubstr("rank-0.out has fewer than 10 bytes"));
  EXPECT_TRUE(absl::IsOutOfRange(Read(Request::STDOUT, "", 7).status()));
  EXPECT_EQ(*Read(Request::STDOUT, "", 6), "");
  EXPECT_EQ(*Read(Request::STDOUT, "", 5), "b");
  EXPECT_EQ(*Read(Request::STDOUT, "", -10), "0123ab");
}

TEST_F(LogReaderTest, PiecesHaveTheirPositions) {
  Write(directory_ + "/rank-0.out", std::string(kLogPiece + 10, 'x'));
  LogReader reader(LocalPieces(directory_), 0, Request::STDOUT, -20);
  v1::ReadRunLogResponse piece;
  ASSERT_TRUE(*reader.Next(&piece));
  EXPECT_EQ(piece.offset(), static_cast<int64_t>(kLogPiece) - 10);
  EXPECT_EQ(piece.data().size(), 20U);
}

TEST_F(LogReaderTest, ASymlinkIsRefused) {
  std::filesystem::create_symlink("../server.key", directory_ + "/rank-0.out");
  const auto text = Read();
  ASSERT_TRUE(absl::IsFailedPrecondition(text.status())) << text.status();
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("rank-0.out is not a regular file"));
}

TEST_F(LogReaderTest, ASymlinkInPlaceOfTheDirectoryIsRefused) {
  std::filesystem::rename(directory_, root_ + "/moved");
  Write(root_ + "/moved/rank-0.out", "text");
  std::filesystem::create_directory_symlink(root_ + "/moved", directory_);
  EXPECT_TRUE(absl::IsFailedPrecondition(Read().status()));
}

TEST_F(LogReaderTest, AFifoIsRefusedAndDoesNotBlock) {
  const std::string fifo = directory_ + "/rank-0.out";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  auto read = std::async(std::launch::async, [this] { return Read().status(); });
  const bool answered = read.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(answered);
  if (!answered) close(open(fifo.c_str(), O_WRONLY | O_NONBLOCK));  // ends the wait of the reader
  EXPECT_TRUE(absl::IsFailedPrecondition(read.get()));
}

TEST_F(LogReaderTest, ADirectoryAndADeviceAreRefused) {
  std::filesystem::create_directory(directory_ + "/rank-0.out");
  EXPECT_TRUE(absl::IsFailedPrecondition(Read().status()));
  if (mknod((directory_ + "/rank-0.err").c_str(), S_IFCHR | 0600, makedev(1, 5)) != 0)
    GTEST_SKIP() << "may not make a device";
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(Request::STDERR).status()));
}

}  // namespace
}  // namespace scalelab::server
