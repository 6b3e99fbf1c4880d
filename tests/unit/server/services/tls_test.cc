// Tests of encrypted TCP connections, and of logins with MUNGE, through the whole server.
#include <openssl/x509v3.h>

#include "munge/login_text.h"
#include "scalelab/v1/auth.grpc.pb.h"
#include "tests/unit/server/services/rpc_fixture.h"
#include "tls/certificate.h"
#include "tls/credentials.h"
#include "tls/fetch.h"
#include "tls/openssl.h"

namespace scalelab::server {
namespace {

using testing::HasSubstr;

class TlsRpcTest : public RpcServerTest {
 protected:
  TlsRpcTest() {
    options_ = Options();
    options_.tls = *tls::MakeKeyPair({"scalelab"});
    Serve(options_);
  }
  std::string Port() const {
    const std::string& address = rpc_->addresses()[1];
    return address.substr(address.rfind(':') + 1);
  }
  // Connects over TCP and trusts this certificate.
  std::shared_ptr<grpc::Channel> Trusting(const std::string& certificate) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = tls::Trust(certificate, arguments);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return grpc::CreateCustomChannel("127.0.0.1:" + Port(), *credentials, arguments);
  }
  static bool Connects(const std::shared_ptr<grpc::Channel>& channel) {
    return channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(3));
  }

  RpcServerOptions options_;
};

