#include "worker/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/fakes/wall_clock.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"
#include "worker/process/process_tree.h"

namespace scalelab::worker {
namespace {

// Tokens must be unique, because a worker ends all processes on the machine that have the token of its
// attempt, even those of another test.
const std::string kToken = absl::StrCat("t-", getpid());

using ::testing::HasSubstr;
using AttemptStatus = v1::SynchronizeRequest::AttemptStatus;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A CoordinatorClient that records every call; the test answers each one by hand.
class HandClient final : public CoordinatorClient {
 public:
  void Synchronize(const v1::SynchronizeRequest& request, Synchronized done) override {
    polls.push_back({request, std::move(done)});
  }
  void CancelSynchronize() override {
    for (auto& poll : std::exchange(polls, {})) poll.done(absl::CancelledError());
  }
  void ReportEvents(const v1::ReportEventsRequest& request, Reported done) override {
    reports.push_back({request, std::move(done)});
  }
  struct Poll {
    v1::SynchronizeRequest request;
    Synchronized done;
  };
  struct Report {
    v1::ReportEventsRequest request;
    Reported done;
  };
  std::deque<Poll> polls;
  std::deque<Report> reports;
};

// A Processes whose jobs start and end when the test decides.
class HandProcesses final : public Processes {
 public:
  struct Running {
    Job job;
    Started started;
    Ended ended;
    std::optional<absl::Duration> stopped_with;
    bool notified = false;
  };
  uint64_t Start(const Job& job, Started started, Ended ended) override {
    jobs.push_back({job, std::move(started), std::move(ended), {}});
    return jobs.size();
  }
  void Notify(uint64_t id) override { jobs[id - 1].notified = true; }
  void Stop(uint64_t id, absl::Duration grace) override { jobs[id - 1].stopped_with = grace; }
  std::deque<Running> jobs;
};

class AgentTest : public ::testing::Test {
 protected:
  AgentTest()
      : follower_(loop_,
                  [this](const v1::ReportEventsRequest& request, EventFollower::Answer answer) {
                    client_.ReportEvents(request, std::move(answer));
                  }),
        provenance_(loop_, {"", "", ""}, {}),
        host_{loop_, processes_, follower_, provenance_, frameworks_, launch_, "n0", "alloc"} {
    frameworks_.push_back(NewNativeFramework("/nowhere/trainer"));
    frameworks_.push_back(NewCustomFramework());
  }

  void StartAgent(AgentOptions options = {}) {
    agent_.emplace(loop_, client_, host_, options, [this](Agent::Exit exit) { exited_ = exit; });
    agent_->Start();
  }
  bool Wait(const std::function<bool()>& done) { return loop_.RunUntil(done, kPatience); }
  // Runs the loop until a Synchronize that satisfies `wanted` is in flight.
  v1::SynchronizeRequest WaitForPoll(const std::function<bool(const v1::SynchronizeRequest&)>& wanted) {
    EXPECT_TRUE(Wait([&] { return !client_.polls.empty() && wanted(client_.polls.back().request); }));
    return client_.polls.empty() ? v1::SynchronizeRequest() : client_.polls.back().request;
  }
  AttemptStatus WaitForState(AttemptStatus::State state) {
    return WaitForPoll([&](const auto& request) {
             return request.attempts_size() == 1 && request.attempts(0).state() == state;
           })
        .attempts(0);
  }
  void Answer(absl::StatusOr<v1::SynchronizeResponse> response) {
    ASSERT_FALSE(client_.polls.empty());
    auto done = std::move(client_.polls.back().done);
    client_.polls.clear();
    done(std::move(response));
  }
  void AnswerPoll(absl::StatusOr<v1::SynchronizeResponse> response) {
    WaitForPoll([](const auto&) { return true; });
    Answer(std::move(response));
  }
  v1::SynchronizeResponse Desired(std::vector<std::string> tokens, bool stop = false) {
    v1::SynchronizeResponse response;
    response.set_generation(++generation_);
    for (const std::string& token : tokens) {
      auto& attempt = *response.add_attempts();
      attempt.set_token(token);
      attempt.set_stop(stop);
      attempt.set_directory(dir_ / token);
      attempt.add_nodes("n0");
      attempt.set_ranks_per_node(1);
      attempt.mutable_spec()->set_engine("custom");
      attempt.mutable_spec()->set_ranks(1);
      attempt.mutable_spec()->add_command("program");
    }
    return response;
  }
  // Starts the agent on the second of the two nodes of an attempt. Returns the desired state.
  v1::SynchronizeResponse StartOnSecondNode(bool stop = false) {
    launch_.launcher = Launcher::kSrun;
    StartAgent({.node_index = 1});
    v1::SynchronizeResponse desired = Desired({kToken}, stop);
    desired.mutable_attempts(0)->set_nodes(0, "first");
    desired.mutable_attempts(0)->add_nodes("n0");
    desired.mutable_attempts(0)->mutable_spec()->set_ranks(2);
    return desired;
  }
  HandProcesses::Running& WaitForJob(size_t number = 1) {
    EXPECT_TRUE(Wait([&] { return processes_.jobs.size() >= number; }));
    return processes_.jobs[number - 1];
  }
  void AcceptReport() {
    ASSERT_TRUE(Wait([this] { return !client_.reports.empty(); }));
    auto report = std::move(client_.reports.front());
    client_.reports.pop_front();
    v1::ReportEventsResponse response;
    for (const auto& batch : report.request.batches()) {
      auto& stream = *response.add_streams();
      stream.set_outcome(v1::ReportEventsResponse::Stream::ACCEPTED);
      stream.set_position(batch.end_position());
      stream.set_line(batch.end_line());
    }
    report.done(response);
  }
  void RunToStarted(AgentOptions options = {}) {
    StartAgent(options);
    AnswerPoll(Desired({kToken}));
    WaitForJob().started(100);
    WaitForState(AttemptStatus::RUNNING);
  }

