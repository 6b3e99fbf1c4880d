// Tests writes that fail only when the file is closed, as on a network filesystem without space. These tests
// have a program of their own, because it replaces the function close of the C library.
#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/output_metrics.h"
#include "worker/provenance.h"

namespace {

const char* failing = nullptr;  // the end of the path of files whose close fails

bool Fails(int fd) {
  if (failing == nullptr) return false;
  char path[PATH_MAX];
  const ssize_t length = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), path, sizeof path);
  return length > 0 && absl::EndsWith(absl::string_view(path, static_cast<size_t>(length)), failing);
}

}  // namespace

extern "C" int close(int fd) {
  const bool fails = Fails(fd);
  const long result = syscall(SYS_close, fd);
  if (!fails || result != 0) return static_cast<int>(result);
  errno = ENOSPC;
  return -1;
}

namespace scalelab::worker {
namespace {

class Close : public ::testing::Test {
 protected:
  ~Close() override { failing = nullptr; }
  TempDir dir_;
};

TEST_F(Close, MetricsOfTheOutputReportThatItFailed) {
  google::protobuf::Struct rules;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(
                  R"j({"a": {"regex": "a=(.*)", "per": "run", "take": "last"}})j", &rules)
                  .ok());
  Append(dir_ / "rank-0.out", "a=1\n");
  EventLoop loop;
  auto metrics = OutputMetrics::New(loop, rules, {dir_ / "rank-0.out"}, dir_ / "events-0.jsonl");
  ASSERT_TRUE(metrics.ok()) << metrics.status();
  failing = "/events-0.jsonl";
  std::optional<std::string> problem;
  (*metrics)->Finish(true, [&](std::string text) { problem = std::move(text); });
  ASSERT_TRUE(loop.RunUntil([&] { return problem.has_value(); }, absl::Seconds(30)));
  EXPECT_EQ(*problem, absl::StrCat("Cannot write '", dir_ / "events-0.jsonl", "': ", strerror(ENOSPC), "."));
}

TEST_F(Close, AFileIsNotReplacedIfItFailed) {
  ASSERT_TRUE(WriteFileWhole(dir_ / "exit.json", "{}"));
  failing = "/exit.json.new";
  EXPECT_FALSE(WriteFileWhole(dir_ / "exit.json", "[]"));
  EXPECT_EQ(errno, ENOSPC);
  EXPECT_EQ(ReadAll(dir_ / "exit.json"), "{}");
}

}  // namespace
}  // namespace scalelab::worker
