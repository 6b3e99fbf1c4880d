// Errors that users can make. Each must give one clear sentence and the right exit code, and store nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BadInput : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(service_.Start(), ""); }
  void TearDown() override {
    EXPECT_EQ(service_.Json({"study", "list"})["studies"].size(), 0u) << "something was stored";
  }

  // Submits `yaml`. The exit code must be 2, and stderr must contain all of `words` and
  // the position FILE:line:column.
  void Refused(const std::string& yaml, const std::string& place, const std::vector<std::string>& words) {
    const std::string file = service_.File("bad.yaml", yaml);
    const Output output = service_.Run({"study", "submit", file});
    EXPECT_EQ(output.code, 2) << yaml << output.err;
    EXPECT_EQ(output.out, "");
    EXPECT_THAT(output.err, HasSubstr(place.empty() ? "bad.yaml" : absl::StrCat("bad.yaml:", place))) << yaml;
    for (const std::string& word : words) EXPECT_THAT(output.err, HasSubstr(word)) << yaml;
    EXPECT_LE(absl::StrSplit(output.err, '\n', absl::SkipEmpty()).operator std::vector<std::string>().size(),
              2u)
        << output.err;
  }

  static std::string Good(const std::string& more = "") {
    return absl::StrCat("study: s\nfixed: {model: resnet20, dataset: synthetic, max_steps: 2}\n", more);
  }

  Service service_{{"--local-slots", "2"}};
};

TEST_F(BadInput, UnknownKey) {
  Refused(Good("matrix: {ranks: [1]}\nrepeat: 3\n"), "4:1", {"repeat", "did you mean 'repeats'"});
  Refused("study: s\nfixed: {modle: resnet20, ranks: 1}\n", "2:9", {"modle", "did you mean 'model'"});
}
TEST_F(BadInput, DuplicateKey) {
  Refused(Good("matrix: {ranks: [1]}\nrepeats: 1\nrepeats: 2\n"), "5:1",
          {"repeats", "duplicate key", "line 4"});
}
TEST_F(BadInput, WrongType) {
  Refused(Good("matrix: {ranks: [1]}\nrepeats: many\n"), "4:1", {"repeats", "whole number", "many"});
}
TEST_F(BadInput, UnknownModel) {
  Refused("study: s\nfixed: {model: resnet21, dataset: synthetic, ranks: 1}\n", "2:9",
          {"resnet21", "did you mean 'resnet20'"});
}
TEST_F(BadInput, UnknownEngine) {
  Refused(Good("matrix: {engine: [native/dpd], ranks: [1]}\n"), "3:19", {"native/dpd", "native/ddp"});
}
TEST_F(BadInput, StrongBatchThatDoesNotDivide) {
  Refused(Good("matrix: {ranks: [1, 2]}\nscaling: {mode: strong, global_batch: 33}\n"), "4:", {"33", "2"});
}
TEST_F(BadInput, ZeroRanks) { Refused(Good("matrix: {ranks: [0, 1]}\n"), "3:18", {"0", "ranks"}); }
TEST_F(BadInput, NegativeRepeats) {
  Refused(Good("matrix: {ranks: [1]}\nrepeats: -1\n"), "4:1", {"-1", "repeats"});
}
TEST_F(BadInput, EmptyMatrix) { Refused(Good("matrix: {ranks: []}\n"), "3:", {"ranks"}); }
TEST_F(BadInput, NoYaml) { Refused("study: [unclosed\n", "", {"YAML"}); }
TEST_F(BadInput, EmptyFile) { Refused("", "", {"empty"}); }
TEST_F(BadInput, AMillionRuns) {
  Refused(Good("matrix: {ranks: [1]}\nrepeats: 1000000\n"), "", {"1,000,000", "100,000", "reduce repeats"});
}
TEST_F(BadInput, MoreRanksThanSlots) {
  Refused(Good("matrix: {ranks: [1, 64]}\n"), "3:", {"64", "2", "slots"});
}

