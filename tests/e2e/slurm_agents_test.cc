// Jobs under the accounts of their users, through the agents that the users run: three users, and the coordinator as a fourth
// account without privileges, on a real Slurm cluster.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/dev_cluster.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
namespace fs = std::filesystem;

// Accounts of every Debian system.
const std::vector<std::string> kUsers = {"games", "irc", "news"};
constexpr char kService[] = "www-data";

int FreePort(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  socklen_t size = sizeof name;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0;
  close(fd);
  return bound ? ntohs(name.sin_port) : 0;
}

class Agents : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    for (const std::string& account : kUsers) {
      if (getpwnam(account.c_str()) == nullptr) GTEST_SKIP() << "there is no account " << account;
    }
    ASSERT_EQ(cluster_.Start(), "");
    std::string pattern = "/tmp/scalelab-agents-XXXXXX";
    dir_ = mkdtemp(pattern.data());
    chmod(dir_.c_str(), 0755);
    for (const char* folder : {"data", "run"}) Make(folder, kService);
    chmod((dir_ + "/data").c_str(), 0700);
    for (const std::string& user : kUsers) Make("home-" + user, user);
    fs::create_directory(dir_ + "/runs");
    chmod((dir_ + "/runs").c_str(), 01777);
  }
  ~Agents() override {
    agents_.clear();
    for (const std::string& user : kUsers) {
      for (const pid_t pid : ProcessesInEnvironment("HOME=" + dir_ + "/home-" + user)) kill(pid, SIGKILL);
      if (const passwd* entry = getpwnam(user.c_str()))
        fs::remove_all(absl::StrCat("/tmp/scalelab-", entry->pw_uid));
    }
    if (daemon_ != nullptr) {
      daemon_->Signal(SIGKILL);
      daemon_->Wait();
    }
    if (testing::Test::HasFailure()) {
      std::cerr << "kept for a look: " << dir_ << "\n" << ReadFile(dir_ + "/scalelabd.log") << "\n";
      return;
    }
    std::error_code ignored;
    if (!dir_.empty()) fs::remove_all(dir_, ignored);
  }

  void Make(const std::string& folder, const std::string& account) {
    fs::create_directory(dir_ + "/" + folder);
    const passwd* entry = getpwnam(account.c_str());
    ASSERT_EQ(chown((dir_ + "/" + folder).c_str(), entry->pw_uid, entry->pw_gid), 0);
  }
  std::string Socket() const { return "unix:" + dir_ + "/run/sock"; }

  // Starts the service under its account, without privileges.
  void StartService(const std::vector<std::string>& flags = {}) {
    if (address_.empty()) address_ = absl::StrCat(cluster_.address(), ":", FreePort(cluster_.address()));
    std::vector<std::string> argv = {Program("scalelabd"),
                                     "--noise-guard",
                                     "false",
                                     "--data",
                                     dir_ + "/data",
                                     "--runs",
                                     dir_ + "/runs",
                                     "--scheduler",
                                     "slurm",
                                     "--jobs-run-as",
                                     "user",
                                     "--listen",
                                     Socket(),
                                     "--listen",
                                     address_,
                                     "--poll-interval",
                                     "2"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    std::map<std::string, std::string> env = cluster_.Env();
    env["HOME"] = "/nonexistent";
    daemon_ = std::make_unique<Background>(As(kService, argv), dir_ + "/scalelabd.log", env);
    ASSERT_THAT(daemon_->Line(), HasSubstr("ready")) << ReadFile(dir_ + "/scalelabd.log");
    // The socket is for the account of the service; here it is for everybody.
    ASSERT_EQ(chmod((dir_ + "/run/sock").c_str(), 0666), 0);
  }

  std::map<std::string, std::string> Environment(const std::string& user) const {
    std::map<std::string, std::string> env = cluster_.Env();
    env["HOME"] = dir_ + "/home-" + user;
    env["USER"] = env["LOGNAME"] = user;
    env["XDG_STATE_HOME"] = env["HOME"] + "/state";
    env["NO_COLOR"] = "1";
    return env;
  }
  Output Run(const std::string& user, std::vector<std::string> words, double seconds = 120) const {
    words.insert(words.begin(), {Program("scalelab"), "--server", Socket()});
    return RunProgram(As(user, words), Environment(user), seconds);
  }
  nlohmann::json Json(const std::string& user, std::vector<std::string> words) const {
    words.insert(words.end(), {"-o", "json"});
    const Output output = Run(user, words);
    EXPECT_EQ(output.code, 0) << output.err;
    return nlohmann::json::parse(output.out, nullptr, false);
  }
  // Submits a study. Returns its name; `said` gets the messages.
  std::string Submit(const std::string& user, const std::string& yaml, std::string* said = nullptr) const {
    const std::string file = dir_ + "/study.yaml";
    WriteFile(file, yaml);
    const Output output = Run(user, {"study", "submit", file});
    EXPECT_EQ(output.code, 0) << output.err;
    if (said != nullptr) *said = output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  }
  // Starts an agent that the test controls. Its log is agent-USER.log.
  std::unique_ptr<Background> StartAgent(const std::string& user) const {
    return std::make_unique<Background>(As(user, {Program("scalelab"), "--server", Socket(), "agent"}),
                                        AgentLog(user), Environment(user));
  }
  std::string AgentLog(const std::string& user) const { return dir_ + "/agent-" + user + ".log"; }
  // Returns the records of all ended jobs.
  std::vector<std::string> JobRecords() const {
    return absl::StrSplit(ReadFile(cluster_.dir() + "/jobcomp.log"), '\n', absl::SkipEmpty());
  }

  // Returns a study whose ranks print their account, wait for `seconds` and finish.
  static std::string Study(int repeats, const std::string& seconds, const std::string& more = "") {
    return absl::StrCat(
        "study: accounts\nfixed:\n  engine: custom\n  ranks: 1\n  command: [sh, -c, \"id -un; sleep ",
        seconds,
        "; echo '{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\"}' >>$SCALELAB_EVENTS\"]\nrepeats: ", repeats,
        "\nresources: {time: 5m}\n", more);
  }

  DevCluster cluster_{{"-n", "2", "--cpus", "64"}};
  std::string dir_, address_;
  std::unique_ptr<Background> daemon_;
  std::vector<std::unique_ptr<Background>> agents_;
};

