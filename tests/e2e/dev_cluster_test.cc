// deploy/dev-cluster: it creates a working cluster, it can inject the faults of real clusters, and
// it removes everything.
#include "tests/e2e/dev_cluster.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

class DevClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = DevCluster::Unavailable();
    if (!why.empty()) GTEST_SKIP() << "no cluster can be made here: " << why;
  }
};

// Accepts one connection on an address of this machine and counts the received bytes.
class Sink {
 public:
  explicit Sink(const std::string& address) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    inet_pton(AF_INET, address.c_str(), &name.sin_addr);
    socklen_t length = sizeof name;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&name), length), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&name), &length);
    port_ = ntohs(name.sin_port);
  }
  ~Sink() { close(socket_); }

  int port() const { return port_; }
  // Returns the number of bytes until the sender closes, and the seconds from connection to end.
  std::pair<int64_t, double> Receive() {
    const int connection = accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    const double start = Now();
    int64_t bytes = 0;
    std::vector<char> buffer(1 << 16);
    for (ssize_t n; (n = read(connection, buffer.data(), buffer.size())) > 0;) bytes += n;
    close(connection);
    return {bytes, Now() - start};
  }

 private:
  int socket_;
  int port_ = 0;
};

TEST_F(DevClusterTest, EveryNodeHasItsOwnNameMemoryAndProcesses) {
  DevCluster cluster({"-n", "4"});
  ASSERT_EQ(cluster.Start(), "");
  EXPECT_THAT(Lines(cluster.Run({"srun", "-N4", "hostname"}).out),
              UnorderedElementsAre(cluster.Node(1), cluster.Node(2), cluster.Node(3), cluster.Node(4)));
  // Each node resolves the names of the other nodes and of the login node.
  const Output hosts = cluster.RunOn(3, {"getent", "hosts", cluster.Node(1), cluster.name()});
  EXPECT_THAT(hosts.out, HasSubstr(cluster.Node(1)));
  EXPECT_THAT(hosts.out, HasSubstr(cluster.address()));
  const std::string file = absl::StrCat("/dev/shm/", cluster.name());
  EXPECT_EQ(cluster.RunOn(1, {"touch", file}).code, 0);
  EXPECT_EQ(cluster.RunOn(1, {"test", "-e", file}).code, 0);
  EXPECT_NE(cluster.RunOn(2, {"test", "-e", file}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(file));
  // A node has one PID 1 and one slurmd, and only its own processes are visible in it.
  const Output processes = cluster.Control({"node", "2", "ps"});
  EXPECT_THAT(processes.out, HasSubstr(absl::StrCat("-N ", cluster.Node(2))));
  EXPECT_THAT(processes.out, Not(HasSubstr(cluster.Node(1))));
  // Slurm's programs also work inside a node, without SLURM_CONF.
  EXPECT_THAT(cluster.RunOn(1, {"env", "-u", "SLURM_CONF", "sinfo", "-h", "-o", "%D %t", "-p", "main"}).out,
              "4 idle\n");
}

TEST_F(DevClusterTest, TwoAtOnceDoNotMeet) {
  DevCluster one, two;
  ASSERT_EQ(one.Start(), "");
  ASSERT_EQ(two.Start(), "");
  EXPECT_NE(one.name(), two.name());
  EXPECT_NE(one.address(), two.address());
  EXPECT_EQ(one.Run({"sinfo", "-h", "-N", "-p", "main", "-o", "%N"}).out,
            absl::StrCat(one.Node(1), "\n", one.Node(2), "\n"));
  const std::string job = one.Submit({"--wrap", "sleep 1000"});
  ASSERT_TRUE(one.WaitForState(job, "RUNNING"));
  EXPECT_EQ(two.JobState(job), "");
  EXPECT_THAT(two.Run({"scontrol", "show", "config"}).out, HasSubstr(two.address()));
  // A node can connect to the controller of its own cluster, but not to that of the other cluster.
  const std::string connect = "exec 3<>/dev/tcp/$0/6817";
  EXPECT_EQ(two.RunOn(1, {"bash", "-c", connect, two.address()}).code, 0);
  EXPECT_NE(two.RunOn(1, {"bash", "-c", connect, one.address()}).code, 0);
  EXPECT_EQ(one.Down(), "");
  EXPECT_EQ(one.Leftovers(), "");
  EXPECT_EQ(two.Run({"srun", "-N2", "true"}).code, 0);
  EXPECT_EQ(two.Down(), "");
  EXPECT_EQ(two.Leftovers(), "");
}

TEST_F(DevClusterTest, LinksAreAsSlowAsAsked) {
  DevCluster cluster({"--rate", "100mbit"});
  ASSERT_EQ(cluster.Start(), "");
  Sink sink(cluster.address());
  const std::string send = "head -c 5000000 /dev/zero >/dev/tcp/$0/$1";
  Background node({SourceFile("deploy/dev-cluster"), "node", "--dir", cluster.dir(), "1", "exec", "bash",
                   "-c", send, cluster.address(), absl::StrCat(sink.port())},
                  cluster.dir() + "/sender.log");
  const auto [bytes, seconds] = sink.Receive();
  EXPECT_EQ(node.Wait(), 0);
  EXPECT_EQ(bytes, 5'000'000);
  // The bytes need 0.4 s at the configured rate, without the burst of 128 kB.
  EXPECT_GT(seconds, 0.38);
  const std::string shaped = cluster.RunOn(1, {"tc", "-s", "qdisc", "show", "dev", "eth0"}).out;
  EXPECT_THAT(shaped, HasSubstr("tbf"));
  EXPECT_THAT(shaped, HasSubstr("rate 100Mbit"));
  int64_t sent = 0;
  const std::vector<std::string> after = absl::StrSplit(shaped, "Sent ");
  ASSERT_EQ(after.size(), 2u) << shaped;
  EXPECT_TRUE(absl::SimpleAtoi(after[1].substr(0, after[1].find(' ')), &sent));
  EXPECT_GT(sent, 5'000'000);
}

TEST_F(DevClusterTest, MpiSpansNodes) {
  DevCluster cluster;
  ASSERT_EQ(cluster.Start(), "");
  const Output ring = cluster.Run({"srun", "--mpi=pmix", "-N2", "-n2", SCALELAB_MPI_RING});
  EXPECT_THAT(Lines(ring.out), UnorderedElementsAre(absl::StrCat("rank 0 of 2 on ", cluster.Node(1)),
                                                    absl::StrCat("rank 1 of 2 on ", cluster.Node(2))))
      << ring.err;
}

TEST_F(DevClusterTest, FakeGpusAreGivenToJobs) {
  DevCluster cluster({"-n", "1", "--gpus", "2"});
  ASSERT_EQ(cluster.Start(), "");
  auto visible = [&](const char* gpus) {
    return cluster.Run({"srun", gpus, "bash", "-c", "echo ${CUDA_VISIBLE_DEVICES-none}"});
  };
  EXPECT_EQ(visible("--gres=gpu:2").out, "0,1\n");
  EXPECT_EQ(visible("--gres=gpu:1").out, "0\n");
  EXPECT_NE(visible("--gres=gpu:3").code, 0);
}

TEST_F(DevClusterTest, AJobOutlivesItsSlurmd) {
  DevCluster cluster;
  ASSERT_EQ(cluster.Start(), "");
  const std::string fifo = cluster.dir() + "/go", out = cluster.dir() + "/out";
  ASSERT_EQ(cluster.Run({"mkfifo", fifo}).code, 0);
  const std::string job =
      cluster.Submit({"-N2", "--wrap",
                      absl::StrCat("srun -n1 -w ", cluster.Node(2), " bash -c 'read line <", fifo,
                                   "; echo $(hostname) $line >", out, "'")});
  ASSERT_TRUE(Eventually([&] {
    return cluster.Control({"node", "2", "ps"}).out.find(fifo) != std::string::npos;
  }));
  ASSERT_EQ(cluster.Control({"node", "2", "kill-slurmd"}).err, "");
  EXPECT_THAT(cluster.Control({"status"}).out, HasSubstr("slurmd down"));
  EXPECT_THAT(cluster.Control({"node", "2", "kill-slurmd"}).err,
              HasSubstr("no slurmd runs on " + cluster.Node(2)));
  ASSERT_EQ(cluster.Control({"node", "2", "start-slurmd"}).err, "");
  EXPECT_EQ(cluster.JobState(job), "RUNNING");
  WriteFile(fifo, "went on\n");
  EXPECT_TRUE(cluster.WaitForState(job, "COMPLETED")) << cluster.JobState(job);
  EXPECT_EQ(ReadFile(out), absl::StrCat(cluster.Node(2), " went on\n"));
}

TEST_F(DevClusterTest, AJobFailsWithANodeThatIsCutOff) {
  DevCluster cluster;
  ASSERT_EQ(cluster.Start(), "");
  const std::string job = cluster.Submit({"-N2", "--no-requeue", "--wrap", "sleep 1000"});
  ASSERT_TRUE(cluster.WaitForState(job, "RUNNING"));
  ASSERT_EQ(cluster.Control({"node", cluster.Node(2), "link-down"}).code, 0);
  EXPECT_TRUE(cluster.WaitForState(job, "NODE_FAIL")) << cluster.JobState(job);
  ASSERT_EQ(cluster.Control({"node", cluster.Node(2), "link-up"}).code, 0);
  EXPECT_TRUE(Eventually(
      [&] {
        return cluster.Run({"sinfo", "-h", "-p", "main", "-o", "%D %t"}).out == "2 idle\n";
      },
      60));
}

TEST_F(DevClusterTest, TheControllerStopsAndComesBackWithItsJobs) {
  DevCluster cluster({"-n", "1"});
  ASSERT_EQ(cluster.Start(), "");
  const std::string job = cluster.Submit({"--wrap", "sleep 1000"});
  ASSERT_TRUE(cluster.WaitForState(job, "RUNNING"));
  ASSERT_EQ(cluster.Control({"controller", "stop"}).err, "");
  EXPECT_NE(cluster.Run({"scontrol", "ping"}).code, 0);
  EXPECT_NE(cluster.Control({"status"}).code, 0);
  ASSERT_EQ(cluster.Control({"controller", "start"}).err, "");
  EXPECT_EQ(cluster.JobState(job), "RUNNING");
  // State that the controller has saved survives a crash, too.
  ASSERT_EQ(cluster.Control({"controller", "kill"}).err, "");
  EXPECT_NE(cluster.Run({"scontrol", "ping"}).code, 0);
  ASSERT_EQ(cluster.Control({"controller", "start"}).err, "");
  EXPECT_EQ(cluster.JobState(job), "RUNNING");
}

TEST_F(DevClusterTest, JobsArePreemptedAndRunOutOfMemory) {
  DevCluster cluster({"-n", "1", "--cpus", "2", "--memory", "500"});
  ASSERT_EQ(cluster.Start(), "");
  const std::string poor = cluster.Submit({"--cpus-per-task=2", "--wrap", "sleep 1000"});
  ASSERT_TRUE(cluster.WaitForState(poor, "RUNNING"));
  const std::string urgent = cluster.Submit({"-p", "urgent", "--cpus-per-task=2", "--wrap", "true"});
  EXPECT_TRUE(cluster.WaitForState(urgent, "COMPLETED")) << cluster.JobState(urgent);
  EXPECT_EQ(cluster.JobState(poor), "PREEMPTED");
  // Without control groups, Slurm kills a job that exceeds its memory too, but reports it as failed.
  const bool limited = std::filesystem::exists("/sys/fs/cgroup/memory/cgroup.procs");
  const std::string greedy = cluster.Submit(
      {"--mem=50M", "--wrap", "exec python3 -c 'b = b\"x\" * 300000000; import time; time.sleep(1000)'"});
  EXPECT_TRUE(cluster.WaitForState(greedy, limited ? "OUT_OF_MEMORY" : "FAILED")) << cluster.JobState(greedy);
  EXPECT_THAT(ReadFile(cluster.dir() + "/jobcomp.log"), HasSubstr(absl::StrCat("JobId=", poor, " ")));
}

TEST_F(DevClusterTest, WithAccountingItRemembersJobsInADatabaseOfItsOwn) {
  if (const std::string why = DevCluster::Unavailable({"--accounting"}); !why.empty()) GTEST_SKIP() << why;
  DevCluster cluster({"-n", "1", "--accounting"});
  ASSERT_EQ(cluster.Start(), "");
  const std::string job = cluster.Submit({"--wrap", "exit 3"});
  const auto remembered = [&] {
    return cluster.Run({"sacct", "-Xn", "--parsable2", "-o", "State,Account", "-j", job}).out;
  };
  EXPECT_TRUE(Eventually([&] { return remembered() == "FAILED|lab\n"; })) << remembered();
  EXPECT_THAT(cluster.Control({"accounting", "start"}).err, HasSubstr("slurmdbd already runs"));
  ASSERT_EQ(cluster.Control({"accounting", "kill"}).err, "");
  EXPECT_THAT(cluster.Control({"status"}).out, HasSubstr("mariadbd runs, slurmdbd down"));
  EXPECT_EQ(remembered(), "");
  ASSERT_EQ(cluster.Control({"accounting", "start"}).err, "");
  EXPECT_EQ(remembered(), "FAILED|lab\n");
  EXPECT_EQ(cluster.Down(), "");
  EXPECT_EQ(cluster.Leftovers(), "");
}

// Returns the value of `key` in DIR/cluster.
std::string Written(const DevCluster& cluster, const std::string& key) {
  for (const std::string& line : Lines(ReadFile(cluster.dir() + "/cluster"))) {
    if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
  }
  return "";
}

// Returns whether a network link of this machine has that address.
bool LinkExists(const std::string& address) {
  for (const auto& link : std::filesystem::directory_iterator("/sys/class/net")) {
    if (ReadFile(link.path() / "address") == address + "\n") return true;
  }
  return false;
}

std::vector<std::string> Up(const DevCluster& cluster, std::vector<std::string> words = {}) {
  words.insert(words.begin(), {SourceFile("deploy/dev-cluster"), "up", "--dir", cluster.dir()});
  return words;
}

TEST_F(DevClusterTest, DownCleansAfterAnUpThatWasKilled) {
  std::vector<std::pair<std::string, std::vector<std::string>>> moments = {
      {"/cluster", {}}, {"/nodes/login/pid", {}}, {"/nodes/login/slurmctld.pid", {}}};
  if (DevCluster::Unavailable({"--accounting"}).empty()) {
    for (const char* reached : {"/nodes/login/db", "/nodes/login/mariadbd.pid", "/nodes/login/slurmdbd.pid"})
      moments.push_back({reached, {"--accounting"}});
  }
  for (const auto& [reached, options] : moments) {
    DevCluster cluster;
    Background up(Up(cluster, options), "/dev/null");
    ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(cluster.dir() + reached); })) << reached;
    up.Signal(SIGKILL);
    ASSERT_EQ(up.Wait(), 128 + SIGKILL) << reached;
    const std::string bridge = Written(cluster, "mac");
    ASSERT_NE(bridge, "");
    EXPECT_EQ(cluster.Down(), "") << reached;
    EXPECT_FALSE(std::filesystem::exists(cluster.dir())) << reached;
    EXPECT_FALSE(LinkExists(bridge)) << reached;
    EXPECT_THAT(ProcessesWith(cluster.dir()), IsEmpty()) << reached;
  }
}

