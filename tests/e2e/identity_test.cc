// Tests several Unix users of one service. The service identifies them by their accounts on the socket, and
// by personal tokens over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

// Accounts that every Debian system has.
constexpr char kAlice[] = "daemon", kBob[] = "games", kVera[] = "mail", kNobody[] = "news";

std::string Study(const std::string& more = "") {
  return absl::StrCat(
      "study: small\nfixed: {model: resnet8, dataset: synthetic, max_steps: 100000}\n"
      "matrix: {ranks: [1]}\nscaling: {mode: strong, global_batch: 32}\n",
      more);
}

class IdentityTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can act as several users";
    chmod(service_.dir().c_str(), 0755);
    WriteFile(service_.dir() + "/scalelabd.yaml",
              absl::StrCat("listen: [\"", Socket(), "\", \"127.0.0.1:0\"]\nsocket_mode: \"0666\"\nusers: [",
                           kAlice, ", \"@", kBob, "\"]\nviewers: ", kVera, "\n"));
    ASSERT_EQ(service_.Start(), "");
  }
  std::string Socket() const { return "unix:" + service_.dir() + "/socket"; }
  Output RunAs(const std::string& user, std::vector<std::string> words) const {
    std::vector<std::string> argv = {
        "setpriv",  "--reuid", user, "--regid", user, "--init-groups", ProgramForAll("scalelab"),
        "--server", Socket()};
    argv.insert(argv.end(), words.begin(), words.end());
    return RunProgram(argv, {{"NO_COLOR", "1"}, {"HOME", "/nonexistent"}}, 60);
  }
  Output RunWith(const std::string& token, std::vector<std::string> words) const {
    const std::string file = service_.File("token", token + "\n");
    const std::map<std::string, std::string> environment = {{"NO_COLOR", "1"},
                                                            {"XDG_CONFIG_HOME", service_.dir() + "/config"}};
    EXPECT_EQ(RunProgram({ProgramForAll("scalelab"), "login", tcp(), "--yes"}, environment, 60).code, 0);
    std::vector<std::string> argv = {ProgramForAll("scalelab"), "--server", tcp(), "--token-file", file};
    argv.insert(argv.end(), words.begin(), words.end());
    return RunProgram(argv, environment, 60);
  }
  std::string SubmitAs(const std::string& user, const std::string& yaml,
                       std::vector<std::string> more = {}) const {
    const std::string file = service_.File("study.yaml", yaml);
    chmod(file.c_str(), 0644);
    std::vector<std::string> words = {"study", "submit", file};
    words.insert(words.end(), more.begin(), more.end());
    const Output output = RunAs(user, words);
    return output.code == 0 ? std::string(absl::StripAsciiWhitespace(output.out)) : output.err;
  }
  // Returns the entries of the audit log, newest first.
  nlohmann::json Audit(std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {"admin", "audit", "-o", "json"};
    words.insert(words.end(), more.begin(), more.end());
    const Output output = RunAs("root", words);
    EXPECT_EQ(output.code, 0) << output.err;
    return nlohmann::json::parse(output.out, nullptr, false)["entries"];
  }
  std::string tcp() const {
    const std::string line = service_.ready();
    return line.substr(line.rfind(' ') + 1);
  }
  // Lets the service use its own configuration file.
  struct ConfiguredService : Service {
    ConfiguredService() { AddFlags({"--config", dir() + "/scalelabd.yaml"}); }
  };
  ConfiguredService service_;
};

TEST_F(IdentityTest, AUserNeitherSeesNorControlsNorSubmitsAsAnother) {
  const std::string secret = SubmitAs(kBob, Study("visibility: private\n"));
  ASSERT_EQ(secret, "studies/1");
  const std::string open = SubmitAs(kBob, Study());
  ASSERT_EQ(open, "studies/2");
  EXPECT_EQ(nlohmann::json::parse(RunAs(kBob, {"study", "show", open, "-o", "json"}).out)["study"]["owner"],
            kBob);

  for (const auto& words : std::vector<std::vector<std::string>>{{"study", "show", secret},
                                                                 {"study", "watch", secret},
                                                                 {"study", "cancel", secret},
                                                                 {"run", "list", secret},
                                                                 {"run", "show", "1"},
                                                                 {"run", "logs", "1"},
                                                                 {"run", "metrics", "1"},
                                                                 {"run", "cancel", "1"},
                                                                 {"curve", secret}}) {
    const Output output = RunAs(kAlice, words);
    EXPECT_NE(output.code, 0) << words[0] << " " << words[1];
    EXPECT_THAT(output.err, AllOf(HasSubstr("there is no"), Not(HasSubstr(kBob))))
        << words[0] << " " << words[1];
  }
  EXPECT_THAT(RunAs(kAlice, {"study", "list"}).out, AllOf(HasSubstr(open), Not(HasSubstr(secret))));
  EXPECT_THAT(RunAs(kBob, {"study", "list"}).out, AllOf(HasSubstr(open), HasSubstr(secret)));
  EXPECT_THAT(RunAs("root", {"study", "list"}).out, AllOf(HasSubstr(open), HasSubstr(secret)));

  for (const auto& words : std::vector<std::vector<std::string>>{
           {"study", "cancel", open}, {"run", "cancel", "2"}, {"study", "resume", open}}) {
    const Output output = RunAs(kAlice, words);
    EXPECT_EQ(output.code, 4);
    EXPECT_THAT(output.err, HasSubstr(absl::StrCat(open, " belongs to ", kBob, ", and you are ", kAlice)));
  }
  EXPECT_THAT(SubmitAs(kAlice, Study(), {"--owner", kBob}),
              HasSubstr("only admins may submit a study for another"));
  EXPECT_THAT(SubmitAs(kAlice, Study("priority: 5\n")), HasSubstr("only admins may set a priority above 0"));
  EXPECT_THAT(SubmitAs(kVera, Study()), HasSubstr("is a viewer"));
  EXPECT_THAT(RunAs(kNobody, {"study", "list"}).err, HasSubstr("may not use this service"));
  EXPECT_EQ(RunAs(kVera, {"study", "show", open}).code, 0);
  EXPECT_EQ(RunAs(kBob, {"study", "cancel", open}).code, 0);
  EXPECT_EQ(RunAs("root", {"study", "cancel", secret}).code, 0);
}