TEST_F(TlsRpcTest, AClientThatTrustsTheCertificateIsServedWithAToken) {
  const auto channel = Trusting(options_.tls->certificate);
  EXPECT_TRUE(List(channel, "right-token").ok()) << List(channel, "right-token").error_message();
  EXPECT_EQ(List(channel, "wrong-token").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(List(channel).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsRpcTest, OtherClientsGetNoConnection) {
  EXPECT_FALSE(Connects(Trusting(tls::MakeKeyPair({"scalelab"})->certificate))) << "another certificate";
  EXPECT_FALSE(Connects(Trusting(""))) << "the authorities of the system";
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto plain =
      grpc::CreateCustomChannel("127.0.0.1:" + Port(), grpc::InsecureChannelCredentials(), own);
  EXPECT_FALSE(List(plain, "right-token").ok());
}

TEST_F(TlsRpcTest, ThePresentedCertificateCanBeFetched) {
  const auto presented = tls::FetchCertificate("localhost", Port(), absl::Seconds(10));
  ASSERT_TRUE(presented.ok()) << presented.status();
  EXPECT_EQ(presented->certificate, options_.tls->certificate);
  EXPECT_FALSE(presented->trusted);
  EXPECT_TRUE(absl::IsUnavailable(tls::FetchCertificate("127.0.0.1", "1", absl::Seconds(1)).status()));
  options_.tls.reset();
  Serve(options_);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(tls::FetchCertificate("127.0.0.1", Port(), absl::Seconds(1)).status()));
}

TEST_F(TlsRpcTest, LargeMessagesPass) {
  const auto channel = Trusting(options_.tls->certificate);
  v1::CreateStudyRequest create;
  *create.mutable_spec() = World::Spec({1});
  create.mutable_spec()->set_study(std::string(3 << 20, 'x'));
  v1::CreateStudyResponse created;
  const grpc::Status status =
      v1::StudyService::NewStub(channel)->CreateStudy(Context("right-token").get(), create, &created);
  // The service refuses the text, after it has read all of it.
  EXPECT_NE(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

TEST_F(TlsRpcTest, AConnectionThatDoesNotAuthenticateIsClosedAndOthersStay) {
  options_.connections.authentication_time = absl::Milliseconds(500);
  Serve(options_);
  const auto good = Trusting(options_.tls->certificate), silent = Trusting(options_.tls->certificate);
  ASSERT_TRUE(List(good, "right-token").ok());
  ASSERT_TRUE(Connects(silent));
  EXPECT_TRUE(silent->WaitForStateChange(GRPC_CHANNEL_READY,
                                         std::chrono::system_clock::now() + std::chrono::seconds(10)));
  EXPECT_EQ(good->GetState(false), GRPC_CHANNEL_READY);
}

TEST_F(TlsRpcTest, ReflectionIsServedOnTheUnixSocketOnly) {
  options_.reflection = true;
  Serve(options_);
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services("\x3a\x00", 2);
  EXPECT_THAT(Call(method, list_services), HasSubstr("StudyService"));
  EXPECT_EQ(Call(Trusting(options_.tls->certificate), method, list_services), "");
}

// A certificate that an authority has signed.
struct Site {
  std::string authority, certificate, key;
};

Site MakeSite() {
  const tls::KeyPair authority = *tls::MakeKeyPair({"authority"}),
                     server = *tls::MakeKeyPair({"login1.lab.org"});
  const auto read_key = [](const std::string& pem) {
    return tls::Key(PEM_read_bio_PrivateKey(tls::ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  };
  const tls::Key authority_key = read_key(authority.key);
  const tls::X509Certificate issuer = tls::NextCertificate(tls::ReaderOf(authority.certificate).get());
  const tls::X509Certificate subject = tls::NextCertificate(tls::ReaderOf(server.certificate).get());
  // Changes the first certificate to that of an authority with another name.
  for (int i = X509_get_ext_count(issuer.get()) - 1; i >= 0; --i)
    X509_EXTENSION_free(X509_delete_ext(issuer.get(), i));
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer.get(), issuer.get(), nullptr, nullptr, 0);
  X509_EXTENSION* const is_authority =
      X509V3_EXT_conf_nid(nullptr, &context, NID_basic_constraints, "critical,CA:TRUE");
  X509_add_ext(issuer.get(), is_authority, -1);
  X509_EXTENSION_free(is_authority);
  const auto* name = reinterpret_cast<const unsigned char*>("lab authority");
  X509_NAME_add_entry_by_txt(X509_get_subject_name(issuer.get()), "O", MBSTRING_ASC, name, -1, -1, 0);
  X509_set_issuer_name(issuer.get(), X509_get_subject_name(issuer.get()));
  X509_sign(issuer.get(), authority_key.get(), EVP_sha256());
  X509_set_issuer_name(subject.get(), X509_get_subject_name(issuer.get()));
  X509_sign(subject.get(), authority_key.get(), EVP_sha256());
  Site site;
  site.key = server.key;
  tls::Append(site.authority, issuer.get());
  tls::Append(site.certificate, subject.get());
  return site;
}

TEST_F(TlsRpcTest, ACertificateOfASiteIsTrustedByItselfOrByItsAuthority) {
  const Site site = MakeSite();
  options_.tls = tls::KeyPair{site.certificate, site.key};
  Serve(options_);
  EXPECT_TRUE(List(Trusting(site.certificate), "right-token").ok()) << "pinned";
  grpc::ChannelArguments arguments;
  const auto credentials = tls::Trust(site.authority, arguments);
  ASSERT_TRUE(credentials.ok());
  // The host that a client dials must be in the certificate.
  EXPECT_FALSE(Connects(grpc::CreateCustomChannel("127.0.0.1:" + Port(), *credentials, arguments)));
  arguments.SetSslTargetNameOverride("login1.lab.org");
  EXPECT_TRUE(
      List(grpc::CreateCustomChannel("127.0.0.1:" + Port(), *credentials, arguments), "right-token").ok());
}

class MungeRpcTest : public TlsRpcTest {
 protected:
  MungeRpcTest() {
    options_.decode_munge = [](const std::string& credential) -> absl::StatusOr<Munge::Decoded> {
      if (credential == "forged")
        return absl::UnauthenticatedError("MUNGE refuses the credential: Invalid credential");
      return Munge::Decoded{credential, getuid()};
    };
    Serve(options_);
    channel_ = Trusting(options_.tls->certificate);
    stub_ = v1::AuthService::NewStub(channel_);
  }
  std::string Challenge() {
    v1::CreateChallengeResponse response;
    EXPECT_TRUE(stub_->CreateChallenge(Context().get(), {}, &response).ok());
    return response.challenge();
  }
  // Returns what a client signs that sees a certificate.
  static std::string Signed(const std::string& challenge, const std::string& certificate) {
    return *LoginText(challenge, *tls::Fingerprint(certificate));
  }
  grpc::Status Login(const std::string& credential, v1::CreateSessionResponse* response) {
    v1::CreateSessionRequest request;
    request.set_munge_credential(credential);
    return stub_->CreateSession(Context().get(), request, response);
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AuthService::Stub> stub_;
};

TEST_F(MungeRpcTest, ACredentialIsExchangedForATokenOnce) {
  if (!Munge::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  const std::string credential = Signed(Challenge(), options_.tls->certificate);
  v1::CreateSessionResponse session;
  const grpc::Status status = Login(credential, &session);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(session.identity().user(), *Users({}).NameOf(getuid()));
  EXPECT_EQ(session.identity().source(), "munge");
  EXPECT_TRUE(List(channel_, session.token()).ok());
  const grpc::Status replayed = Login(credential, &session);
  EXPECT_EQ(replayed.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(replayed.error_message(), HasSubstr("was used before"));
}

TEST_F(MungeRpcTest, ACredentialForAnotherCertificateOrForNoneIsRefused) {
  if (!Munge::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  v1::CreateSessionResponse session;
  const grpc::Status relayed =
      Login(Signed(Challenge(), tls::MakeKeyPair({"scalelab"})->certificate), &session);
  EXPECT_EQ(relayed.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(relayed.error_message(), HasSubstr("another certificate than that of this server"));
  const grpc::Status unencrypted = Login(*LoginText(Challenge(), ""), &session);
  EXPECT_THAT(unencrypted.error_message(), HasSubstr("another certificate than that of this server"));
  const grpc::Status old_client = Login(Challenge(), &session);
  EXPECT_EQ(old_client.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(old_client.error_message(), HasSubstr("update scalelab"));
  EXPECT_EQ(session.token(), "");
}

TEST_F(MungeRpcTest, WrongCredentialsAreRefused) {
  if (!Munge::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
  v1::CreateSessionResponse session;
  EXPECT_EQ(Login("forged", &session).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Login("other payload", &session).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Login("", &session).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Login(std::string(10'000, 'x'), &session).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace scalelab::server