  TempDir dir_;
  EventLoop loop_;
  HandClient client_;
  HandProcesses processes_;
  EventFollower follower_;
  Provenance provenance_;
  Frameworks frameworks_;
  LaunchHost launch_;
  AttemptHost host_;
  std::optional<Agent::Exit> exited_;
  std::optional<Agent> agent_;
  int64_t generation_ = 0;
};

TEST_F(AgentTest, IntroducesItself) {
  StartAgent({.node_index = 2});
  const auto request = WaitForPoll([](const auto&) { return true; });
  EXPECT_EQ(request.node(), "n0");
  EXPECT_EQ(request.node_index(), 2);
  EXPECT_FALSE(request.instance().empty());
  EXPECT_EQ(request.generation(), 0);
  EXPECT_GT(request.info().cpus(), 0);
  EXPECT_EQ(request.attempts_size(), 0);
}

TEST_F(AgentTest, BringsAnAttemptFromItsDirectoryToItsEnd) {
  StartAgent();
  AnswerPoll(Desired({kToken}));
  auto& job = WaitForJob();
  EXPECT_EQ(job.job.tag, "SCALELAB_ATTEMPT=" + kToken);
  EXPECT_EQ(job.job.commands[0].argv[0], "program");
  const auto spec = nlohmann::json::parse(ReadAll(dir_ / (kToken + "/spec.json")));
  EXPECT_EQ(spec["engine"], "custom");
  EXPECT_EQ(spec["max_steps"], "0");  // defaults are written too, 64-bit numbers as strings
  EXPECT_TRUE(std::filesystem::exists(dir_ / (kToken + "/launch.json")));

  job.started(100);
  EXPECT_EQ(WaitForState(AttemptStatus::RUNNING).token(), kToken);
  Append(dir_ / (kToken + "/events-0.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  job.ended({});
  AcceptReport();
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.exit_status(), 0);
  EXPECT_FALSE(status.stopped());
  EXPECT_EQ(nlohmann::json::parse(ReadAll(dir_ / (kToken + "/exit.json")))["exit_status"], 0);

  Answer(Desired({}));
  EXPECT_EQ(WaitForPoll([](const auto& request) { return request.attempts_size() == 0; }).generation(),
            generation_);
}

TEST_F(AgentTest, OnlyTheAccountOfTheJobCanReadTheValuesOfVariables) {
  StartAgent();
  v1::SynchronizeResponse desired = Desired({kToken});
  auto& variables = *desired.mutable_attempts(0)->mutable_spec()->mutable_env()->mutable_fields();
  variables["DATABASE_URL"].set_string_value("db://ada:s3cret@host");  // not redacted because of its name
  AnswerPoll(desired);
  WaitForJob();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / kToken)) {
    if (!entry.is_regular_file() || !absl::StrContains(ReadAll(entry.path()), "s3cret")) continue;
    names.push_back(entry.path().filename().string());
    struct stat found {};
    ASSERT_EQ(stat(entry.path().c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u) << entry.path();
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("spec.json", "launch.json"));
}

// Otherwise the coordinator would conclude that a run that ends early used other software.
TEST_F(AgentTest, ReportsTheEndOnlyWhenTheVersionsOfTheTrainerAreKnown) {
  frameworks_.clear();
  frameworks_.push_back(NewNativeFramework("/bin/true"));
  frameworks_.push_back(NewCustomFramework());
  Provenance asked(loop_, {"", "", "/bin/true"}, {});
  const AttemptHost host{loop_, processes_, follower_, asked, frameworks_, launch_, "n0", "alloc"};
  agent_.emplace(loop_, client_, host, AgentOptions{}, [this](Agent::Exit exit) { exited_ = exit; });
  asked.AskTrainer(processes_, [this] { agent_->Refresh(); });
  agent_->Start();
  v1::SynchronizeResponse desired = Desired({"native", "own"});
  desired.mutable_attempts(0)->mutable_spec()->set_engine("native/ddp");
  AnswerPoll(desired);
  WaitForJob(3);
  for (size_t i = 1; i < 3; ++i) processes_.jobs[i].started(100), processes_.jobs[i].ended({});
  const auto state_of = [](const v1::SynchronizeRequest& request, const std::string& token) {
    for (const auto& attempt : request.attempts()) {
      if (attempt.token() == token) return attempt.state();
    }
    return AttemptStatus::STATE_UNSPECIFIED;
  };
  const auto seen =
      WaitForPoll([&](const auto& request) { return state_of(request, "own") == AttemptStatus::ENDED; });
  EXPECT_EQ(state_of(seen, "native"), AttemptStatus::RUNNING);
  processes_.jobs[0].ended({});
  Answer(desired);
  WaitForPoll([&](const auto& request) { return state_of(request, "native") == AttemptStatus::ENDED; });
  agent_.reset();
}

TEST_F(AgentTest, ReportsTheCodeOfAProgramAndItsEndWhenGitHasEnded) {
  Append(dir_ / "train.py", "print(1)\n");
  std::filesystem::create_directories(dir_ / ".git/refs/heads");
  Append(dir_ / ".git/HEAD", "ref: refs/heads/main\n");
  Append(dir_ / ".git/refs/heads/main", "0123456789012345678901234567890123456789\n");
  provenance_.OnDiff([this] { agent_->Refresh(); });
  provenance_.AskTrainer(processes_, [] {});  // otherwise provenance.json would wait for its versions
  StartAgent();
  v1::SynchronizeResponse desired = Desired({kToken});
  desired.mutable_attempts(0)->mutable_spec()->add_command(dir_ / "train.py");
  AnswerPoll(desired);
  auto& program = WaitForJob(2);
  program.started(100);
  const v1::CodeSnapshot running = WaitForState(AttemptStatus::RUNNING).code();
  ASSERT_EQ(running.files_size(), 1);
  EXPECT_EQ(running.files(0).path(), dir_ / "train.py");
  EXPECT_EQ(running.git_commit(), "0123456789012345678901234567890123456789");
  EXPECT_FALSE(running.has_git_dirty());

  program.ended({});
  ASSERT_TRUE(Wait([&] { return std::filesystem::exists(dir_ / (kToken + "/exit.json")); }));
  AnswerPoll(desired);
  EXPECT_EQ(WaitForPoll([](const auto&) { return true; }).attempts(0).state(), AttemptStatus::RUNNING);
  const auto& git = processes_.jobs[0];
  Append(git.job.commands[0].output, "+print(2)\n");
  git.ended({});
  const v1::CodeSnapshot ended = WaitForState(AttemptStatus::ENDED).code();
  EXPECT_TRUE(ended.git_dirty());
  EXPECT_EQ(ended.diff_path(), dir_ / (kToken + "/code.diff"));
  const auto written = nlohmann::json::parse(ReadAll(dir_ / (kToken + "/provenance.json")));
  EXPECT_EQ(written["code"]["git"]["commit"], running.git_commit());
}

// The next attempt is prepared while another one runs.
TEST_F(AgentTest, TheCodeIsThatOfTheTimeWhenAnAttemptBegins) {
  Append(dir_ / "train.py", "print(1)\n");
  provenance_.AskTrainer(processes_, [] {});  // otherwise provenance.json would wait for its versions
  StartAgent();
  v1::SynchronizeResponse desired = Desired({"a", "b"});
  for (auto& attempt : *desired.mutable_attempts()) {
    attempt.set_in_turn(true);
    attempt.mutable_spec()->add_command(dir_ / "train.py");
  }
  AnswerPoll(desired);
  WaitForJob().started(100);
  ASSERT_TRUE(Wait([&] { return std::filesystem::exists(dir_ / "b/provenance.json"); }));
  Append(dir_ / "train.py", "print(2)\n");
  processes_.jobs[0].ended({});
  WaitForJob(2).started(101);
  const auto request = WaitForPoll([](const auto& r) {
    return r.attempts_size() == 2 && r.attempts(1).state() == AttemptStatus::RUNNING;
  });
  EXPECT_EQ(request.attempts(0).code().files(0).sha256(), Sha256("print(1)\n"));
  EXPECT_EQ(request.attempts(1).code().files(0).sha256(), Sha256("print(1)\nprint(2)\n"));
  const auto written = nlohmann::json::parse(ReadAll(dir_ / "b/provenance.json"));
  EXPECT_EQ(written["code"]["files"][0]["sha256"], Sha256("print(1)\nprint(2)\n"));
}

TEST_F(AgentTest, ReportsTheEndOnlyWhenEveryLineIsDurable) {
  RunToStarted();
  Append(dir_ / (kToken + "/events-0.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  processes_.jobs[0].ended({});
  ASSERT_TRUE(Wait([this] { return !client_.reports.empty(); }));
  EXPECT_EQ(client_.polls.back().request.attempts(0).state(), AttemptStatus::RUNNING);
  AcceptReport();
  WaitForState(AttemptStatus::ENDED);
}

TEST_F(AgentTest, SaysWhyAProgramFailed) {
  RunToStarted();
  Append(dir_ / (kToken + "/rank-0.err"), "no such file\n");
  processes_.jobs[0].ended({2, 0, false});
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.exit_status(), 2);
  EXPECT_EQ(status.cause(), v1::Attempt::CAUSE_UNSPECIFIED);
  EXPECT_THAT(status.message(), HasSubstr("no such file"));
}

TEST_F(AgentTest, SaysThatAProgramCouldNotBeStarted) {
  StartAgent();
  AnswerPoll(Desired({kToken}));
  WaitForJob().started(absl::NotFoundError("Could not start 'program': No such file or directory."));
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.cause(), v1::Attempt::LAUNCH_ERROR);
  EXPECT_THAT(status.message(), HasSubstr("'program'"));
}

TEST_F(AgentTest, ReportsAnOutputFileThatCannotBeCreatedAsAStorageError) {
  StartAgent();
  AnswerPoll(Desired({kToken}));
  WaitForJob().started(
      absl::UnavailableError("Could not start 'program', because of '/runs/rank-0.out': No space."));
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.cause(), v1::Attempt::STORAGE_ERROR);
  EXPECT_THAT(status.message(), HasSubstr("/runs/rank-0.out"));
}

TEST_F(AgentTest, SaysThatAnEngineOrADirectoryCannotBeHad) {
  StartAgent();
  auto desired = Desired({kToken});
  desired.mutable_attempts(0)->mutable_spec()->set_engine("native/ddp");
  AnswerPoll(desired);
  EXPECT_THAT(WaitForState(AttemptStatus::ENDED).message(), HasSubstr("/nowhere/trainer"));
  desired = Desired({"u"});
  desired.mutable_attempts(0)->set_directory("/proc/nowhere");
  Answer(desired);
  const auto request =
      WaitForPoll([](const auto& r) { return r.attempts_size() == 1 && r.attempts(0).token() == "u"; });
  EXPECT_EQ(request.attempts(0).cause(), v1::Attempt::STORAGE_ERROR);
  EXPECT_THAT(request.attempts(0).message(), HasSubstr("/proc/nowhere"));
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, ReportsAFullDiskAndStartsTheNextAttemptWhenThereIsRoom) {
  const std::string runs = dir_ / "runs";
  std::filesystem::create_directory(runs);
  if (geteuid() != 0 || mount("tmpfs", runs.c_str(), "tmpfs", 0, "size=64k,mode=700") != 0)
    GTEST_SKIP() << "needs root and the permission to mount a small filesystem";
  const absl::Cleanup unmount = [&runs] { umount2(runs.c_str(), MNT_DETACH); };
  {
    std::ofstream ballast(runs + "/ballast");
    while (ballast << std::string(4096, 'x') << std::flush) {
    }
  }
  StartAgent();
  v1::SynchronizeResponse desired = Desired({kToken});
  desired.mutable_attempts(0)->set_directory(absl::StrCat(runs, "/", kToken));
  AnswerPoll(desired);
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.cause(), v1::Attempt::STORAGE_ERROR);
  EXPECT_THAT(status.message(), HasSubstr("No space left on device"));
  EXPECT_THAT(status.message(), HasSubstr(runs));
  EXPECT_TRUE(processes_.jobs.empty());

