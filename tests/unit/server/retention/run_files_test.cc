// Removal of the files of users through their agents.
#include "server/retention/run_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/fakes/loopback_agent.h"
#include "tests/unit/server/retention/retention_fixture.h"

namespace scalelab::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RetentionOfUsersTest : public RetentionTest {
 protected:
  std::string Alice() const { return runs() + "/alice"; }
  std::string UserAttempt(int64_t study) const {
    return absl::StrCat(Alice(), "/", study, "/", study * 1000, "/token-", study * 1000);
  }
  void CommitUserStudy(int64_t study, int days) {
    db::WriteBatch batch;
    batch.studies = {db::AStudy(study)};
    batch.studies[0].state = db::StudyState::kSucceeded;
    batch.studies[0].finished = absl::ToUnixMicros(now_ - days * kDay);
    batch.runs.push_back(db::ARun(study * 1000, study, study * 1000));
    batch.attempts.push_back(db::AnAttempt(study * 1000, study * 1000));
    batch.attempts[0].state = db::AttemptState::kSucceeded;
    batch.attempts[0].finished = batch.studies[0].finished;
    batch.attempts[0].directory = UserAttempt(study);
    fs::create_directories(UserAttempt(study));
    std::ofstream(UserAttempt(study) + "/rank-0.out") << "output";
    std::ofstream(UserAttempt(study) + "/model") << "weights";
    fs::create_directories(absl::StrCat(Alice(), "/", study, "/", study * 1000, "/checkpoints"));
    std::ofstream(absl::StrCat(Alice(), "/", study, "/", study * 1000, "/checkpoints/step")) << "state";
    ASSERT_TRUE(store_->Commit(batch).ok());
  }
  v1::PruneResponse::Removed PruneDirectories(bool dry_run) {
    RetentionRules rules;
    rules.directories = 30 * kDay;
    RetentionOptions options = Options(rules);
    options.agents = &hub_;
    Retention retention(std::move(options), *store_);
    const auto response = retention.Prune(dry_run, [] { return false; });
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->removed(0) : v1::PruneResponse::Removed();
  }

  AgentHub hub_;
};

