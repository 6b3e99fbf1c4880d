// Jobs under the accounts of their users, through the agents that the users run: three users, and the coordinator as a fourth
// account without privileges, on a real Slurm cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/e2e/tls_calls.h"
#include "tests/e2e/users_service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
namespace fs = std::filesystem;

// Returns a study whose ranks print their account, wait for `seconds` and finish.
std::string Study(int repeats, const std::string& seconds, const std::string& more = "") {
  return absl::StrCat(
      "study: accounts\nfixed:\n  engine: custom\n  ranks: 1\n  command: [sh, -c, \"id -un; sleep ", seconds,
      "; echo '{\\\"time\\\":1,\\\"event\\\":\\\"finish\\\"}' >>$SCALELAB_EVENTS\"]\nrepeats: ", repeats,
      "\nresources: {time: 5m}\n", more);
}

class Agents : public testing::Test {
 protected:
  explicit Agents(std::vector<std::string> more = {}) : check_(more) {
    more.insert(more.begin(), {"-n", "2", "--cpus", "64"});
    cluster_ = std::make_unique<DevCluster>(std::move(more));
  }
  void SetUp() override {
    if (const std::string why = UsersService::Unavailable(check_); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cluster_->Start(), "");
  }
  void StartService(const std::vector<std::string>& flags = {}) {
    service_ = std::make_unique<UsersService>(*cluster_, flags);
    ASSERT_EQ(service_->Start(), "");
  }

  // Submits a study of each user. Returns their names.
  std::map<std::string, std::string> SubmitOneOfEach(const std::string& seconds) {
    std::map<std::string, std::string> studies;
    for (const std::string& user : kUsers) {
      std::string said;
      studies[user] = service_->SubmitAs(user, Study(1, seconds), &said);
      EXPECT_THAT(said, HasSubstr("your agent has been started")) << user;
    }
    return studies;
  }
  // Waits until jobs of all users run, as squeue shows.
  void ExpectJobsOfAllUsers() {
    std::set<std::string> running;
    EXPECT_TRUE(Eventually(
        [&] {
          const Output queue = cluster_->Run({"squeue", "-h", "-t", "RUNNING", "-o", "%u"});
          for (const auto user : absl::StrSplit(queue.out, '\n', absl::SkipEmpty())) running.emplace(user);
          return running.size() == kUsers.size();
        },
        60))
        << absl::StrJoin(running, " ");
    EXPECT_THAT(running, ElementsAreArray(kUsers));
  }
  void WaitFor(const std::string& user, const std::string& study) {
    EXPECT_EQ(service_->RunAs(user, {"study", "wait", study, "--timeout", "100s"}).code, 0) << user;
  }

  const std::vector<std::string>& kUsers = UsersService::Users();
  const std::vector<std::string> check_;  // options of `dev-cluster check`
  std::unique_ptr<DevCluster> cluster_;
  std::unique_ptr<UsersService> service_;
};

TEST_F(Agents, EachUsersJobRunsUnderTheAccountOfThatUser) {
  StartService();
  const auto studies = SubmitOneOfEach("8");
  ExpectJobsOfAllUsers();
  for (const std::string& user : kUsers) {
    WaitFor(user, studies.at(user));
    const auto runs = service_->JsonAs(user, {"run", "list", studies.at(user)})["runs"];
    ASSERT_THAT(runs, SizeIs(1));
    // The coordinator gets the output from the agent: it may not enter the directory.
    const Output logs = service_->RunAs(user, {"run", "logs", runs[0]["name"]});
    EXPECT_EQ(logs.out, user + "\n") << logs.err;
    struct stat found {};
    ASSERT_EQ(stat((service_->RunsDir() + "/" + user).c_str(), &found), 0);
    EXPECT_EQ(found.st_uid, getpwnam(user.c_str())->pw_uid);
    EXPECT_EQ(found.st_mode & 0777, 0700u);
    EXPECT_NE(RunProgram(As("www-data", {"ls", service_->RunsDir() + "/" + user})).code, 0);
  }
  for (const std::string& user : kUsers) {
    const std::string account = absl::StrCat("UserId=", user, "(");
    int jobs = 0;
    for (const std::string& record : service_->JobRecords()) jobs += absl::StrContains(record, account);
    EXPECT_EQ(jobs, 1) << absl::StrJoin(service_->JobRecords(), "\n");
  }
  std::string said;
  service_->SubmitAs("games", Study(1, "0"), &said);
  EXPECT_THAT(said, Not(HasSubstr("agent"))) << "a second agent was started";
}

