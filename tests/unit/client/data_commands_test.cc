// `scalelab data`: the commands that need no server.
#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/fakes/image_folder.h"
#include "tests/unit/client/client_fixture.h"

namespace scalelab::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DataCommands : public ClientTest {
 protected:
  DataCommands() : images_(dir_ + "/images") { MakeImageFolder(images_, 3, 1); }
  const std::string images_;
};

TEST_F(DataCommands, VerifySaysThatAllIsWellOrListsWhatIsNot) {
  const Outcome sound = RunAsIs({"data", "verify", "imagefolder", "--data-dir", images_});
  EXPECT_THAT(sound, Exits(ExitCode::kOk));
  EXPECT_EQ(sound.err, "imagefolder in " + images_ + ": 12 images in 12 files, 0 of them bad\n");
  EXPECT_EQ(sound.out, "no bad files\n");

  WriteBytes(images_ + "/val/bee/x.png", "");
  const Outcome bad = RunAsIs({"data", "verify", "imagefolder", "--data-dir", images_});
  EXPECT_THAT(bad, Exits(ExitCode::kFailure));
  EXPECT_THAT(bad.out, AllOf(HasSubstr(images_ + "/val/bee/x.png"), HasSubstr("the file is empty")));
  EXPECT_THAT(bad.err, HasSubstr("13 images in 13 files, 1 of them bad"));

  const Outcome as_json = RunAsIs({"data", "verify", "imagefolder", "--data-dir", images_, "-o", "json"});
  const auto answer = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(answer["files"], 13);
  ASSERT_EQ(answer["bad"].size(), 1u);
  EXPECT_EQ(answer["bad"][0]["problem"], "the file is empty");
}

TEST_F(DataCommands, VerifyMarksBytesOfFileNamesThatAreNotUtf8) {
  WriteBytes(images_ + "/val/bee/\xff.png", "");
  const Outcome as_json = RunAsIs({"data", "verify", "imagefolder", "--data-dir", images_, "-o", "json"});
  const auto answer = nlohmann::json::parse(as_json.out);
  ASSERT_EQ(answer["bad"].size(), 1u);
  EXPECT_EQ(answer["bad"][0]["file"], images_ + "/val/bee/?.png");
}

TEST_F(DataCommands, VerifyRefusesWhatIsNoDataSetOrNotThere) {
  EXPECT_THAT(RunAsIs({"data", "verify", "synthetic", "--data-dir", images_}), Exits(ExitCode::kUsage));
  const Outcome missing = RunAsIs({"data", "verify", "cifar10", "--data-dir", images_});
  EXPECT_NE(missing.code, 0);
  EXPECT_THAT(missing.err, HasSubstr("has no data_batch_1.bin"));
}

TEST_F(DataCommands, IndexWritesTheListsBesideTheImages) {
  const Outcome done = RunAsIs({"data", "index", images_});
  EXPECT_THAT(done, Exits(ExitCode::kOk));
  EXPECT_THAT(done.err, HasSubstr("list 12 images"));
  EXPECT_TRUE(std::filesystem::exists(images_ + "/train.index"));
  EXPECT_TRUE(std::filesystem::exists(images_ + "/val.index"));
  EXPECT_NE(RunAsIs({"data", "index", images_ + "/val"}).code, 0);
}

}  // namespace
}  // namespace scalelab::client
