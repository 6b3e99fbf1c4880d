#include "worker/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(RedactedEnvironment, HidesWhatLooksLikeASecret) {
  const auto environment = RedactedEnvironment({"HOME=/root", "API_TOKEN=a", "my_secret=b", "DB_PASSWORD=c",
                                                "AWS_ACCESS_KEY_ID=d", "Credentials=e", "EMPTY="});
  const char* const expected =
      R"x({"HOME":"/root","API_TOKEN":"(redacted)","my_secret":"(redacted)","DB_PASSWORD":"(redacted)",)x"
      R"x("AWS_ACCESS_KEY_ID":"(redacted)","Credentials":"(redacted)","EMPTY":""})x";
  EXPECT_EQ(environment.dump(), expected);
}

TEST(SoftwareOf, IsWhatTheStartEventSaysAndWhereTheEnvironmentLeads) {
  TempDir dir;
  std::filesystem::create_directory(dir / "pytorch-0123456789ab");
  std::filesystem::create_symlink("pytorch-0123456789ab", dir / "pytorch");
  v1::FrameworkEnvironment environment;
  environment.set_venv(dir / "pytorch");
  environment.add_modules("cuda/12");
  EXPECT_THAT(SoftwareOf(environment, dir / "none"),
              ElementsAre(Pair("environment", "pytorch-0123456789ab cuda/12")));
  Append(dir / "events-0.jsonl",
         "warning: not JSON\n{\"event\":\"start\",\"framework\":\"pytorch\",\"version\":\"1.13.1\"}\n");
  EXPECT_EQ(SoftwareOf(environment, dir / "events-0.jsonl").at("framework"), "pytorch 1.13.1");
  Append(dir / "other", "{\"event\":\"start\",\"framework\":\"mxnet\",\"version\":\"mxnet 1.9.1\"}\n");
  EXPECT_EQ(SoftwareOf(environment, dir / "other").at("framework"), "mxnet 1.9.1");
}

TEST(SoftwareOf, DoesNotOpenAFifoAndReadsOnlyTheBeginningOfAHugeFile) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(SoftwareOf({}, dir / "fifo").empty());
  Append(dir / "sparse", "");
  std::filesystem::resize_file(dir / "sparse", uintmax_t{200} << 30);
  EXPECT_TRUE(SoftwareOf({}, dir / "sparse").empty());
}

TEST(SoftwareOf, IsValidUtf8WhateverTheEnvironmentIsCalled) {
  TempDir dir;
  std::filesystem::create_directory(dir / "torch-\xFF");
  std::filesystem::create_symlink("torch-\xFF", dir / "torch");
  v1::FrameworkEnvironment environment;
  environment.set_venv(dir / "torch");
  EXPECT_EQ(SoftwareOf(environment, dir / "none").at("environment"), "torch-?");
}

TEST(WriteFileWhole, ReplacesADraftThatIsNotARegularFile) {
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "exit.json.new").c_str(), 0600), 0);
  EXPECT_TRUE(WriteFileWhole(dir / "exit.json", "{}"));
  EXPECT_EQ(ReadAll(dir / "exit.json"), "{}");
  Append(dir / "target", "untouched");
  std::filesystem::create_symlink(dir / "target", dir / "exit.json.new");
  EXPECT_TRUE(WriteFileWhole(dir / "exit.json", "[]"));
  EXPECT_EQ(ReadAll(dir / "target"), "untouched");
}

TEST(Sha256, IsTheStandardOne) {
  EXPECT_EQ(Sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// A Processes that answers `--version` only when the test decides.
class HeldProcesses final : public Processes {
 public:
  uint64_t Start(const Job& job, Started, Ended ended) override {
    job_ = job;
    ended_ = std::move(ended);
    return 1;
  }
  void Stop(uint64_t, absl::Duration) override {}
  Job job_;
  Ended ended_;
};

TEST(Provenance, WaitsForTheTrainersVersionsAndNamesBinariesByHash) {
  TempDir dir;
  Append(dir / "trainer", "#!/bin/sh\n");
  chmod((dir / "trainer").c_str(), 0755);
  EventLoop loop;
  HeldProcesses processes;
  Provenance provenance(loop, {"", "", dir / "trainer"}, {"A=1"});
  bool known = false;
  provenance.AskTrainer(processes, [&] { known = true; });
  provenance.Record(dir.path(), {{"attempt", "t0"}});
  EXPECT_EQ(ReadAll(dir / "provenance.json"), "");

  Append(processes.job_.commands[0].output,
         R"({"name":"scalelab-trainer","version":"0.1.0","libtorch":"1.13.1"})");
  processes.ended_({});
  EXPECT_TRUE(known);
  EXPECT_EQ(provenance.node().software().at("trainer"), "0.1.0");
  const auto written = nlohmann::json::parse(ReadAll(dir / "provenance.json"));
  EXPECT_EQ(written["attempt"], "t0");
  EXPECT_EQ(written["software"]["libtorch"], "1.13.1");
  EXPECT_EQ(written["binaries"][0]["sha256"], Sha256("#!/bin/sh\n"));
  EXPECT_EQ(written["environment"]["A"], "1");
  EXPECT_GT(written["hardware"]["memory_bytes"], 0);
  EXPECT_FALSE(std::filesystem::exists(processes.job_.commands[0].output));
}

}  // namespace
}  // namespace scalelab::worker