TEST_F(RetentionOfUsersTest, TheAgentOfTheUserRemovesTheDirectories) {
  CommitUserStudy(1, 100);
  CommitUserStudy(2, 10);
  LoopbackAgent agent(hub_, "alice", Alice());
  for (const bool dry_run : {true, false}) {
    EXPECT_TRUE(fs::exists(UserAttempt(1) + "/model"));
    const v1::PruneResponse::Removed removed = PruneDirectories(dry_run);
    EXPECT_EQ(removed.rule(), "attempt directories older than 30d");
    EXPECT_EQ(removed.studies(), 1);
    EXPECT_EQ(removed.directories(), 2) << "of the attempt and of the checkpoints";
    EXPECT_EQ(removed.bytes(), 18);
  }
  EXPECT_FALSE(fs::exists(Alice() + "/1"));
  EXPECT_TRUE(fs::exists(UserAttempt(2) + "/model"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
  EXPECT_EQ(PruneDirectories(false).studies(), 0);
}

TEST_F(RetentionOfUsersTest, ARemovalWaitsForTheAgentAndIsCompletedWhenItIsConnected) {
  CommitUserStudy(1, 100);
  for (const bool dry_run : {true, false}) {
    const v1::PruneResponse::Removed removed = PruneDirectories(dry_run);
    EXPECT_EQ(removed.rule(), "attempt directories older than 30d (waiting for the agents of alice)");
    EXPECT_EQ(removed.studies(), 1);
    EXPECT_EQ(removed.directories(), 0);
  }
  EXPECT_TRUE(fs::exists(UserAttempt(1) + "/model"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), ElementsAre(1))
      << "the removal survives a restart";
  LoopbackAgent agent(hub_, "alice", Alice());
  EXPECT_EQ(PruneDirectories(false).rule(), "attempt directories older than 30d");
  EXPECT_FALSE(fs::exists(Alice() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

TEST_F(RetentionOfUsersTest, ARemovalWhoseEndWasNotRecordedIsCompleteIfTheStudyHasNoFiles) {
  CommitUserStudy(1, 100);
  EXPECT_EQ(PruneDirectories(false).studies(), 1);
  fs::remove_all(absl::StrCat(Alice(), "/1/1000"));
  LoopbackAgent agent(hub_, "alice", Alice());
  PruneDirectories(false);
  EXPECT_FALSE(fs::exists(Alice() + "/1"));
  EXPECT_THAT(db::ListUnfinished(*store_, db::Removal::kDirectories).value(), IsEmpty());
}

// An agent that needs several requests for a directory, or does not answer.
class SlowAgent final : public AgentStream {
 public:
  explicit SlowAgent(AgentHub& hub) : hub_(hub) {}
  ~SlowAgent() override {
    if (answer_.joinable()) answer_.join();
  }
  // The hub waits for the answer after this call.
  void Send(int64_t id, const AgentRequest&) override {
    ++requests;
    v1::ServeRequest::Removed removed;
    removed.set_files(1);
    removed.set_bytes(bytes);
    removed.set_incomplete(requests < parts);
    removed.set_directories(requests < parts ? 0 : 1);
    CommandResult result;
    if (lost) result.lost = "the agent has disconnected";
    result.exit_code = 0;
    result.out = removed.SerializeAsString();
    if (answer_.joinable()) answer_.join();
    answer_ = std::thread([this, id, result] { hub_.Answer("alice", this, id, result); });
  }
  void End(const absl::Status&) override {}

  int parts = 1;
  int64_t bytes = 100;
  bool lost = false;
  int requests = 0;

 private:
  AgentHub& hub_;
  std::thread answer_;
};

class RunFilesTest : public RetentionOfUsersTest {
 protected:
  RunFilesTest() : agent_(std::make_shared<SlowAgent>(hub_)) {
    hub_.Connect("alice", agent_);
    auto files = RunFiles::Open(runs(), &hub_);
    EXPECT_TRUE(files.ok()) << files.status();
    files_.emplace(*std::move(files));
  }
  absl::Status Remove(
      const std::function<bool()>& over = [] { return false; }, bool dry_run = false) {
    return files_->Remove(UserAttempt(1), 1, 1000, "token-1000", FilesOf::kEverything, dry_run, over,
                          removed_);
  }

  const std::shared_ptr<SlowAgent> agent_;
  std::optional<RunFiles> files_;
  FilesRemoved removed_;
};

TEST_F(RunFilesTest, ARemovalConsistsOfAsManyRequestsAsTheAgentNeeds) {
  agent_->parts = 3;
  EXPECT_TRUE(Remove().ok());
  EXPECT_EQ(agent_->requests, 3);
  EXPECT_EQ(removed_.files, 3);
  EXPECT_EQ(removed_.bytes, 300);
  EXPECT_EQ(removed_.directories, 1);
}

TEST_F(RunFilesTest, ARemovalEndsBetweenTwoRequestsIfItIsOver) {
  agent_->parts = 1000;
  int asked = 0;
  EXPECT_EQ(Remove([&] { return ++asked == 2; }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(agent_->requests, 2);
  EXPECT_THAT(files_->waiting(), IsEmpty());
}

TEST_F(RunFilesTest, ARemovalInTheServicesOwnDirectoriesEndsBetweenTwoFilesIfItIsOver) {
  const std::string checkpoints = runs() + "/1/1000/checkpoints";
  fs::create_directories(checkpoints);
  for (const char* name : {"a", "b", "c"}) std::ofstream(absl::StrCat(checkpoints, "/", name)) << "state";
  const auto remove = [&](const std::function<bool()>& over) {
    return files_->Remove(checkpoints, 1, 1000, "checkpoints", FilesOf::kEverything, /*dry_run=*/false, over,
                          removed_);
  };
  EXPECT_EQ(remove([&] { return removed_.files == 1; }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::distance(fs::directory_iterator(checkpoints), fs::directory_iterator()), 2);
  EXPECT_EQ(removed_.files, 1);
  EXPECT_TRUE(remove([] { return false; }).ok());
  EXPECT_FALSE(fs::exists(checkpoints));
}

TEST_F(RunFilesTest, AnAgentThatNeverCompletesARemovalDoesNotOccupyTheThread) {
  agent_->parts = 1'000'000;
  EXPECT_EQ(Remove().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(agent_->requests, 300);
  EXPECT_THAT(files_->waiting(), ElementsAre("alice"));
}

TEST_F(RunFilesTest, AfterALostAnswerTheOtherFilesOfTheUserWait) {
  agent_->lost = true;
  EXPECT_EQ(Remove().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Remove().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(agent_->requests, 1);
  EXPECT_TRUE(files_->Waits(1));
}

TEST_F(RunFilesTest, ImpossibleNumbersAreAnInvalidAnswer) {
  agent_->bytes = -1;
  EXPECT_THAT(Remove().message(), HasSubstr("has sent an invalid answer"));
  EXPECT_EQ(removed_.bytes, 0);
}

TEST_F(RunFilesTest, ADryRunCountsADirectoryThatTakesTooLong) {
  agent_->parts = 1000;
  EXPECT_TRUE(Remove([] { return false; }, /*dry_run=*/true).ok());
  EXPECT_EQ(agent_->requests, 1);
  EXPECT_EQ(removed_.directories, 1);
}

}  // namespace
}  // namespace scalelab::server