TEST_F(DevClusterTest, AnInterruptedUpCleansUpItself) {
  DevCluster cluster;
  Background up(Up(cluster), "/dev/null");
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(cluster.dir() + "/nodes/login/pid"); }));
  const std::string bridge = Written(cluster, "mac");
  up.Signal(SIGTERM);
  EXPECT_EQ(up.Wait(), 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(cluster.dir()));
  EXPECT_FALSE(LinkExists(bridge));
  EXPECT_THAT(ProcessesWith(cluster.dir()), IsEmpty());
}

TEST_F(DevClusterTest, AnUpThatFailsSaysWhyAndLeavesNothing) {
  DevCluster cluster;
  // The command fails after it has created a bridge and the namespaces of all nodes.
  const Output up = RunProgram(Up(cluster, {"--rate", "99999999999999999999999gbit"}));
  EXPECT_EQ(up.code, 1);
  EXPECT_THAT(up.err, HasSubstr("-n1 cannot be shaped to 99999999999999999999999gbit"));
  EXPECT_FALSE(std::filesystem::exists(cluster.dir()));
  EXPECT_THAT(ProcessesWith(cluster.dir()), IsEmpty());
}

TEST_F(DevClusterTest, BadInputIsASentence) {
  DevCluster cluster;
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"up", "-n", "0"}, "-n must be a whole number from 1 to 200, not '0'"},
      {{"up", "--rate", "fast"}, "--rate must be a rate such as 1gbit or 100mbit, or none, not 'fast'"},
      {{"up", "--preempt", "maybe"}, "--preempt must be cancel or requeue, not 'maybe'"},
      {{"up", "--colour"}, "unknown argument '--colour' of up"},
      {{"env"}, "there is no cluster in " + cluster.dir()},
      {{"node", "1", "ps"}, "there is no cluster in " + cluster.dir()},
      {{"frobnicate"}, "unknown command 'frobnicate'"},
  };
  for (const auto& [words, sentence] : cases) {
    const Output output = cluster.Control(words);
    EXPECT_NE(output.code, 0) << words[0];
    EXPECT_THAT(output.err, HasSubstr(sentence));
    EXPECT_EQ(Lines(output.err).size(), 1u) << output.err;
  }
  WriteFile(cluster.dir() + "/precious", "");
  EXPECT_THAT(cluster.Control({"up"}).err, HasSubstr(cluster.dir() + " is not empty; name another --dir"));
  EXPECT_EQ(cluster.Control({"down"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(cluster.dir() + "/precious"));
  ASSERT_EQ(unlink((cluster.dir() + "/precious").c_str()), 0);

  ASSERT_EQ(cluster.Start(), "");
  EXPECT_THAT(cluster.Control({"up"}).err, HasSubstr("there is a cluster in " + cluster.dir() + " already"));
  EXPECT_THAT(
      cluster.Control({"node", "7", "ps"}).err,
      HasSubstr(cluster.name() + " has no node '7'; it has " + cluster.Node(1) + " " + cluster.Node(2)));
  EXPECT_THAT(cluster.Control({"node", "1", "explode"}).err, HasSubstr("unknown node command 'explode'"));
  EXPECT_THAT(cluster.Control({"controller", "start"}).err, HasSubstr("slurmctld already runs"));
  EXPECT_THAT(cluster.Control({"accounting", "kill"}).err, HasSubstr(cluster.name() + " has no slurmdbd"));
}

}  // namespace
}  // namespace scalelab::e2e
