// Tests of the checks of whole configurations, and of the certificate files for TCP.
#include "server/doctor/doctor.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/doctor/account.h"
#include "tests/unit/server/doctor/findings.h"
#include "tls/certificate.h"
#include "tls/openssl.h"

namespace scalelab::server::doctor {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::Not;

auto About(const std::string& subject) { return Field(&Finding::subject, subject); }

// Returns the certificate with a validity that ended yesterday.
std::string Expired(const tls::KeyPair& pair) {
  const tls::X509Certificate certificate = tls::NextCertificate(tls::ReaderOf(pair.certificate).get());
  const tls::Key key(PEM_read_bio_PrivateKey(tls::ReaderOf(pair.key).get(), nullptr, nullptr, nullptr));
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3L * 24 * 60 * 60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), -1L * 24 * 60 * 60);
  EXPECT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  std::string pem;
  tls::Append(pem, certificate.get());
  return pem;
}

class DoctorTest : public testing::Test {
 protected:
  DoctorTest() {
    std::string directory = testing::TempDir() + "doctor-XXXXXX";
    root_ = mkdtemp(directory.data());
    subject_.data_dir = root_ + "/data";
    subject_.runs_dir = root_ + "/runs";
    subject_.listen = {"unix:" + root_ + "/data/scalelab.sock"};
    subject_.scheduler = "local";
    subject_.worker_program = "/b/scalelab-worker";
  }
  ~DoctorTest() override { std::filesystem::remove_all(root_); }

  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = root_ + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }

  Findings Check() { return Examine(subject_, programs_.run()); }

  std::string root_;
  Subject subject_;
  FakePrograms programs_;
};

// A TCP port of the loopback interface on which a program listens.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&name), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &size), 0);
    address = absl::StrCat("127.0.0.1:", ntohs(name.sin_port));
  }
  ~Listener() { close(fd_); }
  std::string address;

 private:
  const int fd_;
};

TEST_F(DoctorTest, PortsOfMetricsAndDashboardThatAreUsedAreFound) {
  const Listener first, second;
  subject_.metrics = first.address;
  subject_.web = second.address;
  const Findings findings = Check();
  EXPECT_THAT(findings, Contains(AllOf(About("metrics"), IsError("another program uses " + first.address))));
  EXPECT_THAT(findings, Contains(AllOf(About("web"), IsError("another program uses " + second.address))));
}

TEST_F(DoctorTest, MetricsAndDashboardThatAreNotServedAreNotChecked) {
  EXPECT_THAT(Check(), Not(Contains(About("metrics"))));
  EXPECT_THAT(Check(), Not(Contains(About("web"))));
}

