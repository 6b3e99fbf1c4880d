// Faults of a rank in the middle of an all-reduce: it is killed, it hangs, or it exits early. Every other
// rank must fail with an error that names this rank, within the timeout of an operation plus a few
// seconds for detection.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 4, kVictim = 1;
constexpr double kFindingOut = 30;  // limit for the detection in seconds, on a busy machine

bool Until(const std::function<bool()>& condition, double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::string Text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns whether the process exists and is not a zombie.
bool Alive(pid_t pid) {
  const std::string stat = Text("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat[name_end + 2] != 'Z';
}

class CommunicatorFault : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) != "nccl") return;
    const std::filesystem::path gpus = "/proc/driver/nvidia/gpus";
    const auto count =
        std::filesystem::exists(gpus) ? std::distance(std::filesystem::directory_iterator(gpus), {}) : 0;
    if (count < kRanks) GTEST_SKIP() << "needs " << kRanks << " GPUs, this machine has " << count;
  }
  CommunicatorFault() {
    directory_ = testing::TempDir() + "/communicator-fault-" + std::to_string(getpid()) + "-" + GetParam();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~CommunicatorFault() override {
    for (pid_t child : children_) kill(child, SIGKILL);
    for (int r = 0; r < kRanks; ++r) {
      if (pids_.size() == kRanks) kill(pids_[r], SIGKILL);
    }
    for (pid_t child : children_) waitpid(child, nullptr, 0);
    std::filesystem::remove_all(directory_);
  }

  bool mpi() const { return std::string(GetParam()) == "mpi"; }
  std::string File(const std::string& name, int rank) const {
    return directory_ + "/" + name + "-" + std::to_string(rank);
  }

  void Spawn(const std::string& command) {
    const char* argv[] = {"/bin/sh", "-c", command.c_str(), nullptr};
    pid_t pid = 0;
    ASSERT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr, const_cast<char**>(argv), environ), 0);
    children_.push_back(pid);
  }

  // Starts all ranks and returns when all are in the loop. MPI's launcher would kill the other ranks as soon
  // as one dies; --enable-recovery prevents that, because the communicator must detect the failure by itself.
  // Gloo needs no launcher.
  void Start(double timeout, int leaver = -1, const std::string& more = "") {
    const std::string program = std::string(COMMUNICATOR_RANK) + " " + GetParam() + " " +
                                std::to_string(kRanks) + " " + std::to_string(timeout) + " " + directory_ +
                                " " + std::to_string(leaver) + " " + more;
    const std::string settings = "exec env OMP_NUM_THREADS=1 SCALELAB_ATTEMPT_DIR=" + directory_ + " ";
    if (mpi()) {
      Spawn(settings +
            "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 " MPIRUN
            " --enable-recovery --oversubscribe --allow-run-as-root -np " +
            std::to_string(kRanks) + " " + program + " 2>" + directory_ + "/launcher.err");
    } else {
      for (int r = 0; r < kRanks; ++r) Spawn(settings + "RANK=" + std::to_string(r) + " " + program);
    }
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_TRUE(Until([&] { return std::filesystem::exists(File("pid", r)); }, 60))
          << "rank " << r << " never began";
      pids_.push_back(std::stoi(Text(File("pid", r))));
    }
    begun_ = Clock::now();
  }

  // Describes how the process of a rank of Gloo has ended.
  std::string Ended(int rank) const {
    int status = 0;
    if (mpi() || waitpid(children_[rank], &status, WNOHANG) <= 0) return "";
    return WIFSIGNALED(status) ? ": its process was ended by signal " + std::to_string(WTERMSIG(status))
                               : ": its process ended with status " + std::to_string(WEXITSTATUS(status));
  }

  // Expects that every rank except the victim reports the failure within `seconds`.
  void ExpectAllToBlame(const std::string& how, double seconds) {
    for (int r = 0; r < kRanks; ++r) {
      if (r == kVictim) continue;
      ASSERT_TRUE(Until([&] { return std::filesystem::exists(File("error", r)); }, seconds))
          << "rank " << r << " has not failed" << Ended(r);
      EXPECT_THAT(Text(File("error", r)), testing::HasSubstr("rank " + std::to_string(kVictim) + " on "));
      EXPECT_THAT(Text(File("error", r)), testing::ContainsRegex(how));
      // The last heartbeat of the victim may be older than its last operation: Split() begins with an all-gather.
      EXPECT_THAT(Text(File("error", r)),
                  testing::ContainsRegex("finished is [0-9]+ \\((all-reduce|all-gather|barrier|nothing)\\)"));
    }
    RecordProperty("seconds", std::to_string(std::chrono::duration<double>(Clock::now() - begun_).count()));
  }

  // Stops all ranks for longer than the timeout of 3 s, as Slurm does with a job that it suspends. The others
  // wait for the victim meanwhile. Then all continue, the victim last.
  void SuspendAll() {
    const auto others = [&](int signal) {
      for (int r = 0; r < kRanks; ++r) {
        if (r != kVictim) kill(pids_[r], signal);
      }
    };
    const auto sleep = [](int milliseconds) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    };
    kill(pids_[kVictim], SIGSTOP);
    sleep(500);
    others(SIGSTOP);
    sleep(4000);
    others(SIGCONT);
    sleep(1500);
    kill(pids_[kVictim], SIGCONT);
  }

  // Expects that every rank executes further steps.
  void ExpectAllToContinue() {
    std::vector<std::string> before;
    for (int r = 0; r < kRanks; ++r) before.push_back(Text(File("steps", r)));
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_TRUE(Until(
          [&] { return Text(File("steps", r)) != before[r] || std::filesystem::exists(File("error", r)); },
          30))
          << "rank " << r << " is still waiting";
      ASSERT_EQ(Text(File("error", r)), "") << "rank " << r;
    }
  }

  void ExpectNobodyStays(bool victim_too) {
    for (int r = 0; r < kRanks; ++r) {
      if (r == kVictim && !victim_too) continue;
      EXPECT_TRUE(Until([&] { return !Alive(pids_[r]); }, 10)) << "rank " << r << " is still there";
    }
    if (mpi()) {
      EXPECT_TRUE(Until([&] { return !Alive(children_[0]); }, 10)) << "the launcher is still there";
    }
  }

  std::string directory_;
  std::vector<pid_t> children_, pids_;
  Clock::time_point begun_;
};