  std::filesystem::remove(runs + "/ballast");
  desired = Desired({"u"});
  desired.mutable_attempts(0)->set_directory(runs + "/u");
  Answer(desired);
  EXPECT_EQ(WaitForJob().job.tag, "SCALELAB_ATTEMPT=u");
}

TEST_F(AgentTest, StopsWithTheGraceThatWasAskedFor) {
  RunToStarted();
  auto desired = Desired({kToken}, true);
  desired.mutable_attempts(0)->set_grace_seconds(2);
  Answer(desired);
  ASSERT_TRUE(Wait([this] { return processes_.jobs[0].stopped_with.has_value(); }));
  EXPECT_EQ(*processes_.jobs[0].stopped_with, absl::Seconds(2));
  processes_.jobs[0].ended({143, 0, true});
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_TRUE(status.stopped());
  EXPECT_EQ(status.exit_status(), 143);
  EXPECT_EQ(status.cause(), v1::Attempt::CAUSE_UNSPECIFIED);
}

TEST_F(AgentTest, StopsAnAttemptThatWasToBeStoppedWhileTheCoordinatorWasAway) {
  RunToStarted();
  AnswerPoll(absl::UnavailableError("gone"));
  AnswerPoll(Desired({kToken}, true));
  WaitForPoll([](const auto&) { return true; });
  EXPECT_TRUE(processes_.jobs[0].stopped_with.has_value());
}