TEST_F(Agents, AJobThatWaitsInAHiddenPartitionIsFound) {
  StartService();
  const auto update = [&](const std::vector<std::string>& words) {
    std::vector<std::string> argv = {"scontrol", "update"};
    argv.insert(argv.end(), words.begin(), words.end());
    return cluster_->Run(argv).code;
  };
  const std::string nodes = absl::StrCat("nodename=", cluster_->Node(1), ",", cluster_->Node(2));
  ASSERT_EQ(update({"partitionname=main", "hidden=yes"}), 0);
  ASSERT_EQ(update({nodes, "state=drain", "reason=new disks"}), 0);
  const std::string study = service_->SubmitAs("games", Study(1, "0"));
  std::string why;
  EXPECT_TRUE(Eventually(
      [&] {
        why = service_->RunAs("games", {"study", "explain", study}).out;
        return absl::StrContains(why, "DRAINED");
      },
      60))
      << why;
  // Without --all, squeue shows no jobs of a hidden partition to a user without privileges.
  EXPECT_EQ(RunProgram(As("games", {"squeue", "-h"}), cluster_->Env()).out, "");
  ASSERT_EQ(update({nodes, "state=resume"}), 0);
  WaitFor("games", study);
}

TEST_F(Agents, AStudyWaitsForItsAgentAndARunningAllocationContinuesWithoutIt) {
  StartService({"--admins", "irc"});
  auto agent = service_->StartAgent("games");
  ASSERT_TRUE(service_->AgentConnects("games"));
  const std::string study = service_->SubmitAs("games", Study(2, "6"));
  ASSERT_TRUE(Eventually(
      [&] {
        return cluster_->Run({"squeue", "-h", "-t", "RUNNING", "-o", "%u"}).out == "games\n";
      },
      60));
  agent->Signal(SIGKILL);
  agent->Wait();
  EXPECT_EQ(service_->RunAs("games", {"study", "wait", study, "--timeout", "60s"}).code, 0)
      << "its allocation was running";
  // With --owner, the study belongs to a user without an agent. Otherwise the command line would start an
  // agent of the caller.
  const Output waiting = service_->RunAs(
      "irc", {"study", "submit", service_->File("waiting.yaml", Study(1, "0")), "--owner", "games"});
  const std::string second(absl::StripAsciiWhitespace(waiting.out));
  std::string why;
  EXPECT_TRUE(Eventually([&] {
    why = service_->RunAs("games", {"study", "explain", second}).out;
    return absl::StrContains(why, "the agent of games is not connected");
  })) << why;
  agent = service_->StartAgent("games");
  EXPECT_EQ(service_->RunAs("games", {"study", "wait", second, "--timeout", "60s"}).code, 0)
      << service_->RunAs("games", {"study", "explain", second}).out;
}

TEST_F(Agents, ThoseKilledInMidSubmissionLoseNoJobAndDoubleNone) {
  const int kills = std::getenv("SCALELAB_LONG_TESTS") != nullptr ? 50 : 8;
  StartService({"--pending-jobs-per-user", "100"});
  const auto per_run = [](int runs) { return Study(runs, "0", "allocation: per-run\n"); };
  const std::string log = service_->AgentLog("games");
  auto agent = service_->StartAgent("games");
  ASSERT_TRUE(service_->AgentConnects("games"));
  std::set<std::string> studies = {service_->SubmitAs("games", per_run(kills))};
  for (int kill = 0; kill < kills; ++kill) {
    // When a submission begins, kill the agent during it, at another moment each time.
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(ReadFile(log), " sbatch "); }, 60))
        << "no submission after " << kill << " kills: " << ReadFile(log);
    Pause(0.002 * (kill % 25));
    agent->Signal(SIGKILL);
    agent->Wait();
    fs::remove(log);
    agent = service_->StartAgent("games");
    if (kill % 5 == 4) {  // more work, so that there are submissions until the end
      EXPECT_TRUE(service_->AgentConnects("games"));
      studies.insert(service_->SubmitAs("games", per_run(10)));
    }
  }
  size_t runs = 0;
  for (const std::string& study : studies) {
    EXPECT_EQ(service_->RunAs("games", {"study", "wait", study, "--timeout", "300s"}, 330).code, 0) << study;
    const nlohmann::json listed = service_->JsonAs("games", {"run", "list", study})["runs"];
    for (const auto& run : listed) {
      EXPECT_EQ(run["state"], "SUCCEEDED") << run;
      ++runs;
    }
  }
  EXPECT_EQ(service_->LeftBehind(2, 90), "");
  // The token is the name of the job. Among the jobs with one name, only one ever had nodes; the others were
  // cancelled while they were pending.
  std::map<std::string, int> ran;
  for (const std::string& record : service_->JobRecords()) {
    EXPECT_THAT(record, HasSubstr("UserId=games("));
    std::string name;
    bool had_nodes = false;
    for (absl::string_view word : absl::StrSplit(record, ' ')) {
      if (absl::ConsumePrefix(&word, "Name=")) name = std::string(word);
      if (absl::ConsumePrefix(&word, "NodeList=")) had_nodes = !word.empty() && word != "(null)";
    }
    if (had_nodes) ++ran[name];
  }
  for (const auto& [name, count] : ran) EXPECT_EQ(count, 1) << name;
  std::printf("agents killed in mid-submission: %d; runs: %zu; jobs that ran: %zu\n", kills, runs,
              ran.size());
}

