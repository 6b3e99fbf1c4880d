#include "server/doctor/machine_checks.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/doctor/findings.h"

namespace scalelab::server::doctor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uid_t kUser = 1000;

DirectoryFacts GoodDirectory() {
  DirectoryFacts facts;
  facts.path = facts.existing = "/var/lib/scalelab";
  facts.is_directory = true;
  facts.owner = kUser;
  facts.mode = 0700;
  facts.free_bytes = int64_t{100} << 30;
  facts.free_inodes = 1'000'000;
  return facts;
}

const DirectoryUse kData{.subject = "data", .must_be_local = true, .must_be_private = true};
const DirectoryUse kRuns{.subject = "runs", .nodes_use_it = true};

TEST(MachineChecks, AClockWithoutATimeServerIsAWarning) {
  EXPECT_THAT(CheckClock({true, true}), IsOk("synchronised"));
  EXPECT_THAT(CheckClock({true, false}), IsWarning("not synchronised"));
  EXPECT_THAT(CheckClock({false, false}), IsWarning("does not report"));
}

TEST(MachineChecks, AGoodDirectoryIsOneLine) {
  EXPECT_THAT(CheckDirectory(GoodDirectory(), kData, kUser),
              ElementsAre(IsOk("/var/lib/scalelab, local filesystem")));
}

TEST(MachineChecks, ADirectoryThatDoesNotExistIsCreatedWhereItsParentIsWritable) {
  DirectoryFacts facts = GoodDirectory();
  facts.existing = "/var/lib";
  facts.owner = 0;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsOk("will be created")));
  facts.write_error = "Permission denied";
  EXPECT_THAT(
      CheckDirectory(facts, kData, kUser),
      ElementsAre(IsError("/var/lib/scalelab does not exist, and user 1000 cannot write to /var/lib")));
}

TEST(MachineChecks, TheDatabaseOnANetworkFilesystemIsAnError) {
  DirectoryFacts facts = GoodDirectory();
  facts.network = "NFS";
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsError("network filesystem (NFS)")));
  DirectoryUse rollback = kData;
  rollback.must_be_local = false;
  EXPECT_THAT(CheckDirectory(facts, rollback, kUser), ElementsAre(IsOk("NFS filesystem")));
  EXPECT_THAT(CheckDirectory(facts, kRuns, kUser), ElementsAre(IsOk("NFS filesystem")));
}

TEST(MachineChecks, RunsOnALocalFilesystemIsAWarningOnACluster) {
  EXPECT_THAT(CheckDirectory(GoodDirectory(), kRuns, kUser), ElementsAre(IsWarning("local filesystem")));
}

TEST(MachineChecks, LittleSpaceIsAWarningAndNoneAnError) {
  DirectoryFacts facts = GoodDirectory();
  facts.free_bytes = int64_t{1} << 30;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsWarning("1.0 GiB")));
  facts.free_bytes = 1000;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsError("0.0 GiB")));
  facts = GoodDirectory();
  facts.free_inodes = 5000;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsWarning("5000 more files")));
  facts.free_inodes = 0;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsError("0 more files")));
  facts.free_inodes.reset();
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsOk("")));
}

TEST(MachineChecks, OwnersAndModesOfADirectoryAreChecked) {
  DirectoryFacts facts = GoodDirectory();
  facts.owner = 7;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser),
              ElementsAre(IsWarning("belongs to user 7, not to user 1000")));
  facts = GoodDirectory();
  facts.mode = 0777;
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsError("mode 0777")));
  facts.network = "NFS";
  EXPECT_THAT(CheckDirectory(facts, kRuns, kUser), ElementsAre(IsOk("")));
}

TEST(MachineChecks, AFileServerWithAnotherTimeIsAWarning) {
  DirectoryFacts facts = GoodDirectory();
  facts.clock_offset = absl::Seconds(-90);
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsWarning("1m30s behind")));
  facts.clock_offset = absl::Seconds(5);
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsWarning("5s ahead")));
  facts.clock_offset = absl::Milliseconds(500);
  EXPECT_THAT(CheckDirectory(facts, kData, kUser), ElementsAre(IsOk("")));
}

TEST(MachineChecks, ASecretThatOthersReadIsAnError) {
  EXPECT_THAT(CheckSecrets({{"/d/server.key", kUser, 0600}, {"/d/client.token", kUser, 0600}}, kUser),
              ElementsAre(IsOk("2 files")));
  EXPECT_THAT(CheckSecrets({{"/d/server.key", kUser, 0640}, {"/d/client.token", 5, 0600}}, kUser),
              ElementsAre(IsError("/d/server.key (mode 0640)"), IsWarning("belongs to user 5")));
  EXPECT_THAT(CheckSecrets({}, kUser), ElementsAre(IsOk("0 files")));
}

