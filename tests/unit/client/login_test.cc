// Tests of encrypted connections with certificates that are unknown, accepted, changed or wrong.
#include <sys/stat.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/session/session_token.h"
#include "munge/munge.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "server/munge/munge_login.h"
#include "tests/fakes/munged.h"
#include "tests/unit/client/client_fixture.h"
#include "tls/certificate.h"
#include "tls/credentials.h"

namespace scalelab::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LoginTest : public ClientTest {
 protected:
  LoginTest() { Serve("127.0.0.1:0"); }
  // Serves with a new certificate.
  void Serve(const std::string& address) {
    server_.Stop();
    const tls::KeyPair pair = *tls::MakeKeyPair({"scalelab"});
    fingerprint_ = *tls::Fingerprint(pair.certificate);
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({pair.key, pair.certificate});
    server_.Start(address, grpc::SslServerCredentials(options));
    address_ = "127.0.0.1:" + std::to_string(server_.port());
  }
  Outcome Login(std::vector<std::string> more) {
    more.insert(more.begin(), {"login", address_});
    return RunAsIs(more);
  }
  Outcome Cluster() { return RunAsIs({"cluster", "--server", address_}); }

  std::string address_, fingerprint_;
};

TEST_F(LoginTest, AnUnknownCertificateIsRefusedUntilItIsAccepted) {
  const Outcome unknown = Cluster();
  EXPECT_THAT(unknown, Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(unknown.err, AllOf(HasSubstr(fingerprint_), HasSubstr("scalelab login " + address_)));
  in_.str("no\n");
  const Outcome refused = Login({});
  EXPECT_THAT(refused, Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(refused.err, AllOf(HasSubstr(fingerprint_), HasSubstr("is not accepted")));
  EXPECT_THAT(Cluster(), Exits(ExitCode::kNotAllowed));
  in_ = std::istringstream("yes\n");
  EXPECT_THAT(Login({}), Exits(ExitCode::kOk));
  EXPECT_THAT(Cluster(), Exits(ExitCode::kOk));
  EXPECT_THAT(Login({}).err, HasSubstr("before"));
}

TEST_F(LoginTest, AChangedCertificateIsRefusedWithBothFingerprints) {
  ASSERT_THAT(Login({"--yes"}), Exits(ExitCode::kOk));
  const std::string old = fingerprint_;
  Serve(address_);
  ASSERT_NE(old, fingerprint_);
  const Outcome changed = Cluster();
  EXPECT_THAT(changed, Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(changed.err, AllOf(HasSubstr("has changed"), HasSubstr(old), HasSubstr(fingerprint_),
                                 HasSubstr("scalelab login " + address_)));
  const Outcome blindly = Login({"--yes"});
  EXPECT_THAT(blindly, Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(blindly.err, AllOf(HasSubstr(old), HasSubstr(fingerprint_), HasSubstr("--fingerprint")));
  EXPECT_THAT(Login({"--fingerprint", old}), Exits(ExitCode::kNotAllowed));
  EXPECT_THAT(Login({"--fingerprint", "sha256:" + fingerprint_}), Exits(ExitCode::kOk));
  EXPECT_THAT(Cluster(), Exits(ExitCode::kOk));
}

TEST_F(LoginTest, ServersAreKnownByHostAndPort) {
  ASSERT_THAT(Login({"--yes"}), Exits(ExitCode::kOk));
  const std::string first = address_;
  fakes::FakeServices second;
  const tls::KeyPair pair = *tls::MakeKeyPair({"scalelab"});
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs.push_back({pair.key, pair.certificate});
  second.Start("127.0.0.1:0", grpc::SslServerCredentials(options));
  address_ = "127.0.0.1:" + std::to_string(second.port());
  EXPECT_THAT(Cluster(), Exits(ExitCode::kNotAllowed));
  ASSERT_THAT(Login({"--yes"}), Exits(ExitCode::kOk));
  EXPECT_THAT(Cluster(), Exits(ExitCode::kOk));
  address_ = first;
  EXPECT_THAT(Cluster(), Exits(ExitCode::kOk));
}

TEST_F(LoginTest, MistakesAreExplained) {
  server_.Stop();
  EXPECT_THAT(Login({}), Exits(ExitCode::kUnreachable));
  server_.Start("127.0.0.1:0");
  address_ = "127.0.0.1:" + std::to_string(server_.port());
  const Outcome plain = Cluster();
  EXPECT_THAT(plain.err, AllOf(HasSubstr("does not answer with TLS"), HasSubstr("insecure:" + address_)));
  EXPECT_THAT(RunAsIs({"login", "insecure:" + address_}), Exits(ExitCode::kUsage));
  EXPECT_THAT(RunAsIs({"login", "unix:/tmp/s"}), Exits(ExitCode::kUsage));
  EXPECT_THAT(RunAsIs({"login"}), Exits(ExitCode::kUsage));
  std::filesystem::create_directories(dir_ + "/.config/scalelab");
  const std::string known = WriteFile(".config/scalelab/known_servers", "host:1 nonsense\n");
  const Outcome damaged = Cluster();
  EXPECT_THAT(damaged, Exits(ExitCode::kUsage));
  EXPECT_THAT(damaged.err, HasSubstr(known + ":1: "));
}

TEST_F(LoginTest, AStoredSessionTokenOfOthersIsIgnored) {
  const absl::Time now = absl::Now();
  const std::string file = dir_ + "/.cache/scalelab/session-host:1",
                    text = absl::StrCat(absl::ToUnixSeconds(now + absl::Minutes(5)), "\nsecret\n");
  std::filesystem::create_directories(dir_ + "/.cache/scalelab");
  WriteFile(".cache/scalelab/session-host:1", text);
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  EXPECT_EQ(StoredSession("host:1", now).secret, "secret");
  EXPECT_EQ(StoredSession("host:1", now + absl::Minutes(5)).secret, "") << "expired";
  EXPECT_EQ(StoredSession("host:2", now).secret, "");
  std::filesystem::permissions(file, std::filesystem::perms(0640));
  EXPECT_EQ(StoredSession("host:1", now).secret, "") << "others could have read it";
}

// A server with a certificate of its own that issues session tokens for MUNGE credentials, like scalelabd.
class FakeLogins final : public scalelab::v1::AuthService::Service {
 public:
  // If `target` is set, passes on the calls to that server.
  explicit FakeLogins(const std::string& socket, const std::shared_ptr<grpc::Channel>& target = nullptr)
      : munge_(socket),
        login_("key", *tls::Fingerprint(pair_.certificate),
               [this](const std::string& credential) { return munge_.Decode(credential); }) {
    if (target != nullptr) target_ = scalelab::v1::AuthService::NewStub(target);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", Credentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  // Returns a channel of a client that has accepted the certificate.
  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    const auto trusted = tls::Trust(pair_.certificate, arguments);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_), *trusted, arguments);
  }

  // Returns the certificate for a server whose AuthService is this one.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({pair_.key, pair_.certificate});
    return grpc::SslServerCredentials(options);
  }

  std::string challenge;  // if set, sent in place of a new one
  std::atomic<int> credentials = 0, logins = 0;

 private:
  grpc::Status CreateChallenge(grpc::ServerContext*, const scalelab::v1::CreateChallengeRequest* request,
                               scalelab::v1::CreateChallengeResponse* response) override {
    grpc::ClientContext context;
    if (target_ != nullptr) return target_->CreateChallenge(&context, *request, response);
    response->set_challenge(challenge.empty() ? login_.Challenge(absl::Now()) : challenge);
    return grpc::Status::OK;
  }
  grpc::Status CreateSession(grpc::ServerContext*, const scalelab::v1::CreateSessionRequest* request,
                             scalelab::v1::CreateSessionResponse* response) override {
    ++credentials;
    grpc::ClientContext context;
    if (target_ != nullptr) return target_->CreateSession(&context, *request, response);
    const auto account = login_.Check(request->munge_credential(), absl::Now());
    if (!account.ok()) return ToGrpc(account.status());
    if (*account != geteuid()) return grpc::Status::CANCELLED;
    response->set_token("session-" + std::to_string(++logins));
    response->mutable_identity()->mutable_expire_time()->set_seconds(absl::ToUnixSeconds(absl::Now()) + 1800);
    return grpc::Status::OK;
  }

  const tls::KeyPair pair_ = *tls::MakeKeyPair({"scalelab"});
  const Munge munge_;
  server::MungeLogin login_;
  std::unique_ptr<scalelab::v1::AuthService::Stub> target_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(LoginTest, AMungeCredentialIsExchangedForASessionTokenThatIsStored) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  FakeLogins logins(munged.socket());
  setenv("SCALELAB_MUNGE_SOCKET", munged.socket().c_str(), 1);
  const absl::Time now = absl::Now();
  const auto token = NewSession(logins.Channel(), "host:1", now + absl::Seconds(20));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->secret, "session-1");
  EXPECT_EQ(StoredSession("host:1", now).secret, "session-1");
  EXPECT_EQ(StoredSession("host:1", now + absl::Minutes(30)).secret, "");
  struct stat found {};
  ASSERT_EQ(stat((dir_ + "/.cache/scalelab/session-host:1").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  setenv("SCALELAB_MUNGE_SOCKET", "/nonexistent", 1);
  EXPECT_TRUE(absl::IsUnavailable(NewSession(logins.Channel(), "host:1", now + absl::Seconds(20)).status()));
  unsetenv("SCALELAB_MUNGE_SOCKET");
  EXPECT_EQ(logins.logins, 1);
}

// An earlier server at the same address, with another key, has issued the stored token.
TEST_F(LoginTest, AStoredSessionTokenThatTheServerRefusesIsReplacedOnce) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  FakeLogins logins(munged.socket());
  server_.Stop();
  server_.logins = &logins;
  server_.Start("127.0.0.1:0", logins.Credentials());
  address_ = absl::StrCat("127.0.0.1:", server_.port());
  ASSERT_THAT(Login({"--yes"}), Exits(ExitCode::kOk));
  server_.studies = {MakeStudy(7, "small", scalelab::v1::Study::SUCCEEDED, 0, 0, 1)};
  server_.looks = {Look(server_.studies[0])};
  auto& run = server_.runs.emplace_back();
  run.set_name("studies/7/runs/11");
  run.set_state(scalelab::v1::Run::SUCCEEDED);
  run.add_attempts()->set_number(1);
  server_.log.emplace_back().set_data("text\n");
  server_.points.emplace_back().set_key("loss");
  server_.archive = {"bytes"};
  const std::string archive = dir_ + "/7.archive", stored = ".cache/scalelab/session-" + address_;
  std::filesystem::create_directories(dir_ + "/.cache/scalelab");
  setenv("SCALELAB_MUNGE_SOCKET", munged.socket().c_str(), 1);
  const auto run_with_old_token = [&](std::vector<std::string> command, const std::string& accepted) {
    WriteFile(stored, absl::StrCat(absl::ToUnixSeconds(absl::Now() + absl::Minutes(5)), "\nold\n"));
    std::filesystem::permissions(dir_ + "/" + stored, std::filesystem::perms(0600));
    server_.token = accepted;
    command.insert(command.end(), {"--server", address_});
    return RunAsIs(command);
  };
  const std::vector<std::vector<std::string>> commands = {{"study", "list"},
                                                          {"study", "watch", "7"},
                                                          {"study", "wait", "7"},
                                                          {"run", "logs", "11"},
                                                          {"run", "logs", "11", "-f"},
                                                          {"run", "metrics", "11"},
                                                          {"study", "archive", "7", archive},
                                                          {"study", "restore", archive}};
  int logged_in = 0;
  for (const std::vector<std::string>& command : commands) {
    const Outcome outcome = run_with_old_token(command, absl::StrCat("session-", ++logged_in));
    EXPECT_THAT(outcome, Exits(ExitCode::kOk)) << absl::StrJoin(command, " ");
    EXPECT_EQ(logins.logins, logged_in) << absl::StrJoin(command, " ");
  }
  EXPECT_EQ(server_.restored, "bytes");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"study", "watch", "7"}, {"run", "logs", "11"}, {"run", "metrics", "11"}}) {
    EXPECT_THAT(run_with_old_token(command, "another"), Exits(ExitCode::kNotAllowed));
    EXPECT_EQ(logins.logins, ++logged_in) << absl::StrJoin(command, " ");
  }
  unsetenv("SCALELAB_MUNGE_SOCKET");
}