TEST_F(AgentTest, FollowsWithoutLaunchingOnTheOtherNodesOfAnAttempt) {
  v1::SynchronizeResponse desired = StartOnSecondNode();
  AnswerPoll(desired);
  WaitForState(AttemptStatus::RUNNING);
  EXPECT_TRUE(processes_.jobs.empty());
  EXPECT_FALSE(std::filesystem::exists(dir_ / (kToken + "/launch.json")));
  std::ofstream(dir_ / (kToken + "/events-1.jsonl"))
      << R"({"time":1,"event":"step","step":0,"metrics":{"a":1}})" << std::endl;
  AcceptReport();  // the query for the durable position
  ASSERT_TRUE(Wait([this] { return !client_.reports.empty(); }));
  EXPECT_EQ(client_.reports.front().request.batches(0).rank(), 1);
  AcceptReport();

  // Here its ranks are not descendants of the worker. The worker finds them by their tag, and ends them
  // before the attempt ends. It kills the rank that ignores SIGTERM with SIGKILL.
  const pid_t rank = fork();
  if (rank == 0) {
    setenv("SCALELAB_ATTEMPT", kToken.c_str(), 1);
    execl("/bin/sh", "sh", "-c", "trap '' TERM; while :; do sleep 1; done", nullptr);
    _exit(127);
  }
  ASSERT_TRUE(Wait([&] { return HasEnvironment(rank, "SCALELAB_ATTEMPT=" + kToken); }));
  desired.set_generation(++generation_);
  desired.mutable_attempts(0)->set_stop(true);
  desired.mutable_attempts(0)->set_grace_seconds(0.2);
  AnswerPoll(desired);
  const AttemptStatus ended = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(ended.cause(), v1::Attempt::CAUSE_UNSPECIFIED);
  int status = 0;
  EXPECT_EQ(waitpid(rank, &status, WNOHANG), rank);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(dir_ / (kToken + "/exit.json")));
}