TEST(MachineChecks, LowLimitsAreFound) {
  EXPECT_THAT(CheckLimits({65536, 10000}), IsOk("65536"));
  EXPECT_THAT(CheckLimits({1024, 10000}), IsWarning("1024"));
  EXPECT_THAT(CheckLimits({64, 10000}), IsError("64"));
  EXPECT_THAT(CheckLimits({65536, 100}), IsWarning("100 processes"));
}

TEST(MachineChecks, AnAddressIsFreeOrUsedByThisService) {
  AddressFacts facts;
  facts.text = "login1:7600";
  EXPECT_THAT(CheckAddress("listen", facts, 0), IsOk("is free"));
  facts.in_use = true;
  EXPECT_THAT(CheckAddress("listen", facts, 0), IsError("another program uses login1:7600"));
  EXPECT_THAT(CheckAddress("listen", facts, 42), IsOk("process 42"));
  facts.in_use = false;
  facts.error = "the name login1 does not resolve";
  EXPECT_THAT(CheckAddress("listen", facts, 0), IsError("does not resolve"));
}

TEST(MachineChecks, AnAddressIsReportedUnderItsKey) {
  AddressFacts facts;
  facts.text = "127.0.0.1:9464";
  facts.in_use = true;
  EXPECT_EQ(CheckAddress("metrics", facts, 0).subject, "metrics");
  EXPECT_EQ(CheckAddress("metrics", facts, 42).subject, "metrics");
  facts.in_use = false;
  EXPECT_EQ(CheckAddress("web", facts, 0).subject, "web");
  facts.error = "not an address of this machine";
  EXPECT_EQ(CheckAddress("web", facts, 0).subject, "web");
  EXPECT_THAT(CheckAddress("web", facts, 0).advice, testing::HasSubstr("correct `web`"));
}

TEST(MachineChecks, EveryUserNeedsADirectoryInRunsIfJobsRunAsUsers) {
  const DirectoryUse use{.subject = "runs", .nodes_use_it = true, .users_write = true};
  DirectoryFacts facts = GoodDirectory();
  facts.network = "NFS";
  for (const mode_t mode : {0755u, 0777u, 01755u}) {  // for one account; without the sticky bit
    facts.mode = mode;
    EXPECT_THAT(CheckDirectory(facts, use, kUser), ElementsAre(IsError("jobs_run_as: user")));
  }
  for (const mode_t mode : {01777u, 01770u}) {
    facts.mode = mode;
    EXPECT_THAT(CheckDirectory(facts, use, kUser), ElementsAre(IsOk("")));
  }
  facts.owner = 0;
  EXPECT_THAT(CheckDirectory(facts, use, kUser), ElementsAre(IsOk(""))) << "as /tmp";
  facts.existing = "/var/lib";
  facts.mode = 0755;
  EXPECT_THAT(CheckDirectory(facts, use, kUser), ElementsAre(IsOk("will be created")));
}

TEST(MachineChecks, ACertificateIsValidNow) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15
  TlsFileFacts facts;
  facts.setting = "tls_certificate";
  facts.path = "/etc/ssl/lab.pem";
  facts.not_before = now - absl::Hours(24);
  facts.not_after = now + absl::Hours(24 * 300);
  EXPECT_THAT(CheckTls({facts}, now), ElementsAre(IsOk("/etc/ssl/lab.pem is valid until 2027-11-11")));
  EXPECT_THAT(CheckTls({facts}, facts.not_after - absl::Hours(24)),
              ElementsAre(IsWarning("tls_certificate: /etc/ssl/lab.pem expires on 2027-11-11")));
  EXPECT_THAT(CheckTls({facts}, facts.not_after + absl::Seconds(1)),
              ElementsAre(IsError("tls_certificate: /etc/ssl/lab.pem expired on 2027-11-11")));
  EXPECT_THAT(CheckTls({facts}, facts.not_before - absl::Hours(1)),
              ElementsAre(IsError("/etc/ssl/lab.pem is not valid before 2027-01-14")));
  facts.error = "Permission denied";
  EXPECT_THAT(CheckTls({facts}, now),
              ElementsAre(IsError("tls_certificate: /etc/ssl/lab.pem: Permission denied")));
  EXPECT_THAT(CheckTls({}, now), testing::IsEmpty());
}

TEST(MachineChecks, APrivateKeyThatEveryUserReadsIsAnError) {
  TlsFileFacts facts;
  facts.setting = "tls_key";
  facts.path = "/etc/ssl/lab.key";
  facts.is_key = true;
  facts.mode = 0640;
  EXPECT_THAT(CheckTls({facts}, absl::Now()), ElementsAre(IsOk("/etc/ssl/lab.key")))
      << "a group of Debian has the keys";
  facts.mode = 0644;
  EXPECT_THAT(CheckTls({facts}, absl::Now()),
              ElementsAre(IsError("other users may read /etc/ssl/lab.key (mode 0644)")));
}