TEST_P(CommunicatorFault, AKilledRankIsNamedLongBeforeTheTimeIsOver) {
  Start(/*timeout=*/120);
  kill(pids_[kVictim], SIGKILL);
  ExpectAllToBlame("is gone|cannot be reached", kFindingOut);
  ExpectNobodyStays(/*victim_too=*/true);
}

// Not tested with NCCL, which cannot receive from any rank.
TEST_P(CommunicatorFault, AKilledRankEndsAReceiveFromAnyRank) {
  if (std::string(GetParam()) == "nccl") GTEST_SKIP() << "backend nccl cannot receive from any rank";
  Start(/*timeout=*/120, kVictim, "receive");
  kill(pids_[kVictim], SIGKILL);
  ExpectAllToBlame("is gone|cannot be reached", kFindingOut);
  ExpectNobodyStays(/*victim_too=*/true);
}

// The ranks that follow the two waiting ranks have ended, so neither waiting rank can learn from its next
// rank that the wait is over.
TEST_P(CommunicatorFault, TwoKilledRanksEndAReceiveBetweenTheOthers) {
  if (std::string(GetParam()) == "nccl") GTEST_SKIP() << "backend nccl receives in the order of its stream";
  Start(/*timeout=*/120, /*leaver=*/-1, "pair");
  for (const int r : {1, 3}) kill(pids_[r], SIGKILL);
  for (const int r : {0, 2}) {
    ASSERT_TRUE(Until([&] { return std::filesystem::exists(File("error", r)); }, kFindingOut))
        << "rank " << r << " has not failed";
    EXPECT_THAT(Text(File("error", r)), testing::ContainsRegex("rank [13] on .*(is gone|cannot be reached)"));
  }
  ExpectNobodyStays(/*victim_too=*/true);
}

TEST_P(CommunicatorFault, AStoppedRankIsNamedWhenTheTimeIsOver) {
  Start(/*timeout=*/3);
  kill(pids_[kVictim], SIGSTOP);
  ExpectAllToBlame("timed out after 3 s.*does not answer", 3 + kFindingOut);
  // With MPI, the launcher must also end the stopped rank.
  ExpectNobodyStays(/*victim_too=*/mpi());
}

TEST_P(CommunicatorFault, ASuspendedJobContinues) {
  Start(/*timeout=*/3);
  SuspendAll();
  ExpectAllToContinue();
  begun_ = Clock::now();
  kill(pids_[kVictim], SIGKILL);
  ExpectAllToBlame("is gone|cannot be reached", kFindingOut);
  ExpectNobodyStays(/*victim_too=*/true);
}

TEST_P(CommunicatorFault, ASuspendedJobOfGroupsContinues) {
  Start(/*timeout=*/3, /*leaver=*/-1, "groups");
  SuspendAll();
  ExpectAllToContinue();
  begun_ = Clock::now();
  kill(pids_[kVictim], SIGSTOP);
  ExpectAllToBlame("timed out after 3 s.*does not answer", 3 + kFindingOut);
  ExpectNobodyStays(/*victim_too=*/mpi());
}

// Ranks of the other group notice it too, although they do not wait for the rank.
TEST_P(CommunicatorFault, AKilledRankOfAGroupIsNamedByAllRanks) {
  Start(/*timeout=*/120, /*leaver=*/-1, "groups");
  kill(pids_[kVictim], SIGKILL);
  ExpectAllToBlame("is gone|cannot be reached", kFindingOut);
  ExpectNobodyStays(/*victim_too=*/true);
}

TEST_P(CommunicatorFault, AStoppedRankOfAGroupIsNamedByAllRanks) {
  Start(/*timeout=*/3, /*leaver=*/-1, "groups");
  kill(pids_[kVictim], SIGSTOP);
  ExpectAllToBlame("timed out after 3 s.*does not answer", 3 + kFindingOut);
  ExpectNobodyStays(/*victim_too=*/mpi());
}

TEST_P(CommunicatorFault, ARankThatLeavesEarlyIsNamed) {
  Start(/*timeout=*/120, /*leaver=*/kVictim);
  ExpectAllToBlame("left before operation|cannot be reached", kFindingOut);
  ExpectNobodyStays(/*victim_too=*/true);
}

const std::vector<const char*> kBackends = {
    "mpi",
#ifdef SCALELAB_GLOO
    "gloo",
#endif
#ifdef SCALELAB_NCCL
    "nccl",
#endif
};
INSTANTIATE_TEST_SUITE_P(Over, CommunicatorFault, testing::ValuesIn(kBackends),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