TEST_F(LoginTest, AServerThatPassesOnTheChallengeOfAnotherServerGetsNoSession) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  FakeLogins honest(munged.socket()), relay(munged.socket(), honest.Channel());
  setenv("SCALELAB_MUNGE_SOCKET", munged.socket().c_str(), 1);
  const absl::Time now = absl::Now();
  const auto relayed = NewSession(relay.Channel(), "relay:1", now + absl::Seconds(20)).status();
  EXPECT_TRUE(absl::IsUnauthenticated(relayed)) << relayed;
  EXPECT_THAT(std::string(relayed.message()), HasSubstr("another certificate than that of this server"));
  EXPECT_EQ(relay.credentials, 1);
  EXPECT_EQ(honest.credentials, 1);
  EXPECT_EQ(honest.logins, 0);
  EXPECT_EQ(StoredSession("relay:1", now).secret, "");
  const auto direct = NewSession(honest.Channel(), "honest:1", now + absl::Seconds(20));
  EXPECT_TRUE(direct.ok()) << direct.status();
  unsetenv("SCALELAB_MUNGE_SOCKET");
  EXPECT_EQ(honest.logins, 1);
}

TEST_F(LoginTest, ATextOfAServerThatIsNoChallengeIsNotSigned) {
  if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const fakes::Munged munged;
  FakeLogins server(munged.socket());
  server.challenge = "the request of another program";
  setenv("SCALELAB_MUNGE_SOCKET", munged.socket().c_str(), 1);
  const auto refused = NewSession(server.Channel(), "host:1", absl::Now() + absl::Seconds(20)).status();
  unsetenv("SCALELAB_MUNGE_SOCKET");
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this client does not sign it"));
  EXPECT_EQ(server.credentials, 0);
}

}  // namespace
}  // namespace scalelab::client
