#include "worker/process/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "files/lock_file.h"
#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"
#include "worker/process/process_tree.h"
#include "worker/process/spawner.h"
#include "worker/process/spawner_wire.h"

namespace scalelab::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kPatience = absl::Seconds(30);

bool Gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

// Tests real processes with a real spawner. The scripts report their progress as lines in $FIFO.
class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() {
    EXPECT_EQ(mkfifo((dir_ / "fifo").c_str(), 0600), 0);
    fifo_ = open((dir_ / "fifo").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    const auto spawner = ForkSpawner();
    EXPECT_TRUE(spawner.ok());
    spawner_ = *spawner;
    processes_.emplace(loop_, spawner_, [this] { lost_ = true; });
    loop_.Watch(fifo_, [this] {
      char buffer[4096];
      const ssize_t got = read(fifo_, buffer, sizeof buffer);
      if (got > 0) said_.append(buffer, got);
    });
  }
  ~ProcessTest() override {
    processes_.reset();
    close(fifo_);
  }

  Command Shell(const std::string& script) {
    return {{"sh", "-c", script},
            {"PATH=/usr/bin:/bin", "TAG=1", "FIFO=" + (dir_ / "fifo")},
            dir_.path(),
            dir_ / "out",
            dir_ / "err"};
  }
  uint64_t Start(std::vector<Command> commands, absl::Duration grace = absl::Seconds(20)) {
    return processes_->Start(
        {"TAG=1", std::move(commands), grace},
        [this](absl::StatusOr<int> started) { started_ = std::move(started); },
        [this](JobResult result) { ended_ = result; });
  }
  std::vector<std::string> WaitForLines(size_t count) {
    const auto lines = [this] {
      return std::vector<std::string>(absl::StrSplit(said_, '\n', absl::SkipEmpty()));
    };
    EXPECT_TRUE(loop_.RunUntil([&] { return lines().size() >= count; }, kPatience)) << said_;
    return lines();
  }
  pid_t WaitForPid() {
    int pid = 0;
    EXPECT_TRUE(absl::SimpleAtoi(WaitForLines(1).back(), &pid));
    return pid;
  }
  JobResult WaitForEnd() {
    EXPECT_TRUE(loop_.RunUntil([&] { return ended_.has_value(); }, kPatience));
    return ended_.value_or(JobResult{-1, -1, false});
  }

  TempDir dir_;
  EventLoop loop_;
  int fifo_;
  SpawnerHandle spawner_;
  bool lost_ = false;
  std::string said_;
  std::optional<absl::StatusOr<int>> started_;
  std::optional<JobResult> ended_;
  std::optional<SpawnerProcesses> processes_;
};

TEST_F(ProcessTest, ReportsTheExitStatusAndKeepsTheOutputInItsFiles) {
  Start({Shell("echo hello; echo trouble >&2; pwd; exit 7")});
  const JobResult result = WaitForEnd();
  EXPECT_EQ(result.exit_status, 7);
  EXPECT_EQ(result.failed, 0);
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(ReadAll(dir_ / "out"), "hello\n" + dir_.path() + "\n");
  EXPECT_EQ(ReadAll(dir_ / "err"), "trouble\n");
  ASSERT_TRUE(started_.has_value());
  EXPECT_TRUE(started_->ok());
}

TEST_F(ProcessTest, ReportsASignalAs128PlusItsNumber) {
  Start({Shell("kill -SEGV $$")});
  EXPECT_EQ(WaitForEnd().exit_status, 128 + SIGSEGV);
}

