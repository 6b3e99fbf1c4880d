#include "server/readers/file_event_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "tests/unit/worker/temp_dir.h"

namespace {

std::atomic<absl::Notification*> hang = nullptr;  // reads of files wait for it
std::atomic<dev_t> hanging_device = 0;            // only those of files on this device; 0: on any device
std::atomic<int> hanging = 0;                     // reads that wait

}  // namespace

// Replaces libc's function in this program.
extern "C" ssize_t pread(int fd, void* data, size_t size, off_t position) {
  struct stat file {};
  const bool here = hanging_device == 0 || (fstat(fd, &file) == 0 && file.st_dev == hanging_device);
  if (absl::Notification* release = hang; release != nullptr && here) {
    ++hanging;
    release->WaitForNotification();
  }
  return syscall(SYS_pread64, fd, data, size, position);
}

namespace scalelab::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using worker::Append;
using worker::TempDir;

std::string Step(int step) {
  return absl::StrCat(R"({"time":1,"event":"step","step":)", step, R"(,"metrics":{"m":)", step, "}}\n");
}
const std::string kFinish = "{\"time\":1,\"event\":\"finish\",\"parameter_hash\":\"h\"}\n";

class FileEventReaderTest : public testing::Test {
 protected:
  std::string File(int rank) { return dir_ / absl::StrCat("events-", rank, ".jsonl"); }
  EventRequest Request(int ranks) {
    EventRequest request;
    request.token = "t";
    request.directory = dir_.path();
    request.places.resize(ranks);
    return request;
  }
  absl::StatusOr<EventPart> Read(const EventRequest& request) {
    std::promise<absl::StatusOr<EventPart>> part;
    reader_.Read(request, [&](absl::StatusOr<EventPart> read) { part.set_value(std::move(read)); });
    return part.get_future().get();
  }

  TempDir dir_;
  FileEventReader reader_;
};

TEST_F(FileEventReaderTest, ReadsTheRestOfTheFilesOfAllRanks) {
  Append(File(0), Step(0) + Step(1) + kFinish);
  Append(File(2), Step(0) + "{\"time\":1,\"eve");
  EventRequest request = Request(3);
  request.places[0] = {static_cast<int64_t>(Step(0).size()), 1};
  const auto part = Read(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->next_rank, 3);
  EXPECT_EQ(part->problem, "");
  ASSERT_THAT(part->batches, SizeIs(2));
  EXPECT_EQ(part->batches[0].append.rank, 0);
  EXPECT_EQ(part->batches[0].append.begin_line, 1);
  EXPECT_EQ(part->batches[0].append.end_line, 3);
  EXPECT_TRUE(part->batches[0].append.finished);
  EXPECT_THAT(part->batches[0].append.columns.at(0).value, ElementsAre(1));
  EXPECT_EQ(part->batches[1].append.rank, 2);
  EXPECT_EQ(part->batches[1].append.malformed, 1) << "the last line is incomplete";
}

TEST_F(FileEventReaderTest, LargeFilesAreReadInPartsOfABoundedSize) {
  std::string text;
  int steps = 0;
  while (text.size() < (size_t{8} << 20)) text += Step(steps++);
  Append(File(0), text);
  Append(File(1), Step(0));
  EventRequest request = Request(2);
  std::vector<double> values;
  int parts = 0;
  for (bool more = true; more && parts < 100; ++parts) {
    const auto part = Read(request);
    ASSERT_TRUE(part.ok()) << part.status();
    for (const ParsedBatch& batch : part->batches) {
      EventPlace& place = request.places[batch.append.rank - request.first_rank];
      EXPECT_EQ(batch.append.begin_position, place.position);
      place = {batch.append.end_position, batch.append.end_line};
      EXPECT_LT(batch.append.columns.at(0).value.size(), 40'000u);
      if (batch.append.rank > 0) continue;
      const std::vector<double>& read = batch.append.columns[0].value;
      values.insert(values.end(), read.begin(), read.end());
    }
    request.places.erase(request.places.begin(),
                         request.places.begin() + (part->next_rank - request.first_rank));
    request.first_rank = part->next_rank;
    more = part->next_rank < 2;
  }
  EXPECT_GT(parts, 3);
  ASSERT_EQ(values.size(), static_cast<size_t>(steps));
  for (int i = 0; i < steps; ++i) ASSERT_EQ(values[i], i);
}

TEST_F(FileEventReaderTest, OddFilesAreNamedAndNotRead) {
  for (int odd = 0; odd < 4; ++odd) {
    std::filesystem::remove(File(0));
    if (odd == 0) {
      ASSERT_EQ(mkfifo(File(0).c_str(), 0600), 0);
    }
    if (odd == 1) std::filesystem::create_directory(File(0));
    if (odd == 2) std::filesystem::create_symlink("/dev/zero", File(0));
    if (odd == 3) {
      Append(File(0), "");
      std::filesystem::resize_file(File(0), uintmax_t{200} << 30);
    }
    const auto part = Read(Request(1));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->next_rank, 1);
    if (odd < 3) {
      EXPECT_THAT(part->problem, HasSubstr("not a regular file"));
      EXPECT_THAT(part->batches, IsEmpty());
    } else {
      EXPECT_EQ(part->batches.at(0).append.malformed, 1);
    }
  }
}

