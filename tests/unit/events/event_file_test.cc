#include "events/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/unit/worker/temp_dir.h"

namespace scalelab {
namespace {

using ::testing::HasSubstr;
using worker::Append;
using worker::TempDir;

constexpr char kLine[] = "{\"time\":1,\"event\":\"step\",\"step\":0,\"metrics\":{\"m\":1}}\n";

class EventFileTest : public testing::Test {
 protected:
  std::string Path() { return dir_ / "events-0.jsonl"; }
  // Reads all lines that exist at this time, and returns the number of points.
  int Read(EventFile& file, absl::Duration now = absl::ZeroDuration()) {
    BatchBuilder builder;
    while (file.Read(builder, size_t{1} << 20, buffer_, now)) {
    }
    const v1::EventBatch batch = builder.Take();
    return batch.columns_size() == 0 ? 0 : batch.columns(0).value_size();
  }

  TempDir dir_;
  std::vector<char> buffer_ = std::vector<char>(256 << 10);
};

TEST_F(EventFileTest, ContinuesAtAPlace) {
  Append(Path(), absl::StrCat(kLine, kLine, kLine));
  EventFile file(Path(), absl::ZeroDuration());
  file.Seek({static_cast<int64_t>(strlen(kLine)), 1});
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file), 2);
  EXPECT_TRUE(file.AtEnd());
  EXPECT_EQ(file.place().line, 3);
  EXPECT_EQ(file.problem(), "");
}

TEST_F(EventFileTest, AFileThatNeverExistedHasNoEvents) {
  EventFile file(Path(), absl::ZeroDuration());
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file), 0);
  EXPECT_TRUE(file.AtEnd());
  EXPECT_EQ(file.problem(), "");
}

TEST_F(EventFileTest, AFileThatWasDeletedAfterItsFirstLinesWereReadIsAProblem) {
  EventFile file(Path(), absl::ZeroDuration());
  file.Seek({100, 1});
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file), 0);
  EXPECT_TRUE(file.AtEnd());
  EXPECT_THAT(file.problem(), HasSubstr("events-0.jsonl was deleted"));
}

TEST_F(EventFileTest, AFifoIsNotOpened) {
  ASSERT_EQ(mkfifo(Path().c_str(), 0600), 0);
  EventFile file(Path(), absl::InfiniteDuration());
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file), 0);
  EXPECT_TRUE(file.AtEnd());
  EXPECT_EQ(file.problem(), "events-0.jsonl is a FIFO, not a regular file");
}

TEST_F(EventFileTest, AnErrorIsNamedAndTheFileIsReadWhenItIsOver) {
  // If a file replaces the directory, the error is ENOTDIR.
  Append(dir_ / "attempt", "");
  EventFile file(dir_ / "attempt/events-0.jsonl", absl::InfiniteDuration());
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file), 0);
  EXPECT_FALSE(file.AtEnd());
  EXPECT_EQ(file.error(), "Not a directory");
  std::filesystem::remove(dir_ / "attempt");
  std::filesystem::create_directory(dir_ / "attempt");
  Append(dir_ / "attempt/events-0.jsonl", kLine);
  EXPECT_EQ(Read(file), 0) << "it waits before the next try";
  EXPECT_EQ(Read(file, absl::Seconds(1)), 1);
  EXPECT_TRUE(file.AtEnd());
  EXPECT_EQ(file.error(), "");
}

TEST_F(EventFileTest, ErrorsAreRetriedLessAndLessOften) {
  Append(dir_ / "attempt", "");
  EventFile file(dir_ / "attempt/events-0.jsonl", absl::Seconds(60));
  file.Finish(absl::ZeroDuration());
  absl::Duration now = absl::ZeroDuration();
  for (; !file.AtEnd() && now < absl::Minutes(5); now += absl::Milliseconds(10)) Read(file, now);
  EXPECT_GE(now, absl::Seconds(60));
  EXPECT_LE(now, absl::Seconds(66));
  EXPECT_THAT(file.problem(), HasSubstr("cannot be read: Not a directory"));
}

TEST_F(EventFileTest, AnErrorLongAfterTheEndIsRetriedToo) {
  Append(dir_ / "attempt", "");  // a file, so that a path below it is an error
  EventFile file(dir_ / "attempt/events-0.jsonl", absl::Seconds(60));
  file.Finish(absl::ZeroDuration());
  EXPECT_EQ(Read(file, absl::Minutes(5)), 0);
  ASSERT_FALSE(file.AtEnd());
  std::filesystem::remove(dir_ / "attempt");
  std::filesystem::create_directory(dir_ / "attempt");
  Append(dir_ / "attempt/events-0.jsonl", kLine);
  EXPECT_EQ(Read(file, absl::Minutes(5) + absl::Seconds(1)), 1);
  EXPECT_EQ(file.problem(), "");
}

}  // namespace
}  // namespace scalelab