TEST_F(Agents, ForgedReplayedExpiredAndNarrowCredentialsAreRefusedWithAnAuditEntry) {
  const std::string munged = cluster_->dir() + "/munge.socket";
  StartService({"--munge-socket", munged});
  const auto channel = ChannelTo(*service_);
  const auto identities = v1::AuthService::NewStub(channel);
  const auto studies = v1::StudyService::NewStub(channel);
  const auto sign = [&](const std::string& user, const std::string& text,
                        std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"munge", "--socket=" + munged, "--string=" + text});
    const Output output = RunProgram(As(user, more), cluster_->Env());
    EXPECT_EQ(output.code, 0) << output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  };
  const auto text = [&] { return TextForLogin(*identities, *service_); };
  const auto refused_login = [&](const std::string& credential) {
    v1::CreateSessionResponse session;
    return AuditedRefusal(*service_, "CreateSession", "munge", Login(*identities, credential, &session));
  };
  const auto identify = [&](const std::string& token, const std::string& user = "") {
    v1::GetIdentityResponse response;
    const grpc::Status status = identities->GetIdentity(Context(token).get(), {}, &response);
    EXPECT_TRUE(!status.ok() || response.identity().user() == user) << response.DebugString();
    return status;
  };
  const auto refused_token = [&](const std::string& token) {
    return AuditedRefusal(*service_, "GetIdentity", "", identify(token));
  };
  const auto create_token = [&](const std::string& user, std::vector<std::string> more) {
    more.insert(more.begin(), {"token", "create", "-q"});
    const Output output = service_->RunAs(user, more);
    EXPECT_EQ(output.code, 0) << output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  };
  const std::string expired = sign("games", text(), {"--ttl=1"}),
                    brief = create_token("games", {"--expires", "1s"}),
                    read = create_token("irc", {"--scope", "read"});
  const double made = Now();

  // Each credential is accepted once, as the account that made it.
  std::map<std::string, std::string> sessions;
  for (const std::string& user : kUsers) {
    const std::string credential = sign(user, text());
    v1::CreateSessionResponse session;
    const grpc::Status accepted = Login(*identities, credential, &session);
    ASSERT_TRUE(accepted.ok()) << user << ": " << accepted.error_message();
    EXPECT_EQ(session.identity().user(), user);
    EXPECT_TRUE(identify(session.token(), user).ok()) << user;
    sessions[user] = session.token();
    EXPECT_THAT(refused_login(credential), HasSubstr("Replayed credential")) << user;
  }
  std::string forged = sign("irc", text());
  forged[forged.size() / 2] = forged[forged.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_THAT(refused_login(forged), HasSubstr("MUNGE refuses"));
  EXPECT_THAT(refused_login(sign("news", "another program")), HasSubstr("was not made for a login"));

  // The signature of a session, or a token, of one user does not make the caller another user.
  const std::string session = sessions.at("irc"), signature = session.substr(session.find('.'));
  for (const char* user : {"games", "root"}) {
    const std::string claims = absl::WebSafeBase64Escape(absl::StrCat(user, "\nmunge\n3\n4102444800000000"));
    EXPECT_THAT(refused_token(absl::StrCat("sls_", claims, signature)),
                HasSubstr("the session token is not one of this server"));
  }
  std::string other = read;
  other.back() = other.back() == '0' ? '1' : '0';
  EXPECT_THAT(refused_token(other), HasSubstr("the token is not one of this server"));

  // A token for reading may not submit.
  EXPECT_TRUE(identify(read, "irc").ok());
  v1::CreateStudyRequest request;
  request.mutable_spec()->set_study("narrow");
  v1::CreateStudyResponse created;
  const grpc::Status narrow = studies->CreateStudy(Context(read).get(), request, &created);
  EXPECT_THAT(AuditedRefusal(*service_, "CreateStudy", "token 2", narrow),
              HasSubstr("the scope of token 2 is read, and this call needs scope submit"));

  Pause(std::max(0.0, made + 2.1 - Now()));  // MUNGE counts the lifetime in whole seconds
  EXPECT_THAT(refused_login(expired), HasSubstr("Expired credential"));
  EXPECT_THAT(refused_token(brief), HasSubstr("token 1 expired"));
  EXPECT_TRUE(service_->JsonAs("games", {"study", "list"}).value("studies", nlohmann::json::array()).empty());
}