TEST_F(AgentTest, FollowsAnAttemptThatTheFirstNodeHasAlreadyLaunched) {
  std::filesystem::create_directories(dir_ / kToken);
  Append(dir_ / (kToken + "/launch.json"), "{}");  // the directory is shared
  v1::SynchronizeResponse desired = StartOnSecondNode();
  AnswerPoll(desired);
  WaitForState(AttemptStatus::RUNNING);
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, DeliversTheEventsOfAnotherNodesAttemptThatIsAlreadyToBeStopped) {
  std::filesystem::create_directories(dir_ / kToken);
  Append(dir_ / (kToken + "/events-1.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  v1::SynchronizeResponse desired = StartOnSecondNode(true);
  AnswerPoll(desired);
  AcceptReport();  // the query for the durable position
  ASSERT_TRUE(Wait([this] { return !client_.reports.empty(); }));
  EXPECT_EQ(client_.reports.front().request.batches(0).events_size(), 1);
  WaitForState(AttemptStatus::RUNNING);
  AcceptReport();
  EXPECT_TRUE(WaitForState(AttemptStatus::ENDED).stopped());
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, DeliversTheEventsOfAnEarlierWorkersAttemptThatIsToBeStopped) {
  std::filesystem::create_directories(dir_ / kToken);
  Append(dir_ / (kToken + "/launch.json"), "{}");
  Append(dir_ / (kToken + "/events-0.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  StartAgent();
  AnswerPoll(Desired({kToken}, true));
  AcceptReport();  // the query for the durable position
  AcceptReport();
  EXPECT_TRUE(WaitForState(AttemptStatus::ENDED).stopped());
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, ReportsAnEventFileThatIsNotARegularFile) {
  RunToStarted();
  ASSERT_EQ(mkfifo((dir_ / (kToken + "/events-0.jsonl")).c_str(), 0600), 0);
  processes_.jobs[0].ended({});
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.cause(), v1::Attempt::NO_FINISH);
  EXPECT_THAT(status.message(), HasSubstr("events-0.jsonl is a FIFO, not a regular file"));
  EXPECT_THAT(ReadAll(dir_ / (kToken + "/exit.json")), HasSubstr("is a FIFO"));
}

TEST_F(AgentTest, DoesNotStartWhatIsToBeStopped) {
  StartAgent();
  AnswerPoll(Desired({kToken}, true));
  EXPECT_TRUE(WaitForState(AttemptStatus::ENDED).stopped());
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, StopsAndForgetsWhatIsNotWantedAnyMore) {
  RunToStarted();
  Answer(Desired({}));
  WaitForPoll([](const auto& request) { return request.attempts_size() == 0; });
  ASSERT_TRUE(Wait([this] { return processes_.jobs[0].stopped_with.has_value(); }));
  Append(dir_ / (kToken + "/events-0.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  processes_.jobs[0].ended({143, 0, true});
  Answer(Desired({"u"}));
  WaitForJob(2);
  EXPECT_TRUE(client_.reports.empty());
}

TEST_F(AgentTest, DoesNotLaunchAgainWhatAnEarlierWorkerLaunched) {
  std::filesystem::create_directories(dir_ / kToken);
  Append(dir_ / (kToken + "/launch.json"), "{}");
  Append(dir_ / (kToken + "/events-0.jsonl"), "{\"time\":1,\"event\":\"finish\"}\n");
  StartAgent();
  AnswerPoll(Desired({kToken}));
  ASSERT_TRUE(Wait([this] { return !client_.reports.empty(); }));
  // The first batch is empty: the query for the position.
  EXPECT_EQ(client_.reports.front().request.batches(0).end_position(), 0);
  AcceptReport();
  AcceptReport();
  const AttemptStatus status = WaitForState(AttemptStatus::ENDED);
  EXPECT_EQ(status.cause(), v1::Attempt::WORKER_LOST);
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentTest, KeepsTrainingAndTriesAgainWhileTheCoordinatorIsAway) {
  RunToStarted();
  for (int i = 0; i < 3; ++i) AnswerPoll(absl::UnavailableError("gone"));
  AnswerPoll(absl::DeadlineExceededError("silent"));
  WaitForState(AttemptStatus::RUNNING);
  EXPECT_FALSE(processes_.jobs[0].stopped_with.has_value());
  EXPECT_FALSE(exited_.has_value());
}

TEST_F(AgentTest, GivesUpWhenTheCoordinatorStaysAway) {
  StartAgent({.give_up_after = absl::Milliseconds(1)});
  while (!exited_.has_value()) {
    ASSERT_TRUE(Wait([this] { return exited_.has_value() || !client_.polls.empty(); }));
    if (!client_.polls.empty()) Answer(absl::UnavailableError("gone"));
  }
  EXPECT_EQ(*exited_, Agent::Exit::kGaveUp);
}

TEST_F(AgentTest, DoesNotGiveUpWhileAnAttemptRuns) {
  RunToStarted({.give_up_after = absl::Milliseconds(1)});
  for (int i = 0; i < 5; ++i) AnswerPoll(absl::UnavailableError("gone"));
  WaitForState(AttemptStatus::RUNNING);
  EXPECT_FALSE(processes_.jobs[0].stopped_with.has_value());
  EXPECT_FALSE(exited_.has_value());

  // Events that are not delivered stay in their file.
  const std::string finish = "{\"time\":1,\"event\":\"finish\"}\n";
  Append(dir_ / (kToken + "/events-0.jsonl"), finish);
  processes_.jobs[0].ended({});
  while (!exited_.has_value()) {
    ASSERT_TRUE(Wait([this] { return exited_.has_value() || !client_.polls.empty(); }));
    if (!client_.polls.empty()) Answer(absl::UnavailableError("gone"));
  }
  EXPECT_EQ(*exited_, Agent::Exit::kGaveUp);
  EXPECT_EQ(ReadAll(dir_ / (kToken + "/events-0.jsonl")), finish);
  EXPECT_TRUE(std::filesystem::exists(dir_ / (kToken + "/exit.json")));
}

TEST_F(AgentTest, DoesNotGiveUpBecauseTheWallClockIsSet) {
  StartAgent({.give_up_after = absl::Minutes(10)});
  const WallClockShift shift(3600);
  for (int i = 0; i < 3; ++i) AnswerPoll(absl::UnavailableError("gone"));
  WaitForPoll([](const auto&) { return true; });
  EXPECT_FALSE(exited_.has_value());
}

TEST_F(AgentTest, StopsEverythingAndExitsWhenItIsDenied) {
  RunToStarted();
  Answer(absl::UnauthenticatedError("who are you"));
  ASSERT_TRUE(Wait([this] { return processes_.jobs[0].stopped_with.has_value(); }));
  EXPECT_FALSE(exited_.has_value());  // a process is still running
  processes_.jobs[0].ended({143, 0, true});
  ASSERT_TRUE(Wait([this] { return exited_.has_value(); }));
  EXPECT_EQ(*exited_, Agent::Exit::kDenied);
}

TEST_F(AgentTest, ExitsWhenThereIsNothingMoreToDoAndNoAttemptIsLeft) {
  RunToStarted();
  auto desired = Desired({kToken});
  desired.set_terminate(true);
  Answer(desired);
  WaitForState(AttemptStatus::RUNNING);
  EXPECT_FALSE(exited_.has_value());
  processes_.jobs[0].ended({});
  WaitForState(AttemptStatus::ENDED);
  desired = Desired({});
  desired.set_terminate(true);
  Answer(desired);
  ASSERT_TRUE(Wait([this] { return exited_.has_value(); }));
  EXPECT_EQ(*exited_, Agent::Exit::kDone);
}

TEST_F(AgentTest, LeavesAfterItHasSaidHowEverythingEnded) {
  RunToStarted();
  agent_->Leave();
  EXPECT_TRUE(processes_.jobs[0].stopped_with.has_value());
  EXPECT_TRUE(WaitForPoll([](const auto& request) { return request.leaving(); }).leaving());
  Answer(Desired({kToken, "u"}));  // no new attempt is begun
  processes_.jobs[0].ended({143, 0, true});
  WaitForState(AttemptStatus::ENDED);
  EXPECT_FALSE(exited_.has_value());
  Answer(Desired({kToken}));
  ASSERT_TRUE(Wait([this] { return exited_.has_value(); }));
  EXPECT_EQ(*exited_, Agent::Exit::kDone);
  EXPECT_EQ(processes_.jobs.size(), 1u);
}

TEST_F(AgentTest, RequestsACheckpointBeforeItStopsAnAttemptThatAnotherOneContinues) {
  StartAgent();
  auto desired = Desired({kToken});
  desired.mutable_attempts(0)->set_checkpoint_directory("/checkpoints");
  AnswerPoll(desired);
  WaitForJob(1).started(100);
  WaitForState(AttemptStatus::RUNNING);
  agent_->Leave();
  EXPECT_TRUE(processes_.jobs[0].notified);
  EXPECT_FALSE(processes_.jobs[0].stopped_with.has_value());
  processes_.jobs[0].ended({128 + SIGUSR1, 0, false});
  const auto request = WaitForPoll(
      [](const auto& r) { return r.attempts_size() == 1 && r.attempts(0).state() == AttemptStatus::ENDED; });
  EXPECT_TRUE(request.attempts(0).stopped());
}

TEST_F(AgentTest, LeavesEvenIfNobodyAnswers) {
  StartAgent({.leave_within = absl::Milliseconds(1)});
  agent_->Leave();
  ASSERT_TRUE(Wait([this] { return exited_.has_value(); }));
}

// --- Attempts that are assigned in advance

class AgentTurnsTest : public AgentTest {
 protected:
  AgentTurnsTest() {
    StartAgent();
    AnswerPoll(InTurn({"a", "b", "c"}));
  }
  v1::SynchronizeResponse InTurn(const std::vector<std::string>& tokens) {
    auto desired = Desired(tokens);
    for (auto& attempt : *desired.mutable_attempts()) attempt.set_in_turn(attempt.token() != "a");
    return desired;
  }
  static std::string StateOf(const v1::SynchronizeRequest& request, const std::string& token) {
    for (const auto& status : request.attempts()) {
      if (status.token() == token) return AttemptStatus::State_Name(status.state());
    }
    return "unknown";
  }
  void WaitForStates(const std::string& a, const std::string& b, const std::string& c) {
    WaitForPoll([&](const auto& request) {
      return StateOf(request, "a") == a && StateOf(request, "b") == b && StateOf(request, "c") == c;
    });
  }
};

TEST_F(AgentTurnsTest, OneBeginsWhenNoProcessOfTheOtherIsLeftWithoutACall) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  EXPECT_EQ(processes_.jobs.size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b/launch.json"));
  Append(dir_ / "a/events-0.jsonl", "{\"time\":1,\"event\":\"finish\"}\n");
  processes_.jobs[0].ended({});
  // The job begins although no call was answered and no event is stored.
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=b");
  EXPECT_EQ(processes_.jobs.size(), 2u);
  processes_.jobs[1].started(101);
  processes_.jobs[1].ended({});
  EXPECT_EQ(WaitForJob(3).job.tag, "SCALELAB_ATTEMPT=c");
  AcceptReport();
  WaitForStates("ENDED", "ENDED", "PREPARING");
}

TEST_F(AgentTurnsTest, OneThatCannotStartGivesItsTurnToTheNext) {
  WaitForJob(1).started(absl::NotFoundError("Could not start 'program': No such file or directory."));
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=b");
  WaitForStates("ENDED", "PREPARING", "PREPARING");
}

TEST_F(AgentTurnsTest, OneThatIsStoppedNeverBegins) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  auto desired = InTurn({"a", "b", "c"});
  desired.mutable_attempts(1)->set_stop(true);
  Answer(desired);
  WaitForStates("RUNNING", "ENDED", "PREPARING");
  processes_.jobs[0].ended({});
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=c");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b/launch.json"));
}

TEST_F(AgentTurnsTest, OneThatIsNoLongerDesiredNeverBegins) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  Answer(InTurn({"a", "c"}));
  WaitForStates("RUNNING", "unknown", "PREPARING");
  processes_.jobs[0].ended({});
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=c");
}

TEST_F(AgentTurnsTest, NoneBeginsWhileAnAbandonedOneHasProcesses) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  Answer(InTurn({"b", "c"}));
  WaitForStates("unknown", "PREPARING", "PREPARING");
  EXPECT_TRUE(processes_.jobs[0].stopped_with.has_value());
  EXPECT_EQ(processes_.jobs.size(), 1u);
  processes_.jobs[0].ended({143, 0, true});
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=b");
}

