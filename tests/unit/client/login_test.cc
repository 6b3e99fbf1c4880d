// Tests of encrypted connections with certificates that are unknown, accepted, changed or wrong.
#include <sys/stat.h>

#include "client/session/session_token.h"
#include "munge/munge.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "tests/fakes/munged.h"
#include "tests/unit/client/client_fixture.h"
#include "tls/certificate.h"

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

// A fake AuthService that issues session tokens for credentials that contain its challenge.
class FakeLogins final : public scalelab::v1::AuthService::Service {
 public:
  explicit FakeLogins(const std::string& socket) : munge_(socket) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::shared_ptr<grpc::Channel> Channel() { return server_->InProcessChannel({}); }
  int logins = 0;

 private:
  grpc::Status CreateChallenge(grpc::ServerContext*, const scalelab::v1::CreateChallengeRequest*,
                               scalelab::v1::CreateChallengeResponse* response) override {
    response->set_challenge("challenge");
    return grpc::Status::OK;
  }
  grpc::Status CreateSession(grpc::ServerContext*, const scalelab::v1::CreateSessionRequest* request,
                             scalelab::v1::CreateSessionResponse* response) override {
    const auto decoded = munge_.Decode(request->munge_credential());
    if (!decoded.ok()) return ToGrpc(decoded.status());
    if (decoded->payload != "challenge" || decoded->uid != geteuid()) return grpc::Status::CANCELLED;
    response->set_token("session-" + std::to_string(++logins));
    response->mutable_identity()->mutable_expire_time()->set_seconds(absl::ToUnixSeconds(absl::Now()) + 1800);
    return grpc::Status::OK;
  }
  const Munge munge_;
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

}  // namespace
}  // namespace scalelab::client