TEST_F(BadInput, DataSetThatIsMissing) {
  Refused(absl::StrCat("study: s\nfixed: {model: resnet20, dataset: cifar10, data_dir: ", service_.dir(),
                       "/nowhere, ranks: 1}\n"),
          "2:", {"nowhere"});
}
TEST_F(BadInput, DataSetThatIsShortByOneByte) {
  const std::string data = service_.dir() + "/short";
  std::filesystem::copy(ShippedData(), data);
  const std::string file = data + "/data_batch_1.bin";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  Refused(
      absl::StrCat("study: s\nfixed: {model: resnet20, dataset: cifar10, data_dir: ", data, ", ranks: 1}\n"),
      "2:", {"data_batch_1.bin", "3073"});
}
TEST_F(BadInput, ARequestOfFiveMegabytes) {
  const Output output =
      service_.Run({"study", "submit", service_.File("big.yaml", Good("# ") + std::string(5 << 20, 'x'))});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("4 MiB"));
}
TEST_F(BadInput, MissingFile) {
  const Output output = service_.Run({"study", "submit", service_.dir() + "/none.yaml"});
  EXPECT_EQ(output.code, 2);
  EXPECT_THAT(output.err, HasSubstr("none.yaml"));
}

TEST(BadServer, NoServer) {
  const double start = Now();
  const Output output =
      RunProgram({Program("scalelab"), "--server", "unix:/tmp/scalelab-nobody.sock", "study", "list"});
  EXPECT_EQ(output.code, 6);
  EXPECT_THAT(output.err, AllOf(HasSubstr("/tmp/scalelab-nobody.sock"), HasSubstr("scalelabd")));
  EXPECT_LT(Now() - start, 10);
}

TEST(BadServer, SecondDaemonOnTheSameDirectory) {
  Service service;
  ASSERT_EQ(service.Start(), "");
  const Output output = RunProgram({Program("scalelabd"), "--data", service.data()});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err,
              AllOf(HasSubstr(service.data()), HasSubstr(absl::StrCat("pid ", service.daemon()->pid()))));
}

TEST(BadServer, DataDirectoryThatIsReadOnly) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root for a read-only mount";
  Service service;
  const std::string dir = service.dir() + "/readonly";
  std::filesystem::create_directory(dir);
  if (mount("tmpfs", dir.c_str(), "tmpfs", MS_RDONLY, "size=64k") != 0) GTEST_SKIP() << "may not mount here";
  const Output output = RunProgram({Program("scalelabd"), "--data", dir});
  umount(dir.c_str());
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, AllOf(HasSubstr(dir), HasSubstr("ead-only")));
}

TEST(BadServer, DatabaseOfANewerVersion) {
  Service service;
  ASSERT_EQ(service.Start(), "");
  ASSERT_EQ(service.Stop(), 0);
  ASSERT_EQ(RunProgram({"sqlite3", service.data() + "/scalelab.db", "pragma user_version = 9999"}).code, 0);
  const Output output = RunProgram({Program("scalelabd"), "--data", service.data()});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, AllOf(HasSubstr("9999"), HasSubstr("newer")));
}

TEST(BadServer, WrongTokenOverTcp) {
  Service service;
  const std::string config = service.File("config.yaml", "");
  Background daemon({Program("scalelabd"), "--data", service.data(), "--listen", "127.0.0.1:0"},
                    service.dir() + "/tcp.log");
  const std::string ready = daemon.Line();
  const std::string address = ready.substr(ready.rfind(' ') + 1);
  const auto list = [&](const std::string& token_file) {
    return RunProgram({Program("scalelab"), "--server", address, "study", "list"},
                      {{"SCALELAB_TOKEN_FILE", token_file}, {"XDG_CONFIG_HOME", service.dir() + "/config"}});
  };
  const Output stranger = list(service.data() + "/client.token");
  EXPECT_EQ(stranger.code, 4) << stranger.err;
  EXPECT_THAT(stranger.err, HasSubstr("scalelab login " + address));
  const Output login = RunProgram({Program("scalelab"), "login", address, "--yes"},
                                  {{"XDG_CONFIG_HOME", service.dir() + "/config"}});
  EXPECT_EQ(login.code, 0) << login.err;
  const Output wrong = list(service.File("wrong.token", "0123456789abcdef"));
  EXPECT_EQ(wrong.code, 4) << wrong.err;
  EXPECT_THAT(wrong.err, HasSubstr("token"));
  const Output right = list(service.data() + "/client.token");
  EXPECT_EQ(right.code, 0) << right.err;
}

TEST(BadServer, UnknownFlagIsAUsageError) {
  EXPECT_EQ(RunProgram({Program("scalelabd"), "--frobnicate"}).code, 2);
  EXPECT_EQ(RunProgram({Program("scalelab"), "frobnicate"}).code, 2);
}

}  // namespace
}  // namespace scalelab::e2e