TEST_F(AgentTurnsTest, NoneBeginsWhenTheWorkerLeaves) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  agent_->Leave();
  WaitForStates("RUNNING", "ENDED", "ENDED");
  processes_.jobs[0].ended({143, 0, true});
  WaitForStates("ENDED", "ENDED", "ENDED");
  EXPECT_EQ(processes_.jobs.size(), 1u);
}

TEST_F(AgentTurnsTest, TheTimeOfTheProcessesIsReported) {
  WaitForJob(1).started(100);
  WaitForStates("RUNNING", "PREPARING", "PREPARING");
  processes_.jobs[0].ended({});
  const auto request = WaitForPoll([](const auto& r) { return StateOf(r, "a") == "ENDED"; });
  EXPECT_GT(request.attempts(0).run_seconds(), 0);
  EXPECT_LT(request.attempts(0).run_seconds(), 60);
}

// A study with a noise guard.
class AgentNoiseTest : public AgentTest {
 protected:
  v1::SynchronizeResponse Guarded(std::vector<std::string> tokens, double interval) {
    v1::SynchronizeResponse response = Desired(std::move(tokens));
    for (auto& attempt : *response.mutable_attempts()) {
      attempt.set_calibration_seconds(0.01);
      attempt.set_calibration_interval(interval);
    }
    return response;
  }
  // Runs one attempt to its end. Returns the measured noise of the node.
  v1::NodeNoise RunOne(double interval, const std::string& token = kToken, size_t number = 1) {
    Answer(Guarded({token}, interval));
    WaitForJob(number).started(100);
    WaitForState(AttemptStatus::RUNNING);
    processes_.jobs[number - 1].ended({});
    return WaitForState(AttemptStatus::ENDED).noise();
  }
};