TEST_F(FileEventReaderTest, ADirectoryThatWasNeverMadeHasNoEvents) {
  EventRequest request = Request(2);
  request.directory = dir_ / "none";
  const auto part = Read(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->next_rank, 2);
  EXPECT_EQ(part->problem, "");
  EXPECT_FALSE(part->end);
}

TEST_F(FileEventReaderTest, AnErrorOfTheFilesystemMayBeTemporary) {
  Append(dir_ / "file", "");
  EventRequest request = Request(1);
  request.directory = dir_ / "file";
  const auto part = Read(request);
  EXPECT_TRUE(absl::IsUnavailable(part.status())) << part.status();
  EXPECT_THAT(std::string(part.status().message()), HasSubstr("events-0.jsonl cannot be read: Not a dir"));
}

TEST_F(FileEventReaderTest, TheRecordOfTheWorkerComesWithTheLastPart) {
  const std::string record =
      R"({"attempt":"t","time":"","exit_status":137,"stopped":true,"cause":"RANK_KILLED","message":"m"})";
  Append(dir_ / "exit.json", record);
  const auto part = Read(Request(1));
  ASSERT_TRUE(part.ok() && part->end) << part.status();
  EXPECT_EQ(part->end->exit_status(), 137);
  EXPECT_EQ(part->end->cause(), v1::Attempt::RANK_KILLED);
  EXPECT_TRUE(part->end->stopped());
  EXPECT_EQ(part->end->message(), "m");
}

TEST_F(FileEventReaderTest, AnInvalidRecordIsIgnored) {
  for (const char* record :
       {"", "{", "[]", "7", R"({"attempt":"t"})",
        R"({"attempt":"another","exit_status":0,"stopped":false,"cause":"CAUSE_UNSPECIFIED","message":""})",
        R"({"attempt":"t","exit_status":"0","stopped":false,"cause":"CAUSE_UNSPECIFIED","message":""})",
        R"({"attempt":"t","exit_status":0,"stopped":false,"cause":"NO_CAUSE","message":""})"}) {
    std::filesystem::remove(dir_ / "exit.json");
    Append(dir_ / "exit.json", record);
    const auto part = Read(Request(1));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_FALSE(part->end) << record;
  }
}

TEST_F(FileEventReaderTest, SoftwareComesFromTheStartEvent) {
  Append(File(0), "{\"time\":1,\"event\":\"start\",\"framework\":\"pytorch\",\"version\":\"1.13.1\"}\n");
  EventRequest request = Request(1);
  request.environment.emplace().add_modules("cuda/12");
  const auto part = Read(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->software.at("framework"), "pytorch 1.13.1");
  EXPECT_EQ(part->software.at("environment"), "cuda/12");
}

TEST_F(FileEventReaderTest, TheDeviceComesFromTheStartEventOfEveryEngine) {
  Append(File(0), "{\"time\":1,\"event\":\"start\",\"framework\":\"native\",\"device\":\"NVIDIA H100\"}\n");
  const auto part = Read(Request(1));
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->software, testing::ElementsAre(testing::Pair("device", "NVIDIA H100")));
}

TEST_F(FileEventReaderTest, AFilesystemThatHangsBlocksNeitherOtherReadsNorTheEnd) {
  Append(File(0), Step(0));
  static absl::Notification release;
  hang = &release;
  auto* reader = new FileEventReader();  // its threads are blocked at first
  std::promise<void> answered;
  reader->Read(Request(1), [&](absl::StatusOr<EventPart>) { answered.set_value(); });
  while (hanging < 1) std::this_thread::yield();
  hang = nullptr;
  EXPECT_TRUE(Read(Request(1)).ok());
  EXPECT_FALSE(reader->Stop(absl::Milliseconds(10)));
  delete reader;
  release.Notify();
  answered.get_future().wait();
}

TEST_F(FileEventReaderTest, AFilesystemThatHangsDoesNotTakeAllThreads) {
  struct stat device {
  }, other{};
  ASSERT_EQ(stat(dir_.path().c_str(), &device), 0);
  if (stat("/dev/shm", &other) != 0 || other.st_dev == device.st_dev)
    GTEST_SKIP() << "/dev/shm is not on a filesystem of its own";
  std::string elsewhere = "/dev/shm/scalelab-events-XXXXXX";
  ASSERT_NE(mkdtemp(elsewhere.data()), nullptr);
  Append(File(0), Step(0));
  Append(elsewhere + "/events-0.jsonl", Step(0));
  absl::Notification release;
  hanging_device = device.st_dev;
  hanging = 0;
  hang = &release;
  std::vector<std::promise<void>> answered(20);
  for (std::promise<void>& one : answered)
    reader_.Read(Request(1), [&](const absl::StatusOr<EventPart>&) { one.set_value(); });
  EventRequest request = Request(1);
  request.directory = elsewhere;
  std::promise<void> read;
  reader_.Read(request, [&](const absl::StatusOr<EventPart>& part) {
    EXPECT_TRUE(part.ok()) << part.status();
    read.set_value();
  });
  const std::future<void> done = read.get_future();
  EXPECT_EQ(done.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  EXPECT_LE(hanging.load(), 8);
  release.Notify();
  done.wait();
  for (std::promise<void>& one : answered) one.get_future().wait();
  hang = nullptr;
  hanging_device = 0;
  std::filesystem::remove_all(elsewhere);
}

}  // namespace
}  // namespace scalelab::server
