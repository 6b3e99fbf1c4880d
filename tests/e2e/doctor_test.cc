// scalelabd doctor on a real Slurm cluster: a healthy set-up and broken ones.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/e2e/dev_cluster.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class Doctor : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = DevCluster::Unavailable(); !why.empty()) GTEST_SKIP() << why;
    std::string directory = testing::TempDir() + "doctor-XXXXXX";
    root_ = mkdtemp(directory.data());
    ASSERT_EQ(cluster_.Start(), "");
  }
  void TearDown() override {
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }

  // Runs the doctor on a set-up with more flags. `code` is its exit status.
  nlohmann::json Examine(std::vector<std::string> more, int code) {
    std::vector<std::string> argv = {Program("scalelabd"), "doctor",      "--job", "-o", "json", "--data",
                                     root_ + "/data",      "--scheduler", "slurm"};
    const auto given = [&more](const std::string& flag) {
      return std::find(more.begin(), more.end(), flag) != more.end();
    };
    if (!given("--runs")) argv.insert(argv.end(), {"--runs", root_ + "/runs"});
    if (!given("--listen")) argv.insert(argv.end(), {"--listen", cluster_.address() + ":7600"});
    argv.insert(argv.end(), more.begin(), more.end());
    std::map<std::string, std::string> env = cluster_.Env();
    if (const char* path = getenv("PATH")) env.emplace("PATH", path);
    const Output output = RunProgram(argv, env, 200);
    EXPECT_EQ(output.code, code) << output.out << output.err;
    return nlohmann::json::parse(output.out, nullptr, false);
  }

  // Returns the errors, as "check: text".
  static std::vector<std::string> Errors(const nlohmann::json& report) {
    std::vector<std::string> errors;
    for (const auto& check : report["checks"]) {
      if (check["level"] == "error")
        errors.push_back(
            absl::StrCat(check["check"].get<std::string>(), ": ", check["text"].get<std::string>()));
    }
    return errors;
  }

  std::string root_;
  DevCluster cluster_{{"-n", "2"}};
};

TEST_F(Doctor, FindsNoErrorOnAHealthyCluster) {
  const nlohmann::json report = Examine({}, 0);
  EXPECT_THAT(Errors(report), IsEmpty());
  std::vector<std::string> oks;
  for (const auto& check : report["checks"]) {
    if (check["level"] == "ok") oks.push_back(check["text"].get<std::string>());
  }
  EXPECT_THAT(oks, Contains(HasSubstr("and reaches the service"))) << report.dump(1);
  EXPECT_THAT(oks, Contains("makes and accepts credentials"));
  EXPECT_THAT(oks, Contains("Slurm would accept a job of this account"));
  EXPECT_TRUE(std::filesystem::is_empty(root_)) << "the test job leaves nothing";
}

TEST_F(Doctor, FindsAPortThatIsUsedAndAKeyThatOthersRead) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(7600);
  inet_pton(AF_INET, cluster_.address().c_str(), &name.sin_addr);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(fd, 8), 0);
  std::filesystem::create_directories(root_ + "/data");
  WriteFile(root_ + "/data/server.key", "x");
  chmod((root_ + "/data/server.key").c_str(), 0644);
  EXPECT_THAT(Errors(Examine({}, 1)), testing::UnorderedElementsAre(HasSubstr("listen: another program uses"),
                                                                    HasSubstr("keys: other users")));
  close(fd);
}

TEST_F(Doctor, FindsThatSlurmWouldRefuseItsJobs) {
  EXPECT_THAT(Errors(Examine({"--sbatch-option", "reservation=nowhere"}, 1)),
              testing::UnorderedElementsAre(AllOf(HasSubstr("submission: "), HasSubstr("nvalid")),
                                            HasSubstr("node: the test job was refused")));
}

TEST_F(Doctor, FindsADirectoryThatNodesDoNotShareAndAnAddressThatTheyCannotReach) {
  // Each node has its own /dev/shm.
  const std::string runs = "/dev/shm/scalelab-" + std::filesystem::path(root_).filename().string();
  EXPECT_THAT(Errors(Examine({"--runs", runs}, 1)),
              Contains(AllOf(HasSubstr("node: job "), HasSubstr(runs))));
  std::filesystem::remove_all(runs);
  // An address that is reserved for documentation.
  EXPECT_THAT(Errors(Examine({"--worker-server", "192.0.2.1:7600"}, 1)),
              Contains(HasSubstr("cannot connect to 192.0.2.1:7600")));
}

TEST_F(Doctor, FindsAControllerThatIsStopped) {
  ASSERT_EQ(cluster_.Control({"controller", "stop"}).code, 0);
  EXPECT_THAT(Errors(Examine({}, 1)), Contains(HasSubstr("slurm: the controller does not answer")));
}

}  // namespace
}  // namespace scalelab::e2e