TEST_F(AgentNoiseTest, TheNodeIsCalibratedBeforeAndAfterAnAttempt) {
  StartAgent();
  WaitForPoll([](const auto&) { return true; });
  const v1::NodeNoise noise = RunOne(1e-9);
  EXPECT_EQ(noise.node(), "n0");
  EXPECT_GT(noise.before().compute_rate(), 0);
  EXPECT_GT(noise.after().compute_rate(), 0);
  EXPECT_NE(noise.before().time().nanos(), noise.after().time().nanos());
}

TEST_F(AgentNoiseTest, ShortAttemptsShareACalibration) {
  StartAgent();
  WaitForPoll([](const auto&) { return true; });
  const v1::NodeNoise first = RunOne(3600);
  EXPECT_TRUE(first.has_before());
  EXPECT_FALSE(first.has_after());
  const v1::NodeNoise second = RunOne(3600, "u", 2);
  EXPECT_EQ(second.before().DebugString(), first.before().DebugString());
}

TEST_F(AgentNoiseTest, WithoutAGuardNothingIsMeasured) {
  RunToStarted();
  processes_.jobs[0].ended({});
  EXPECT_FALSE(WaitForState(AttemptStatus::ENDED).has_noise());
}

TEST_F(AgentNoiseTest, AnAttemptThatIsStoppedDuringACalibrationNeverBegins) {
  StartAgent();
  AnswerPoll(Guarded({kToken}, 3600));
  AnswerPoll(Desired({kToken}, true));
  WaitForState(AttemptStatus::ENDED);
  EXPECT_TRUE(processes_.jobs.empty());
}

TEST_F(AgentNoiseTest, AnAttemptThatIsForgottenDuringACalibrationNeverBegins) {
  StartAgent();
  auto desired = Guarded({kToken}, 3600);
  desired.mutable_attempts(0)->set_calibration_seconds(0.3);
  AnswerPoll(desired);
  AnswerPoll(Desired({}));
  WaitForPoll([](const auto& request) { return request.attempts_size() == 0; });
  Answer(Guarded({"u"}, 3600));
  EXPECT_EQ(WaitForJob().job.tag, "SCALELAB_ATTEMPT=u") << "after the same calibration";
}