// A cluster with slurmdbd, in which the users have an account.
class AccountedAgents : public Agents {
 protected:
  AccountedAgents() : Agents({"--accounting"}) {}
  void SetUp() override {
    Agents::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    for (const std::string& user : kUsers) {
      const Output added = cluster_->Run({"sacctmgr", "--immediate", "add", "user", user, "account=lab"});
      ASSERT_EQ(added.code, 0) << added.out << added.err;
    }
    StartService();
  }
  // Returns the jobs in the accounting database, each as "User|Account|State|JobName".
  std::vector<std::string> Accounted() {
    return absl::StrSplit(cluster_
                              ->Run({"sacct", "--allusers", "--allocations", "--noheader", "--parsable2",
                                     "--format=User,Account,State,JobName%60"})
                              .out,
                          '\n', absl::SkipEmpty());
  }
};

TEST_F(AccountedAgents, SqueueAndSacctShowEachJobUnderTheAccountOfItsUser) {
  const auto studies = SubmitOneOfEach("8");
  ExpectJobsOfAllUsers();
  std::vector<std::string> expected;
  for (const std::string& user : kUsers) {
    WaitFor(user, studies.at(user));
    const auto runs = service_->JsonAs(user, {"run", "list", studies.at(user)})["runs"];
    const auto attempts = service_->Attempts(runs.at(0)["name"]);
    ASSERT_THAT(attempts, SizeIs(1));
    const std::string allocation = attempts[0]["allocation"];
    expected.push_back(absl::StrCat(user, "|lab|COMPLETED|", absl::StripPrefix(allocation, "allocations/")));
  }
  EXPECT_TRUE(Eventually([&] {
    const auto accounted = Accounted();
    return std::set(accounted.begin(), accounted.end()) == std::set(expected.begin(), expected.end());
  })) << "expected:\n"
      << absl::StrJoin(expected, "\n") << "\nsacct:\n"
      << absl::StrJoin(Accounted(), "\n");
}

TEST_F(AccountedAgents, AUserNeitherReadsNorCancelsNorSubmitsForAnother) {
  const std::string secret = service_->SubmitAs("games", Study(1, "30", "visibility: private\n"));
  const std::string open = service_->SubmitAs("games", Study(1, "30"));
  ASSERT_TRUE(Eventually(
      [&] {
        const auto runs = service_->JsonAs("games", {"run", "list", open})["runs"];
        return !runs.empty() && runs[0]["state"] == "RUNNING";
      },
      60));
  const auto refused = [&](const std::vector<std::string>& words) {
    const Output output = service_->RunAs("irc", words);
    EXPECT_NE(output.code, 0) << absl::StrJoin(words, " ");
    return output.err;
  };
  EXPECT_THAT(refused({"study", "show", secret}), AllOf(HasSubstr("there is no"), Not(HasSubstr("games"))));
  EXPECT_THAT(refused({"study", "cancel", open}), HasSubstr("belongs to games, and you are irc"));
  const std::string run = service_->JsonAs("games", {"run", "list", open})["runs"][0]["name"];
  EXPECT_THAT(refused({"run", "cancel", run}), HasSubstr("belongs to games, and you are irc"));
  EXPECT_THAT(refused({"study", "submit", service_->File("other.yaml", Study(1, "0")), "--owner", "games"}),
              HasSubstr("only admins may submit a study for another"));
  // Slurm itself refuses too, because the job is that of games.
  const std::string job(
      absl::StripAsciiWhitespace(cluster_->Run({"squeue", "-h", "-u", "games", "-o", "%i"}).out));
  const std::string first = job.substr(0, job.find('\n'));
  EXPECT_NE(RunProgram(As("irc", {"scancel", first}), cluster_->Env()).code, 0);
  EXPECT_EQ(service_->Runs(open)[0]["state"], "RUNNING");

  std::vector<std::string> rows;
  const nlohmann::json entries = service_->Json({"admin", "audit", "--refused"})["entries"];
  for (const auto& entry : entries) {
    rows.push_back(absl::StrCat(entry["user"].get<std::string>(), " ", entry["action"].get<std::string>(),
                                " ", entry["result"].get<std::string>()));
  }
  for (const char* action : {"CancelStudy", "CancelRun", "CreateStudy"})
    EXPECT_THAT(rows, Contains(absl::StrCat("irc ", action, " PERMISSION_DENIED")));
  for (const std::string& study : {secret, open})
    EXPECT_EQ(service_->RunAs("games", {"study", "cancel", study}).code, 0);
}

}  // namespace
}  // namespace scalelab::e2e
