#include "worker/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/worker/temp_dir.h"
#include "worker/node_info.h"

namespace scalelab::worker {
namespace {

TEST(RedactedEnvironment, HidesWhatLooksLikeASecret) {
  const auto environment = RedactedEnvironment({"HOME=/root", "API_TOKEN=a", "my_secret=b", "DB_PASSWORD=c",
                                                "AWS_ACCESS_KEY_ID=d", "Credentials=e", "EMPTY="});
  const char* const expected =
      R"x({"HOME":"/root","API_TOKEN":"(redacted)","my_secret":"(redacted)","DB_PASSWORD":"(redacted)",)x"
      R"x("AWS_ACCESS_KEY_ID":"(redacted)","Credentials":"(redacted)","EMPTY":""})x";
  EXPECT_EQ(environment.dump(), expected);
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
  void Notify(uint64_t) override {}
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
