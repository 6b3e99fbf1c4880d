// Logins with MUNGE across the nodes of a cluster: the client is on another node than the service, and the two nodes have a munged
// each, with the same key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/e2e/slurm_service.h"
#include "tests/e2e/tls_calls.h"
#include "tests/fakes/munged.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

constexpr char kUser[] = "games";  // an account of every Debian system
constexpr int kNode = 2;           // the node of the client

class MungeAcrossNodes : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    if (!fakes::Munged::IsInstalled()) GTEST_SKIP() << "MUNGE is not installed";
    ASSERT_EQ(cluster_.Start(), "");
    service_ = std::make_unique<SlurmService>(
        cluster_, std::vector<std::string>{"--munge-socket", cluster_.dir() + "/munge.socket"});
    ASSERT_EQ(service_->Start(), "");
    chmod(service_->dir().c_str(), 0755);
    home_ = service_->dir() + "/home";
    std::filesystem::create_directory(home_);
    chmod(home_.c_str(), 0777);
    StartMunged();
    stub_ = v1::AuthService::NewStub(ChannelTo(*service_));
  }

  // Starts the munged of the node. It ends with the cluster.
  void StartMunged() {
    const std::string place = absl::StrCat(cluster_.dir(), "/nodes/", cluster_.Node(kNode), "/munged.");
    socket_ = place + "socket";
    const Output munged =
        cluster_.RunOn(kNode, {"munged", "--force", "--key-file=" + cluster_.dir() + "/munge.key",
                               "--socket=" + socket_, "--pid-file=" + place + "pid",
                               "--log-file=" + place + "log", "--seed-file=" + place + "seed"});
    ASSERT_EQ(munged.code, 0) << munged.err;
  }

  // Runs `scalelab` on the node as the user, without a token.
  Output RunOnNode(std::vector<std::string> words) const {
    words.insert(words.begin(),
                 {"env", "NO_COLOR=1", "HOME=" + home_, "XDG_CONFIG_HOME=" + home_ + "/config",
                  "XDG_RUNTIME_DIR=" + home_, "SCALELAB_MUNGE_SOCKET=" + socket_, ProgramForAll("scalelab")});
    return cluster_.RunOn(kNode, As(kUser, words));
  }
  // Returns a credential of the user, made by a munged that the node reaches.
  std::string Credential(const std::string& payload, const std::string& socket,
                         std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"munge", "--socket=" + socket, "--string=" + payload});
    const Output output = cluster_.RunOn(kNode, As(kUser, more));
    EXPECT_EQ(output.code, 0) << output.err;
    return std::string(absl::StripAsciiWhitespace(output.out));
  }

  std::string Text() { return TextForLogin(*stub_, *service_); }
  // Returns the message of the refusal, which the audit log must have too. The test fails if the credential is accepted.
  std::string Refusal(const std::string& credential) {
    v1::CreateSessionResponse session;
    const grpc::Status status = Login(*stub_, credential, &session);
    EXPECT_EQ(session.token(), "");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
    return AuditedRefusal(*service_, "CreateSession", "munge", status);
  }

  DevCluster cluster_{{"-n", "2"}};
  std::unique_ptr<SlurmService> service_;
  std::string home_, socket_;
  std::unique_ptr<v1::AuthService::Stub> stub_;
};

TEST_F(MungeAcrossNodes, AUserOfAnotherNodeNeedsNoToken) {
  const std::string server = TcpOf(*service_);
  const Output pinned = RunOnNode({"login", server, "--yes"});
  ASSERT_EQ(pinned.code, 0) << pinned.err;
  const Output who = RunOnNode({"--server", server, "whoami", "-o", "json"});
  ASSERT_EQ(who.code, 0) << who.err;
  const auto identity = nlohmann::json::parse(who.out, nullptr, false)["identity"];
  EXPECT_EQ(identity["user"], kUser);
  EXPECT_EQ(identity["source"], "munge");

  const std::string file =
      service_->File("study.yaml", ClusterStudy("ranks: [2]", 1, 5, "resources: {ranks_per_node: 1}\n"));
  const Output submitted = RunOnNode({"--server", server, "study", "submit", file});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  EXPECT_EQ(service_->Json({"study", "show", "studies/1"})["study"]["owner"], kUser);
  const std::string addresses = cluster_.RunOn(kNode, {"hostname", "-I"}).out;
  const auto entries = service_->Json({"admin", "audit", "--user", kUser})["entries"];
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(),
                          [&](const auto& entry) {
                            return entry["action"] == "CreateStudy" && entry["source"] == "munge" &&
                                   entry["result"] == "OK" &&
                                   absl::StrContains(addresses, entry["address"].template get<std::string>());
                          }))
      << entries << addresses;

  // Without MUNGE, the client on the node has no credentials.
  const std::string there = socket_;
  socket_ = "/nonexistent";
  home_ += "/other";
  EXPECT_EQ(RunOnNode({"login", server, "--yes"}).code, 0);
  EXPECT_EQ(RunOnNode({"--server", server, "study", "list"}).code, 4);
  socket_ = there;
}

TEST_F(MungeAcrossNodes, ReplayedForgedExpiredAndForeignCredentialsAreRefusedWithAnAuditEntry) {
  // The credential is accepted once, as its user.
  const std::string text = Text(), credential = Credential(text, socket_);
  v1::CreateSessionResponse session;
  const grpc::Status accepted = Login(*stub_, credential, &session);
  ASSERT_TRUE(accepted.ok()) << accepted.error_message();
  EXPECT_EQ(session.identity().user(), kUser);
  v1::GetIdentityResponse identity;
  EXPECT_TRUE(stub_->GetIdentity(Context(session.token()).get(), {}, &identity).ok());

  EXPECT_THAT(Refusal(credential), HasSubstr("Replayed credential"));
  EXPECT_THAT(Refusal(Credential(text, socket_)), HasSubstr("was used before"));
  std::string forged = Credential(Text(), socket_);
  forged[forged.size() / 2] = forged[forged.size() / 2] == 'A' ? 'B' : 'A';
  EXPECT_THAT(Refusal(forged), HasSubstr("MUNGE refuses"));
  {
    const fakes::Munged other_site;  // has another key
    EXPECT_THAT(Refusal(Credential(Text(), other_site.socket())), HasSubstr("Invalid credential"));
  }
  const std::string brief = Credential(Text(), socket_, {"--ttl=1"});
  Pause(2.1);  // the lifetime in whole seconds
  EXPECT_THAT(Refusal(brief), HasSubstr("Expired credential"));
  EXPECT_THAT(Refusal(Credential("another program", socket_)), HasSubstr("was not made for a login"));

  // A server to which a user logs in can use neither the credential nor the session token at another server.
  SlurmService other(cluster_, {"--munge-socket", cluster_.dir() + "/munge.socket"});
  ASSERT_EQ(other.Start(), "");
  const auto other_stub = v1::AuthService::NewStub(ChannelTo(other));
  EXPECT_THAT(Refusal(Credential(TextForLogin(*other_stub, other), socket_)),
              HasSubstr("is for another server"));
  // The other server may pass on a challenge of this one, but the client signs the certificate that it sees.
  EXPECT_THAT(Refusal(Credential(TextForLogin(*stub_, other), socket_)),
              HasSubstr("another certificate than that of this server"));
  EXPECT_EQ(other_stub->GetIdentity(Context(session.token()).get(), {}, &identity).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
}  // namespace scalelab::e2e