TEST_F(ProcessTest, GivesACommandDefaultSignalsItsOwnSessionAndItsEnvironmentOnly) {
  Start({Shell(
      "grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$ | tr -d ' '; echo $$; env | grep -c . ")});
  EXPECT_EQ(WaitForEnd().exit_status, 0);
  const std::vector<std::string> lines = absl::StrSplit(ReadAll(dir_ / "out"), '\n');
  ASSERT_GE(lines.size(), 5u);
  EXPECT_THAT(lines[0], HasSubstr("0000000000000000"));
  EXPECT_THAT(lines[1], HasSubstr("0000000000000000"));
  EXPECT_EQ(lines[2], lines[3]);
  EXPECT_EQ(lines[4], "4");  // PATH, TAG, FIFO, and PWD, which the shell sets
}

TEST_F(ProcessTest, RunsACommandOnItsCoresOnly) {
  const int last = AllowedCpus().back();
  Command command = Shell("grep Cpus_allowed_list /proc/self/status");
  command.cpus = {last};
  Start({command});
  EXPECT_EQ(WaitForEnd().exit_status, 0);
  EXPECT_EQ(ReadAll(dir_ / "out"), "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
}

TEST_F(ProcessTest, SaysWhyACommandCannotBeStarted) {
  Command missing = Shell("");
  missing.argv = {"/nowhere/program"};
  Start({missing});
  ASSERT_TRUE(loop_.RunUntil([&] { return started_.has_value(); }, kPatience));
  EXPECT_EQ(started_->status().message(), "Could not start '/nowhere/program': No such file or directory.");
  EXPECT_TRUE(absl::IsNotFound(started_->status()));

  started_.reset();
  Command nowhere = Shell("true");
  nowhere.output = "/nowhere/out";
  Start({nowhere});
  ASSERT_TRUE(loop_.RunUntil([&] { return started_.has_value(); }, kPatience));
  EXPECT_THAT(started_->status().message(), HasSubstr("/nowhere/out"));
  EXPECT_TRUE(absl::IsUnavailable(started_->status())) << "a file of its output could not be opened";
  EXPECT_FALSE(ended_.has_value());
}

TEST_F(ProcessTest, LeavesNothingOfAJobWhoseLastCommandCannotBeStarted) {
  std::vector<Command> commands{Shell("sleep 1000 & echo $! > child; wait")};
  // The shell starts its child while the spawner starts these.
  commands.insert(commands.end(), 300, Shell("exit 0"));
  commands.push_back(Shell(""));
  commands.back().argv = {"/nowhere/program"};
  Start(std::move(commands));
  ASSERT_TRUE(loop_.RunUntil([&] { return started_.has_value(); }, kPatience));
  EXPECT_THAT(started_->status().message(), HasSubstr("/nowhere/program"));
  int child = 0;
  if (absl::SimpleAtoi(ReadAll(dir_ / "child"), &child)) {
    EXPECT_TRUE(Gone(child)) << "the child of the first command";
  }
  EXPECT_FALSE(ended_.has_value());
}

TEST_F(ProcessTest, DoesNotWaitForTheReaderOfAFifoThatIsTheOutput) {
  Command command = Shell("echo started");
  command.output = dir_ / "unread";
  ASSERT_EQ(mkfifo(command.output.c_str(), 0600), 0);
  Start({command});
  ASSERT_TRUE(loop_.RunUntil([this] { return started_.has_value(); }, kPatience));
  EXPECT_THAT(started_->status().message(), HasSubstr("because of '" + command.output + "'"));
}

TEST_F(ProcessTest, EndsACommandWithTerm) {
  // A shell handles signals only between commands, so the commands are short.
  const uint64_t id =
      Start({Shell("trap 'echo bye >$FIFO; exit 3' TERM; echo ready >$FIFO; while :; do sleep 0.05; done")});
  WaitForLines(1);
  processes_->Stop(id, kPatience);
  const JobResult result = WaitForEnd();
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(WaitForLines(2).back(), "bye");
}

TEST_F(ProcessTest, KillsAStubbornCommandAfterTheGrace) {
  const uint64_t id = Start({Shell("trap '' TERM; echo $$ >$FIFO; while :; do sleep 1000; done")});
  const pid_t pid = WaitForPid();
  processes_->Stop(id, absl::Milliseconds(50));
  EXPECT_EQ(WaitForEnd().exit_status, 128 + SIGKILL);
  EXPECT_TRUE(Gone(pid));
}

TEST_F(ProcessTest, EndsOrphansInOtherSessionsWhenTheCommandIsStopped) {
  // The command ends immediately on SIGTERM; its grandchild, in another session, ignores it.
  const uint64_t id =
      Start({Shell("setsid sh -c 'trap \"\" TERM; echo $$ >$FIFO; while :; do sleep 1000; done' & wait")});
  const pid_t grandchild = WaitForPid();
  processes_->Stop(id, absl::Milliseconds(50));
  WaitForEnd();
  EXPECT_TRUE(Gone(grandchild));
}

TEST_F(ProcessTest, EndsWhatACommandLeftBehindBeforeItReportsTheEnd) {
  Start({Shell("mkfifo up; setsid sh -c 'echo $$ >up; exec sleep 1000' & read -r pid <up; echo $pid >$FIFO; "
               "exit 0")},
        absl::Seconds(20));
  EXPECT_EQ(WaitForEnd().exit_status, 0);
  EXPECT_TRUE(Gone(WaitForPid()));
}

TEST_F(ProcessTest, EndsEvenAnOrphanThatHidesWhereItCameFrom) {
  Start({Shell(
      "mkfifo up; env -i setsid sh -c 'echo $$ >up; exec sleep 1000' & read -r pid <up; echo $pid >$FIFO")});
  WaitForEnd();
  EXPECT_TRUE(Gone(WaitForPid()));
}

TEST_F(ProcessTest, LeavesTheOrphansOfOtherJobsAlone) {
  Command other = Shell("setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000");
  other.environment[1] = "TAG=2";
  processes_->Start(
      {"TAG=2", {other}, absl::Seconds(1)}, [](auto) {}, [](auto) {});
  const pid_t orphan = WaitForPid();
  Start({Shell("exit 4")});
  EXPECT_EQ(WaitForEnd().exit_status, 4);
  EXPECT_FALSE(Gone(orphan));
}

TEST_F(ProcessTest, StopsTheOtherCommandsOfAJobWhenOneFails) {
  Start({Shell("echo $$ >$FIFO; exec sleep 1000"), Shell("exit 5")});
  const JobResult result = WaitForEnd();
  EXPECT_EQ(result.exit_status, 5);
  EXPECT_EQ(result.failed, 1);
  EXPECT_FALSE(result.stopped);
}

TEST_F(ProcessTest, RunsManyJobsAtOnceAndReportsEachOnce) {
  std::vector<int> ends(200, 0);
  for (int i = 0; i < 200; ++i) {
    processes_->Start(
        {absl::StrCat("JOB=", i), {Shell(absl::StrCat("exit ", i % 100))}, absl::Seconds(1)}, [](auto) {},
        [&ends, i](JobResult result) { ends[i] += result.exit_status == i % 100 ? 1 : 100; });
  }
  const auto all = [&] { return std::count(ends.begin(), ends.end(), 0) == 0; };
  ASSERT_TRUE(loop_.RunUntil(all, kPatience));
  EXPECT_EQ(std::count(ends.begin(), ends.end(), 1), 200);
}

TEST_F(ProcessTest, NoticesThatTheSpawnerDiedAndStillLeavesNothingBehind) {
  Start({Shell("setsid sh -c 'echo $$ >$FIFO; exec sleep 1000' & exec sleep 1000")});
  const pid_t grandchild = WaitForPid();
  kill(spawner_.pid, SIGKILL);
  ASSERT_TRUE(loop_.RunUntil([&] { return lost_; }, kPatience));
  processes_.reset();
  EXPECT_TRUE(Gone(grandchild));
}

TEST(Spawner, EndsEverythingAndOnlyThenGivesTheLockBackWhenTheWorkerIsKilled) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  const int fifo = open((dir / "fifo").c_str(), O_RDWR | O_CLOEXEC);
  const pid_t worker = fork();
  ASSERT_GE(worker, 0);
  if (worker == 0) {
    const absl::StatusOr<std::optional<LockFile>> lock = LockFile::TakeWithProcessId(dir / "lock");
    if (!lock.ok() || !lock->has_value()) _exit(1);
    const auto spawner = ForkSpawner();
    EventLoop loop;
    SpawnerProcesses processes(loop, *spawner, [] {});
    const std::string script =
        "setsid sh -c 'trap \"\" TERM; echo $$ >$FIFO; while :; do sleep 1000; done' & "
        "trap '' TERM; echo $$ >$FIFO; while :; do sleep 1000; done";
    processes.Start(
        {"TAG=1",
         {{{"sh", "-c", script}, {"TAG=1", "PATH=/usr/bin:/bin", "FIFO=" + (dir / "fifo")}, "", "", ""}},
         absl::Seconds(5)},
        [](auto) {}, [](auto) {});
    loop.Run();
    _exit(0);
  }
  std::string said;
  char buffer[64];
  while (std::count(said.begin(), said.end(), '\n') < 2) {
    const ssize_t got = read(fifo, buffer, sizeof buffer);
    ASSERT_GT(got, 0);
    said.append(buffer, got);
  }
  EXPECT_EQ(FindLockHolder(dir / "lock")->pid, worker);
  EXPECT_TRUE(FindLockHolder(dir / "lock")->held);
  kill(worker, SIGKILL);
  waitpid(worker, nullptr, 0);
  const int lock = open((dir / "lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);  // blocks until the spawner has exited
  for (absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
    int pid = 0;
    ASSERT_TRUE(absl::SimpleAtoi(line, &pid));
    EXPECT_TRUE(Gone(pid)) << pid;
  }
  close(lock);
  close(fifo);
}

// Returns the state of a process in /proc, for example 'Z' for a zombie.
char StateOf(pid_t pid) {
  const std::string stat = ReadAll(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '\0' : stat[name_end + 2];
}

// Waits for a state of processes that are no children of this process.
template <class Condition>
bool Becomes(const Condition& condition) {
  for (int i = 0; i < 3000 && !condition(); ++i) usleep(10'000);
  return condition();
}

// The spawner blocks in the report of the first job while the command of the third one ends.
TEST(Spawner, EndsOrphansOfACommandThatEndsDuringTheReportOfAnotherJob) {
  TempDir dir;
  std::map<std::string, int> fifos;
  for (const char* name : {"one", "two", "three", "up"}) {
    ASSERT_EQ(mkfifo((dir / name).c_str(), 0600), 0);
    fifos[name] = open((dir / name).c_str(), O_RDWR | O_CLOEXEC);
  }
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t spawner = fork();
  ASSERT_GE(spawner, 0);
  if (spawner == 0) {
    close(ends[0]);
    RunSpawner(ends[1]);
  }
  const auto start = [&](uint64_t id, const std::string& script) {
    const std::string tag = absl::StrCat("TAG=", id), none;
    const std::vector<std::string> argv{"sh", "-c", script}, environment{tag, "PATH=/usr/bin:/bin"};
    const std::vector<int> cpus;
    FrameWriter frame(Wire::kStart);
    frame.Put(id).Put(tag).Put(20.0).Put(uint32_t{1});
    frame.Put(argv).Put(environment).Put(dir.path()).Put(none).Put(none).Put(cpus);
    const std::string bytes = frame.Finish();
    EXPECT_EQ(send(ends[0], bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  };
  std::string input;
  const auto next_frame = [&] {
    std::string frame;
    char buffer[4096];
    while (!TakeFrame(&input, &frame)) {
      const ssize_t got = read(ends[0], buffer, sizeof buffer);
      if (got <= 0) break;
      input.append(buffer, got);
    }
    return frame;
  };
  start(1, "read -r x <one");
  start(2, "read -r x <two");
  start(3, "setsid sh -c 'echo $$ >up; exec sleep 1000' & read -r x <three");
  pid_t commands[4] = {};
  for (uint64_t id = 1; id <= 3; ++id) {
    const std::string frame = next_frame();
    FrameReader reader(frame);
    ASSERT_EQ(reader.Get<Wire>(), Wire::kStarted);
    ASSERT_EQ(reader.Get<uint64_t>(), id);
    commands[id] = reader.Get<int32_t>();
  }
  char text[32];
  const ssize_t length = read(fifos["up"], text, sizeof text);
  ASSERT_GT(length, 0);
  int orphan = 0;
  ASSERT_TRUE(absl::SimpleAtoi(absl::string_view(text, length), &orphan));

  ASSERT_EQ(kill(spawner, SIGSTOP), 0);
  ASSERT_EQ(waitpid(spawner, nullptr, WUNTRACED), spawner);
  for (const char* name : {"one", "two"}) ASSERT_EQ(write(fifos[name], "\n", 1), 1);
  ASSERT_TRUE(Becomes([&] { return StateOf(commands[1]) == 'Z' && StateOf(commands[2]) == 'Z'; }));
  const std::string filler(4096, 'x');
  size_t filled = 0;
  ssize_t sent = 0;
  while ((sent = send(ends[1], filler.data(), filler.size(), MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
    filled += sent;
  ASSERT_EQ(kill(spawner, SIGCONT), 0);
  ASSERT_TRUE(Becomes([&] { return Gone(commands[1]) && Gone(commands[2]) && StateOf(spawner) == 'S'; }));
  ASSERT_EQ(write(fifos["three"], "\n", 1), 1);
  ASSERT_TRUE(Becomes([&] { return StateOf(commands[3]) == 'Z'; }));
  while (filled > 0) {
    char buffer[4096];
    const ssize_t got = read(ends[0], buffer, std::min(filled, sizeof buffer));
    ASSERT_GT(got, 0);
    filled -= got;
  }

  for (uint64_t ended = 0; ended != 3;) {
    const std::string frame = next_frame();
    FrameReader reader(frame);
    ASSERT_EQ(reader.Get<Wire>(), Wire::kEnded);
    ended = reader.Get<uint64_t>();
  }
  EXPECT_TRUE(Gone(orphan));
  for (const int end : ends) close(end);
  EXPECT_EQ(waitpid(spawner, nullptr, 0), spawner);
  for (const auto& [name, fifo] : fifos) close(fifo);
}

TEST(ProcessTree, FindsTheEnvironmentAProcessWasStartedWith) {
  ASSERT_EQ(setenv("SCALELAB_TREE_TEST", "later", 1), 0);
  // /proc shows only the environment passed to exec
  EXPECT_FALSE(HasEnvironment(getpid(), "SCALELAB_TREE_TEST=later"));
  EXPECT_TRUE(HasEnvironment(getpid(), std::string("PATH=") + getenv("PATH")));
  EXPECT_FALSE(HasEnvironment(getpid(), "PATH="));
}

TEST(ProcessTree, AProcessWhoseMainThreadHasEndedIsLivingAndCanBeKilled) {
  const pid_t child = fork();
  if (child == 0) {
    std::thread([] {
      while (true) pause();
    }).detach();
    syscall(SYS_exit, 0);  // ends this thread only
  }
  const std::string stat = absl::StrCat("/proc/", child, "/stat");
  for (int i = 0; i < 1000 && ReadAll(stat).find(") Z ") == std::string::npos; ++i) usleep(10'000);
  bool found = false;
  for (const ProcessInfo& process : DescendantsOf(getpid())) {
    if (process.pid != child) continue;
    found = true;
    Signal(process, SIGKILL);
  }
  EXPECT_TRUE(found);
  if (!found) kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

}  // namespace
}  // namespace scalelab::worker