TEST_F(IdentityTest, WrongExpiredRevokedAndNarrowTokensAreRefusedWithAnAuditEntry) {
  const auto create = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"token", "create", "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const Output output = RunAs(kAlice, words);
    EXPECT_EQ(output.code, 0) << output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  };
  const std::string read = create({"--scope", "read"}), shortlived = create({"--expires", "1s"}),
                    revoked = create({"--description", "laptop"}), submit = create({});
  EXPECT_THAT(RunWith(submit, {"whoami"}).out, AllOf(HasSubstr(kAlice), HasSubstr("token 4")));
  EXPECT_EQ(RunAs(kAlice, {"token", "revoke", "3"}).code, 0);
  EXPECT_NE(RunAs(kBob, {"token", "revoke", "1"}).code, 0);
  EXPECT_THAT(ReadFile(service_.data() + "/scalelab.db"), Not(HasSubstr(read))) << "the secret is stored";

  const std::string file = service_.File("study.yaml", Study());
  EXPECT_EQ(RunWith(submit, {"study", "submit", file}).code, 0);
  const Output narrow = RunWith(read, {"study", "submit", file});
  EXPECT_EQ(narrow.code, 4);
  EXPECT_THAT(narrow.err, HasSubstr("the scope of token 1 is read"));
  EXPECT_EQ(RunWith(read, {"study", "list"}).code, 0);
  const Output dead = RunWith(revoked, {"study", "list"});
  EXPECT_EQ(dead.code, 4);
  EXPECT_THAT(dead.err, HasSubstr("token 3 was revoked"));
  // Make a different call, because the audit log has only one entry for equal refused calls.
  const Output wrong = RunWith("slt_guess", {"cluster"});
  EXPECT_EQ(wrong.code, 4);
  EXPECT_THAT(wrong.err, HasSubstr("not one of this server"));
  EXPECT_TRUE(Eventually([&] { return RunWith(shortlived, {"whoami"}).code == 4; }));
  EXPECT_THAT(RunWith(shortlived, {"whoami"}).err, HasSubstr("token 2 expired"));

  std::vector<std::string> details;
  for (const auto& entry : Audit({"--refused", "--since", "1h"})) details.push_back(entry["detail"]);
  for (const char* part : {"the scope of token 1 is read", "was revoked", "not one of this server", "expired",
                           "revoke the token of another user"})
    EXPECT_THAT(details, Contains(HasSubstr(part))) << part;
  const auto changes = Audit({"--user", kAlice});
  EXPECT_TRUE(std::any_of(changes.begin(), changes.end(), [](const auto& e) {
    return e["action"] == "CreateStudy" && e["source"] == "token 4" && e["address"] == "127.0.0.1" &&
           e["target"] == "studies/1" && e["result"] == "OK";
  })) << changes;
  EXPECT_EQ(RunAs(kAlice, {"admin", "audit"}).code, 4);
}

TEST_F(IdentityTest, ARestartKeepsTokensAndAudit) {
  const std::string token(absl::StripAsciiWhitespace(RunAs(kAlice, {"token", "create", "-q"}).out));
  ASSERT_EQ(SubmitAs(kAlice, Study()), "studies/1");
  ASSERT_EQ(service_.Stop(), 0);
  ASSERT_EQ(service_.Start(), "");
  EXPECT_EQ(RunWith(token, {"study", "list"}).code, 0);
  EXPECT_EQ(Audit().size(), 2u);
}

// A single user still needs no flag and no login.
TEST(Identity, WithoutConfigurationTheAccountOfTheServiceMayDoEverythingAndNobodyElseConnects) {
  Service service;
  ASSERT_EQ(service.Start(), "");
  const auto me = service.Json({"whoami"})["identity"];
  EXPECT_EQ(me["role"], "ADMIN");
  EXPECT_EQ(me["source"], "unix socket");
  struct stat found {};
  ASSERT_EQ(stat((service.data() + "/scalelab.sock").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace scalelab::e2e