TEST_F(Agents, EachUsersJobRunsUnderTheAccountOfThatUser) {
  StartService();
  std::map<std::string, std::string> studies;
  for (const std::string& user : kUsers) {
    std::string said;
    studies[user] = Submit(user, Study(1, "8"), &said);
    EXPECT_THAT(said, HasSubstr("your agent has been started")) << user;
  }
  std::set<std::string> running;
  EXPECT_TRUE(Eventually(
      [&] {
        const Output queue = cluster_.Run({"squeue", "-h", "-t", "RUNNING", "-o", "%u"});
        for (const auto user : absl::StrSplit(queue.out, '\n', absl::SkipEmpty())) running.emplace(user);
        return running.size() == kUsers.size();
      },
      60))
      << absl::StrJoin(running, " ");
  EXPECT_THAT(running, testing::ElementsAreArray(kUsers));
  for (const std::string& user : kUsers) {
    EXPECT_EQ(Run(user, {"study", "wait", studies[user], "--timeout", "100s"}).code, 0) << user;
    const auto runs = Json(user, {"run", "list", studies[user]})["runs"];
    ASSERT_THAT(runs, SizeIs(1));
    // The coordinator gets the output from the agent: it may not enter the directory.
    const Output logs = Run(user, {"run", "logs", runs[0]["name"]});
    EXPECT_EQ(logs.out, user + "\n") << logs.err;
    struct stat found {};
    ASSERT_EQ(stat((dir_ + "/runs/" + user).c_str(), &found), 0);
    EXPECT_EQ(found.st_uid, getpwnam(user.c_str())->pw_uid);
    EXPECT_EQ(found.st_mode & 0777, 0700u);
    EXPECT_NE(RunProgram(As(kService, {"ls", dir_ + "/runs/" + user})).code, 0);
  }
  for (const std::string& user : kUsers) {
    const std::string account = absl::StrCat("UserId=", user, "(");
    int jobs = 0;
    for (const std::string& record : JobRecords()) jobs += absl::StrContains(record, account);
    EXPECT_EQ(jobs, 1) << absl::StrJoin(JobRecords(), "\n");
  }
  std::string said;
  Submit("games", Study(1, "0"), &said);
  EXPECT_THAT(said, testing::Not(HasSubstr("agent"))) << "a second agent was started";
}