TEST_F(DoctorTest, JobsOfUsersAreNotSubmittedByThisAccount) {
  subject_.scheduler = "slurm";
  subject_.users_submit = true;
  subject_.test_job = true;
  for (const char* program : {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"})
    programs_.Answer(absl::StrCat(program, " --version"), "slurm-wlm 22.05.8\n");
  programs_.Answer("scontrol show config", "SLURM_VERSION = 22.05.8\nTaskPlugin = task/affinity\n");
  std::filesystem::create_directories(subject_.runs_dir);
  chmod(subject_.runs_dir.c_str(), 0755);
  const Findings findings = Check();
  EXPECT_THAT(findings, Contains(AllOf(About("runs"), IsError("jobs_run_as: user"))));
  EXPECT_THAT(findings, Contains(AllOf(About("submission"), IsOk("agents"))));
  EXPECT_THAT(findings, Contains(AllOf(About("node"), IsWarning("no test job"))));
  EXPECT_THAT(programs_.calls, Contains("sbatch --version"));
  EXPECT_THAT(programs_.calls, Not(Contains(AllOf(HasSubstr("sbatch"), HasSubstr("--job-name")))));
  chmod(subject_.runs_dir.c_str(), 01777);
  EXPECT_THAT(Check(), Not(Contains(IsError("jobs_run_as: user"))));
}

class DoctorOfUsersTest : public DoctorTest {
 protected:
  DoctorOfUsersTest() {
    subject_.scheduler = "slurm";
    subject_.users_submit = true;
    subject_.test_job = true;
    for (const char* program : {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "srun"})
      programs_.Answer(absl::StrCat(program, " --version"), "slurm-wlm 22.05.8\n");
    programs_.Answer("scontrol show config", "SLURM_VERSION = 22.05.8\nTaskPlugin = task/affinity\n");
    programs_.Answer("sbatch --test-only", "");
    programs_.Fail("sbatch --parsable", "sbatch: error: no job for this test");
    std::filesystem::create_directories(subject_.data_dir);
    std::filesystem::create_directories(subject_.runs_dir);
    chmod(root_.c_str(), 0755);
    chmod(subject_.data_dir.c_str(), 0700);
    chmod(subject_.runs_dir.c_str(), 01777);
  }

  // Runs the checks in a child process. Exits with 0 if they submitted a job under the account nobody, and reported no
  // error except the refusal of that job.
  [[noreturn]] void CheckAndExit() {
    const Findings findings = Check();
    for (const Finding& finding : findings) {
      const bool refused =
          finding.subject == "node" && finding.text.find("no job for this") != std::string::npos;
      // The programs of the worker and the nodes are not part of this test.
      if (finding.level != Finding::Level::kError || refused || finding.subject == "programs" ||
          finding.subject == "nodes" || finding.subject == "limits")
        continue;
      fprintf(stderr, "%s: %s\n", finding.subject.c_str(), finding.text.c_str());
      std::_Exit(2);
    }
    const bool submitted = std::any_of(programs_.calls.begin(), programs_.calls.end(), [](const auto& call) {
      return call.rfind("sbatch --parsable", 0) == 0;
    });
    std::_Exit(submitted && geteuid() == 65534 ? 0 : 1);
  }
};

TEST_F(DoctorOfUsersTest, RootSubmitsTheTestJobUnderTheAccountOfAUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may change its account";
  subject_.job_user = "nobody";
  EXPECT_EXIT(CheckAndExit(), testing::ExitedWithCode(0), "");
}

TEST_F(DoctorOfUsersTest, AUserSubmitsTheTestJobWithoutTheChecksOfTheService) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may change its account";
  EXPECT_EXIT(
      {
        if (setgid(65534) != 0 || setuid(65534) != 0) std::_Exit(3);
        CheckAndExit();
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(DoctorOfUsersTest, AnAccountThatDoesNotExistIsAnError) {
  subject_.job_user = "no-such-account";
  EXPECT_THAT(Check(), Contains(AllOf(About("account"), IsError("no account no-such-account"))));
  EXPECT_THAT(programs_.calls, Not(Contains(HasSubstr("sbatch --parsable"))));
}

TEST_F(DoctorTest, AUserOfTheClusterIsNeitherRootNorTheOwnerOfTheData) {
  DirectoryFacts data;
  data.path = data.existing = "/var/lib/scalelab";
  data.owner = 900;
  EXPECT_TRUE(IsClusterUser(data, 1000));
  EXPECT_FALSE(IsClusterUser(data, 900));
  EXPECT_FALSE(IsClusterUser(data, 0));
  data.existing = "/var/lib";  // not installed yet
  EXPECT_FALSE(IsClusterUser(data, 1000));
}

TEST_F(DoctorTest, TheSocketOfMungedIsCheckedWithEveryScheduler) {
  subject_.munge_socket = "/run/m.socket";
  EXPECT_THAT(Check(), Contains(AllOf(About("munge"), IsError("munge: not found"))));
  programs_.Answer("munge --no-input --socket=/run/m.socket", "MUNGE:AwQ:");
  programs_.Answer("unmunge --socket=/run/m.socket", "STATUS: Success (0)");
  EXPECT_THAT(Check(), Contains(AllOf(About("munge"), IsOk("accepts"))));
  subject_.munge_socket.clear();
  EXPECT_THAT(Check(), Not(Contains(About("munge"))));
}

TEST_F(DoctorTest, ProgramsForNotificationsAreCheckedAgainstTheUnit) {
  subject_.sendmail = Write("mailer", "#!/bin/sh\n", 04755);
  subject_.notify_commands = {{"chat", root_ + "/none"}};
  Findings findings = Check();
  EXPECT_THAT(findings, Contains(AllOf(About("notify"), IsOk("/mailer"))));
  EXPECT_THAT(findings,
              Contains(AllOf(About("notify"), IsWarning("notify_commands: chat: " + root_ + "/none"))));
  programs_.Answer("systemctl show scalelabd.service --property=NoNewPrivileges", "NoNewPrivileges=yes\n");
  findings = Check();
  EXPECT_THAT(findings, Contains(AllOf(About("notify"), IsWarning("needs the setuid or setgid bit of"))));
  EXPECT_THAT(findings, Not(Contains(IsOk("/mailer"))));
}

TEST_F(DoctorTest, ASocketForAllUsersInADirectoryOfOneAccountIsFound) {
  std::filesystem::create_directories(subject_.data_dir);
  chmod(root_.c_str(), 0755);
  chmod(subject_.data_dir.c_str(), 0700);
  EXPECT_THAT(Check(), Not(Contains(IsWarning("cannot enter")))) << "with mode 0600 nobody else connects";
  subject_.socket_mode = 0666;
  EXPECT_THAT(Check(), Contains(AllOf(About("listen"), IsWarning("they cannot enter"))));
  chmod(subject_.data_dir.c_str(), 0711);
  EXPECT_THAT(Check(), Not(Contains(IsWarning("cannot enter"))));
}

TEST_F(DoctorTest, AnExpiredOrUnreadableCertificateIsFoundIfTcpUsesTls) {
  const auto pair = tls::MakeKeyPair({"localhost"});
  ASSERT_TRUE(pair.ok());
  subject_.tls_certificate = Write("lab.pem", Expired(*pair));
  subject_.tls_key = Write("lab.key", pair->key);
  subject_.tls_authority = root_ + "/none.pem";
  EXPECT_THAT(Check(), Not(Contains(About("tls")))) << "only a Unix socket is served";
  subject_.listen = {"127.0.0.1:0"};
  EXPECT_THAT(Check(), Contains(AllOf(About("tls"), IsError("lab.pem expired on "))));
  EXPECT_THAT(Check(), Contains(AllOf(About("tls"), IsOk("lab.key"))));
  EXPECT_THAT(Check(), Contains(AllOf(About("tls"), IsError("none.pem: No such file"))));
  subject_.tls_certificate.clear();
  subject_.tls_key.clear();
  subject_.tls_authority.clear();
  EXPECT_THAT(Check(), Not(Contains(About("tls")))) << "the first start makes the certificate";
  std::filesystem::create_directories(subject_.data_dir);
  Write("data/tls.pem", pair->key + Expired(*pair));
  EXPECT_THAT(Check(), Contains(AllOf(About("tls"), IsError("tls.pem expired on "))));
  subject_.insecure = true;
  EXPECT_THAT(Check(), Not(Contains(About("tls"))));
}

TEST_F(DoctorTest, ACertificateIsReadWithItsValidity) {
  const auto pair = tls::MakeKeyPair({"localhost"});
  ASSERT_TRUE(pair.ok());
  const TlsFileFacts facts = ReadCertificate("tls_certificate", Write("lab.pem", pair->certificate));
  EXPECT_EQ(facts.error, "");
  EXPECT_LT(facts.not_before, absl::Now());
  EXPECT_GT(facts.not_after, absl::Now() + absl::Hours(24 * 3649));
  EXPECT_LT(facts.not_after, absl::Now() + absl::Hours(24 * 3651));
  const TlsFileFacts first =
      ReadCertificate("tls_certificate", Write("chain.pem", pair->certificate + Expired(*pair)));
  EXPECT_EQ(first.not_after, facts.not_after) << "scalelabd presents the first";
  const TlsFileFacts latest =
      ReadCertificate("tls_authority", Write("authorities.pem", Expired(*pair) + pair->certificate));
  EXPECT_EQ(latest.not_after, facts.not_after) << "one valid authority is enough";
  EXPECT_THAT(ReadCertificate("tls_certificate", Write("x.pem", "x")).error, HasSubstr("no certificate"));
  EXPECT_THAT(ReadCertificate("tls_certificate", root_).error, HasSubstr("directory"));
}

TEST_F(DoctorTest, AKeyBelongsToItsCertificateAndHasNoPassphrase) {
  const auto pair = tls::MakeKeyPair({"localhost"}), other = tls::MakeKeyPair({"localhost"});
  ASSERT_TRUE(pair.ok() && other.ok());
  const std::string certificate = Write("lab.pem", pair->certificate);
  const TlsFileFacts facts = ReadKey("tls_key", Write("lab.key", pair->key, 0640), certificate);
  EXPECT_EQ(facts.error, "");
  EXPECT_TRUE(facts.is_key);
  EXPECT_EQ(facts.mode, 0640u);
  EXPECT_THAT(ReadKey("tls_key", Write("other.key", other->key), certificate).error,
              HasSubstr("not the key of the certificate in " + certificate));
  EXPECT_THAT(ReadKey("tls_key", certificate, certificate).error, HasSubstr("no private key"));
  const tls::Key key(PEM_read_bio_PrivateKey(tls::ReaderOf(pair->key).get(), nullptr, nullptr, nullptr));
  const tls::Bio out(BIO_new(BIO_s_mem()));
  std::string passphrase = "secret";
  ASSERT_EQ(PEM_write_bio_PrivateKey(out.get(), key.get(), EVP_aes_128_cbc(), nullptr, 0, nullptr,
                                     passphrase.data()),
            1);
  char* text = nullptr;
  const long size = BIO_get_mem_data(out.get(), &text);
  EXPECT_THAT(ReadKey("tls_key", Write("encrypted.key", std::string(text, size)), certificate).error,
              HasSubstr("without a passphrase"));
}

}  // namespace
}  // namespace scalelab::server::doctor