TEST_F(AgentNoiseTest, TheNextAttemptBeginsAfterTheCalibration) {
  StartAgent();
  v1::SynchronizeResponse desired = Guarded({"a", "b"}, 1e-9);
  for (auto& attempt : *desired.mutable_attempts()) attempt.set_in_turn(true);
  AnswerPoll(desired);
  WaitForJob(1).started(100);
  processes_.jobs[0].ended({});
  EXPECT_EQ(WaitForJob(2).job.tag, "SCALELAB_ATTEMPT=b");
  processes_.jobs[1].started(101);
  const auto request = WaitForPoll(
      [](const auto& r) { return r.attempts_size() == 2 && r.attempts(0).state() == AttemptStatus::ENDED; });
  EXPECT_TRUE(request.attempts(0).noise().has_after());
}

class AgentNoiseOnSecondNodeTest : public AgentNoiseTest {
 protected:
  // Follows an attempt, and stops it as the coordinator does when the first node has reported its end. Returns
  // the measured noise of this node.
  v1::NodeNoise Follow(bool finished) {
    v1::SynchronizeResponse desired = StartOnSecondNode();
    desired.mutable_attempts(0)->set_calibration_seconds(0.01);
    desired.mutable_attempts(0)->set_calibration_interval(1e-9);
    AnswerPoll(desired);
    WaitForState(AttemptStatus::RUNNING);
    AcceptReport();  // the query for the durable position
    desired.set_generation(++generation_);
    desired.mutable_attempts(0)->set_stop(true);
    desired.mutable_attempts(0)->set_finished(finished);
    AnswerPoll(desired);
    return WaitForState(AttemptStatus::ENDED).noise();
  }
};

TEST_F(AgentNoiseOnSecondNodeTest, TheNodeIsCalibratedWhenTheRanksHaveFinished) {
  const v1::NodeNoise noise = Follow(true);
  EXPECT_GT(noise.before().compute_rate(), 0);
  EXPECT_GT(noise.after().compute_rate(), 0);
}

TEST_F(AgentNoiseOnSecondNodeTest, TheNodeIsNotCalibratedAfterAnAttemptThatWasStopped) {
  EXPECT_FALSE(Follow(false).has_after());
}

TEST_F(AgentNoiseTest, AWorkerThatLeavesDoesNotCalibrate) {
  StartAgent();
  auto desired = Guarded({kToken}, 1e-9);
  AnswerPoll(desired);
  WaitForJob().started(100);
  WaitForState(AttemptStatus::RUNNING);
  agent_->Leave();
  processes_.jobs[0].ended({143, 0, true});
  EXPECT_FALSE(WaitForState(AttemptStatus::ENDED).noise().has_after());
}

// Ranks of slurmstepd. The test decides when they are gone.
class HandTagged final : public TaggedProcesses {
 public:
  explicit HandTagged(std::function<void()>* gone) : gone_(gone) {}
  void End(absl::Duration, std::function<void()> gone) override { *gone_ = std::move(gone); }

 private:
  std::function<void()>* const gone_;
};

TEST_F(AgentTest, EndsTheRanksOfAnAttemptThatIsAbandonedWhileItsOutputIsRead) {
  std::function<void()> gone;
  launch_.launcher = Launcher::kSrun;
  host_.tagged = [&gone](const std::string&) { return std::make_unique<HandTagged>(&gone); };
  StartAgent();
  v1::SynchronizeResponse desired = Desired({kToken});
  auto& rule = (*desired.mutable_attempts(0)->mutable_spec()->mutable_extract()->mutable_fields())["a"];
  (*rule.mutable_struct_value()->mutable_fields())["regex"].set_string_value("a=(.*)");
  AnswerPoll(desired);
  WaitForJob().started(100);
  WaitForState(AttemptStatus::RUNNING);
  processes_.jobs[0].ended({});  // the loop reads the rest of the output after the answer
  Answer(Desired({}));
  WaitForPoll([](const auto& request) { return request.attempts_size() == 0; });
  ASSERT_TRUE(gone != nullptr) << "ranks that outlived srun were not ended";
  gone();
  loop_.Step();  // destroys the attempt
}

TEST_F(AgentTest, LeavesAlthoughGitHasNotEnded) {
  Append(dir_ / "train.py", "print(1)\n");
  std::filesystem::create_directories(dir_ / ".git/refs/heads");
  Append(dir_ / ".git/HEAD", "ref: refs/heads/main\n");
  provenance_.OnDiff([this] { agent_->Refresh(); });
  provenance_.AskTrainer(processes_, [] {});
  StartAgent({.leave_within = absl::Milliseconds(1)});
  v1::SynchronizeResponse desired = Desired({kToken});
  desired.mutable_attempts(0)->mutable_spec()->add_command(dir_ / "train.py");
  AnswerPoll(desired);
  auto& program = WaitForJob(2);  // the first job is git
  program.started(100);
  WaitForState(AttemptStatus::RUNNING);
  program.ended({});
  ASSERT_TRUE(Wait([&] { return std::filesystem::exists(dir_ / (kToken + "/exit.json")); }));
  loop_.RunUntil([] { return false; }, absl::Milliseconds(50));  // reads all its events
  agent_->Leave();
  loop_.RunUntil([] { return false; }, absl::Milliseconds(50));
  processes_.jobs[0].ended({});
  ASSERT_TRUE(Wait([this] { return exited_.has_value(); }));
}

}  // namespace
}  // namespace scalelab::worker