TEST_F(Agents, AStudyWaitsForItsAgentAndARunningAllocationContinuesWithoutIt) {
  StartService({"--admins", "irc"});
  auto agent = StartAgent("games");
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(ReadFile(AgentLog("games")), "connected to"); }));
  const std::string study = Submit("games", Study(2, "6"));
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster_.Run({"squeue", "-h", "-t", "RUNNING", "-o", "%u"}).out == "games\n";
      },
      60));
  agent->Signal(SIGKILL);
  agent->Wait();
  EXPECT_EQ(Run("games", {"study", "wait", study, "--timeout", "60s"}).code, 0)
      << "its allocation was running";
  // The command line would start an agent of the caller; --owner makes this the study of a user without one.
  WriteFile(dir_ + "/waiting.yaml", Study(1, "0"));
  const Output waiting = Run("irc", {"study", "submit", dir_ + "/waiting.yaml", "--owner", "games"});
  const std::string second(absl::StripAsciiWhitespace(waiting.out));
  std::string why;
  EXPECT_TRUE(Eventually([&] {
    why = Run("games", {"study", "explain", second}).out;
    return absl::StrContains(why, "the agent of games is not connected");
  })) << why;
  agent = StartAgent("games");
  EXPECT_EQ(Run("games", {"study", "wait", second, "--timeout", "60s"}).code, 0)
      << Run("games", {"study", "explain", second}).out;
}

TEST_F(Agents, FiftyAgentsKilledInMidSubmissionLoseNoJobAndDoubleNone) {
  StartService({"--pending-jobs-per-user", "100"});
  constexpr int kRuns = 50;
  auto agent = StartAgent("games");
  // While an agent is connected, the command line starts none.
  const auto connected = [&] { return absl::StrContains(ReadFile(AgentLog("games")), "connected to"); };
  ASSERT_TRUE(Eventually(connected));
  const std::string study = Submit("games", Study(kRuns, "0", "allocation: per-run\n"));
  int kills = 0;
  const double end = Now() + 400;
  while (kills < 50 && Now() < end) {
    // A submission begins: kill the agent in it, at another moment each time.
    const bool submitting =
        Eventually([&] { return absl::StrContains(ReadFile(AgentLog("games")), " sbatch "); }, 60);
    if (!submitting) break;
    Pause(0.002 * (kills % 25));
    agent->Signal(SIGKILL);
    agent->Wait();
    ++kills;
    fs::remove(AgentLog("games"));
    agent = StartAgent("games");
    if (kills % 5 == 0) {  // more work, so that there are submissions until the end
      EXPECT_TRUE(Eventually(connected));
      Submit("games", Study(10, "0", "allocation: per-run\n"));
    }
  }
  EXPECT_EQ(kills, 50);
  EXPECT_EQ(Run("games", {"study", "wait", study, "--timeout", "300s"}, 330).code, 0);
  const nlohmann::json studies = Json("games", {"study", "list"})["studies"];
  for (const auto& each : studies) {
    const std::string name = each["name"];
    EXPECT_EQ(Run("games", {"study", "wait", name, "--timeout", "300s"}, 330).code, 0) << name;
    const nlohmann::json runs = Json("games", {"run", "list", name})["runs"];
    for (const auto& run : runs) EXPECT_EQ(run["state"], "SUCCEEDED") << run;
  }
  // A token is the name of its job. No job with work ran twice: jobs of a name beyond the first were cancelled as pending.
  std::map<std::string, int> ran;
  for (const std::string& record : JobRecords()) {
    std::string name;
    for (const auto word : absl::StrSplit(record, ' ')) {
      if (absl::StartsWith(word, "Name=")) name = std::string(word.substr(5));
    }
    if (absl::StrContains(record, "JobState=COMPLETED")) ++ran[name];
  }
  for (const auto& [name, count] : ran) EXPECT_EQ(count, 1) << name;
}

}  // namespace
}  // namespace scalelab::e2e
