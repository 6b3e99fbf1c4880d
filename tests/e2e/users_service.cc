#include "tests/e2e/users_service.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace scalelab::e2e {
namespace {

namespace fs = std::filesystem;

constexpr char kCoordinator[] = "www-data";  // an account of every Debian system, too

std::vector<std::string> Flags(std::vector<std::string> more) {
  more.insert(more.begin(), {"--jobs-run-as", "user", "--socket-mode", "0666"});
  return more;
}

}  // namespace

const std::vector<std::string>& UsersService::Users() {
  static const auto* users = new std::vector<std::string>{"games", "irc", "news"};
  return *users;
}

std::string UsersService::Unavailable(const std::vector<std::string>& options) {
  for (const std::string& account : Users()) {
    if (getpwnam(account.c_str()) == nullptr) return absl::StrCat("there is no account ", account);
  }
  return DevCluster::Unavailable(options);
}

UsersService::UsersService(const DevCluster& cluster, const std::vector<std::string>& flags)
    : SlurmService(cluster, Flags(flags)), cluster_(cluster) {
  chmod(dir().c_str(), 0755);
  for (const char* folder : {"data", "run"}) Make(folder, kCoordinator);
  chmod(data().c_str(), 0700);
  for (const std::string& user : Users()) Make("home-" + user, user);
  fs::create_directory(RunsDir());
  chmod(RunsDir().c_str(), 01777);
  AddFlags({"--runs", RunsDir(), "--listen", Address()});
  RunDaemonAs(kCoordinator);
}

UsersService::~UsersService() {
  for (const std::string& user : Users()) {
    for (const pid_t pid : ProcessesInEnvironment("HOME=" + Home(user))) kill(pid, SIGKILL);
    if (const passwd* entry = getpwnam(user.c_str()))
      fs::remove_all(absl::StrCat("/tmp/scalelab-", entry->pw_uid));
  }
}

void UsersService::Make(const std::string& folder, const std::string& account) const {
  const std::string path = dir() + "/" + folder;
  fs::create_directory(path);
  const passwd* entry = getpwnam(account.c_str());
  EXPECT_TRUE(entry != nullptr && chown(path.c_str(), entry->pw_uid, entry->pw_gid) == 0) << path;
}

std::map<std::string, std::string> UsersService::EnvironmentOf(const std::string& user) const {
  std::map<std::string, std::string> env = cluster_.Env();
  env["HOME"] = Home(user);
  env["USER"] = env["LOGNAME"] = user;
  env["XDG_STATE_HOME"] = env["HOME"] + "/state";
  env["NO_COLOR"] = "1";
  return env;
}

Output UsersService::RunAs(const std::string& user, std::vector<std::string> words, double seconds) const {
  words.insert(words.begin(), {ProgramForAll("scalelab"), "--server", Address()});
  return RunProgram(As(user, words), EnvironmentOf(user), seconds);
}

nlohmann::json UsersService::JsonAs(const std::string& user, std::vector<std::string> words) const {
  words.insert(words.end(), {"-o", "json"});
  const Output output = RunAs(user, words);
  EXPECT_EQ(output.code, 0) << output.err;
  return nlohmann::json::parse(output.out, nullptr, false);
}

std::string UsersService::SubmitAs(const std::string& user, const std::string& yaml,
                                   std::string* said) const {
  const Output output = RunAs(user, {"study", "submit", File("study.yaml", yaml)});
  EXPECT_EQ(output.code, 0) << output.err;
  if (said != nullptr) *said = output.err;
  return std::string(absl::StripAsciiWhitespace(output.out));
}

std::unique_ptr<Background> UsersService::StartAgent(const std::string& user) const {
  return std::make_unique<Background>(As(user, {ProgramForAll("scalelab"), "--server", Address(), "agent"}),
                                      AgentLog(user), EnvironmentOf(user));
}

bool UsersService::AgentConnects(const std::string& user) const {
  return Eventually([&] { return absl::StrContains(ReadFile(AgentLog(user)), "connected to"); });
}

}  // namespace scalelab::e2e