TEST(MachineChecks, ASocketWhoseDirectorySystemdCreatesIsNoError) {
  AddressFacts facts;
  facts.text = "unix:/run/scalelab/s";
  facts.unix_socket = true;
  facts.error = "no such directory";
  EXPECT_THAT(CheckAddress("listen", facts, 0), IsWarning("no such directory"));
}

TEST(MachineChecks, UsersMustBeAbleToEnterTheDirectoryOfASocketThatIsOpenForThem) {
  AddressFacts facts;
  facts.text = "unix:/var/lib/scalelab/s";
  facts.unix_socket = true;
  EXPECT_THAT(CheckSocketAccess(facts, 0666), IsEmpty());
  facts.closed_to_others = "/var/lib/scalelab";
  EXPECT_THAT(
      CheckSocketAccess(facts, 0666),
      ElementsAre(IsWarning("socket_mode 0666 allows all users to connect to unix:/var/lib/scalelab/s, but "
                            "they cannot enter /var/lib/scalelab")));
  EXPECT_THAT(CheckSocketAccess(facts, 0666)[0].advice, HasSubstr("chmod o+x /var/lib/scalelab"));
  EXPECT_THAT(CheckSocketAccess(facts, 0600), IsEmpty()) << "only the account of the service may connect";
  EXPECT_THAT(CheckSocketAccess(facts, 0660), IsEmpty()) << "its group may enter";
  facts.closed_to_group = "/var/lib/scalelab";
  EXPECT_THAT(CheckSocketAccess(facts, 0660), ElementsAre(IsWarning("the group of the service")));
  facts.unix_socket = false;
  EXPECT_THAT(CheckSocketAccess(facts, 0666), IsEmpty());
}

ProgramFacts Sender(const std::string& setting, const std::string& path) {
  ProgramFacts facts;
  facts.setting = setting;
  facts.path = path;
  return facts;
}

TEST(MachineChecks, ProgramsThatSendNotificationsMustBeExecutable) {
  ProgramFacts mail = Sender("sendmail", "/usr/bin/msmtp"),
               chat = Sender("notify_commands: chat", "/opt/chat");
  EXPECT_THAT(CheckNotifications({mail, chat}, true), ElementsAre(IsOk("/usr/bin/msmtp, /opt/chat")));
  chat.error = "Permission denied";
  EXPECT_THAT(CheckNotifications({mail, chat}, true),
              ElementsAre(IsWarning("notify_commands: chat: /opt/chat: Permission denied"), IsOk("msmtp")));
  mail.error = "No such file or directory";
  EXPECT_THAT(CheckNotifications({mail}, true),
              ElementsAre(IsWarning("sendmail: /usr/bin/msmtp: No such file")));
  mail.path = "/usr/sbin/sendmail";
  EXPECT_THAT(CheckNotifications({mail}, true), ElementsAre(IsOk("no notification can be sent by mail")))
      << "the default, on a machine without mail";
  mail.error = "Permission denied";
  EXPECT_THAT(CheckNotifications({mail}, true),
              ElementsAre(IsWarning("/usr/sbin/sendmail: Permission denied")));
  EXPECT_THAT(CheckNotifications({}, true), IsEmpty());
}

TEST(MachineChecks, ProgramsThatNeedASetuidBitCannotSendNotificationsWithoutNewPrivileges) {
  ProgramFacts mail = Sender("sendmail", "/usr/sbin/sendmail"),
               chat = Sender("notify_commands: chat", "/opt/chat");
  mail.privileged = "/usr/sbin/postdrop";
  chat.privileged = "/opt/chat";
  const Findings findings = CheckNotifications({mail, chat}, true);
  EXPECT_THAT(findings,
              ElementsAre(IsWarning("sendmail: /usr/sbin/sendmail needs the setuid or setgid bit of "
                                    "/usr/sbin/postdrop"),
                          IsWarning("/opt/chat needs")));
  EXPECT_THAT(findings[0].advice, HasSubstr("notify: {sendmail: PROGRAM}"));
  EXPECT_THAT(findings[1].advice, HasSubstr("notify_commands"));
  EXPECT_THAT(CheckNotifications({mail, chat}, false), ElementsAre(IsOk("/usr/sbin/sendmail, /opt/chat")));
}

TEST(MachineChecks, WorkersCannotDialALoopbackAddress) {
  EXPECT_THAT(CheckWorkerServer("login1:7600", {}), IsOk("login1:7600"));
  EXPECT_THAT(CheckWorkerServer("login1:7600", {"", true}), IsError("this machine only"));
  EXPECT_THAT(CheckWorkerServer("login1:7600", {"the name login1 does not resolve", false}),
              IsError("resolve"));
}

}  // namespace
}  // namespace scalelab::server::doctor
