#include "server/readers/agent_event_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/readers/file_event_reader.h"
#include "tests/fakes/loopback_agent.h"
#include "tests/unit/worker/temp_dir.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using worker::Append;
using worker::TempDir;

std::string Step(int step) {
  return absl::StrCat(R"({"time":1,"event":"step","step":)", step, R"(,"metrics":{"m":)", step, "}}\n");
}
const std::string kFinish = "{\"time\":1,\"event\":\"finish\",\"parameter_hash\":\"h\"}\n";

class AgentEventReaderTest : public testing::Test {
 protected:
  AgentEventReaderTest() { std::filesystem::create_directories(Directory()); }
  ~AgentEventReaderTest() override {
    hub_.Stop();
    reader_.Stop(absl::Seconds(10));
  }
  std::string Directory() const { return dir_ / "runs/alice/1/2/token"; }
  std::string File(int rank) const { return absl::StrCat(Directory(), "/events-", rank, ".jsonl"); }
  EventRequest Request(int ranks) const {
    EventRequest request;
    request.token = "token";
    request.directory = Directory();
    request.places.resize(ranks);
    return request;
  }
  absl::StatusOr<EventPart> Read(const EventRequest& request) {
    std::promise<absl::StatusOr<EventPart>> part;
    reader_.Read(request, [&](absl::StatusOr<EventPart> read) { part.set_value(std::move(read)); });
    return part.get_future().get();
  }
  LoopbackAgent MakeAgent() { return {hub_, "alice", dir_ / "runs/alice"}; }

  TempDir dir_;
  AgentHub hub_;
  FileEventReader here_;
  AgentEventReader reader_{hub_, dir_ / "runs", dir_ / "spool", here_};
};

TEST_F(AgentEventReaderTest, ReadsTheRestOfTheFilesThroughTheAgent) {
  const LoopbackAgent agent = MakeAgent();
  Append(File(0), Step(0) + Step(1) + kFinish);
  Append(File(2), Step(0) + "{\"time\":1,\"eve");
  EventRequest request = Request(3);
  request.places[0] = {static_cast<int64_t>(Step(0).size()), 1};
  const auto part = Read(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_EQ(part->next_rank, 3);
  ASSERT_THAT(part->batches, SizeIs(2));
  EXPECT_EQ(part->batches[0].append.begin_line, 1);
  EXPECT_EQ(part->batches[0].append.end_line, 3);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "spool/token-0"));
}

TEST_F(AgentEventReaderTest, ALongFileIsReadInSeveralParts) {
  const LoopbackAgent agent = MakeAgent();
  std::string text;
  int lines = 0;
  for (; text.size() < (6 << 20); ++lines) text += Step(lines);
  Append(File(0), text);
  Append(File(1), kFinish);
  EventRequest request = Request(2);
  int64_t line = 0;
  for (int parts = 0; request.first_rank < 2 && parts < 100; ++parts) {
    const auto part = Read(request);
    ASSERT_TRUE(part.ok()) << part.status();
    for (const ParsedBatch& batch : part->batches) {
      if (batch.append.rank != 0) continue;
      EXPECT_EQ(batch.append.begin_line, line);
      line = batch.append.end_line;
      request.places[0] = {batch.append.end_position, batch.append.end_line};
    }
    request.places.erase(request.places.begin(),
                         request.places.begin() + (part->next_rank - request.first_rank));
    request.first_rank = part->next_rank;
  }
  EXPECT_EQ(request.first_rank, 2);
  EXPECT_EQ(line, lines);
}

TEST_F(AgentEventReaderTest, WithoutAnAgentTheRequestCannotSucceedBeforeItsUserActs) {
  Append(File(0), kFinish);
  const auto part = Read(Request(1));
  EXPECT_EQ(part.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(part.status().message(), HasSubstr("the agent of alice is not connected"));
}

TEST_F(AgentEventReaderTest, AnAttemptOfTheServicesOwnAccountIsReadHere) {
  EventRequest request = Request(1);
  request.directory = dir_ / "runs/1/2/token";
  std::filesystem::create_directories(request.directory);
  Append(request.directory + "/events-0.jsonl", Step(0));
  const auto part = Read(request);
  ASSERT_TRUE(part.ok()) << part.status();
  EXPECT_THAT(part->batches, SizeIs(1));
}

TEST_F(AgentEventReaderTest, AnAgentThatDoesNotAnswerDoesNotDelayThoseOfOtherUsers) {
  LoopbackAgent agent = MakeAgent();
  agent.Suspend();
  Append(File(0), kFinish);
  const auto answered = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 8; ++i)
    reader_.Read(Request(1), [answered](const absl::StatusOr<EventPart>&) { ++*answered; });
  EventRequest request = Request(1);
  request.token = "other";
  request.directory = dir_ / "runs/bob/3/4/other";
  std::filesystem::create_directories(request.directory);
  Append(request.directory + "/events-0.jsonl", kFinish);
  const LoopbackAgent other(hub_, "bob", dir_ / "runs/bob");
  EXPECT_TRUE(Read(request).ok());
  EXPECT_EQ(*answered, 0);
}

}  // namespace
}  // namespace scalelab::server
