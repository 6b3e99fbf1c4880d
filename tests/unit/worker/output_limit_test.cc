#include "worker/process/output_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/unit/worker/temp_dir.h"

namespace scalelab::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMiB = 1 << 20;

TEST(OutputLimit, CutsWhatIsPastTheLimitAndLeavesItsBeginning) {
  TempDir dir;
  EventLoop loop;
  OutputLimit limit(loop, kMiB);
  Append(dir / "long", "first words\n" + std::string(3 * kMiB, 'x'));
  Append(dir / "short", "all of it\n");
  limit.Watch({dir / "long", dir / "short", dir / "none"});
  ASSERT_TRUE(
      loop.RunUntil([&] { return std::filesystem::file_size(dir / "long") < kMiB; }, absl::Seconds(30)));
  // Later output follows the line that marks the cut.
  Append(dir / "long", "last words\n");
  limit.Finish();
  const std::string text = ReadAll(dir / "long");
  EXPECT_THAT(text, StartsWith("first words\n"));
  EXPECT_THAT(text,
              HasSubstr("[scalelab-worker cut this file here, as it had more than 1 MiB]\nlast words\n"));
  EXPECT_EQ(ReadAll(dir / "short"), "all of it\n");
  EXPECT_FALSE(std::filesystem::exists(dir / "none"));
}

TEST(OutputLimit, TheLastLookCutsToo) {
  TempDir dir;
  EventLoop loop;
  OutputLimit limit(loop, kMiB);
  limit.Watch({dir / "long"});
  Append(dir / "long", std::string(5 * kMiB, 'x'));
  limit.Finish();
  EXPECT_LT(std::filesystem::file_size(dir / "long"), static_cast<uintmax_t>(kMiB));
}

TEST(OutputLimit, CutsRegularFilesOnly) {
  TempDir dir;
  EventLoop loop;
  OutputLimit limit(loop, kMiB);
  Append(dir / "target", std::string(3 * kMiB, 'x'));
  std::filesystem::create_symlink(dir / "target", dir / "symlink");
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(dir / "directory");
  limit.Watch({dir / "symlink", dir / "fifo", dir / "directory"});
  limit.Finish();
  EXPECT_EQ(std::filesystem::file_size(dir / "target"), static_cast<uintmax_t>(3 * kMiB));
}

}  // namespace
}  // namespace scalelab::worker
