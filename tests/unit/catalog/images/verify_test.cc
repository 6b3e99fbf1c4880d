#include "catalog/images/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "catalog/datasets.h"
#include "tests/fakes/image_folder.h"

namespace scalelab {
namespace {

using testing::HasSubstr;

class Verify : public testing::Test {
 protected:
  Verify() : dir_(testing::TempDir() + "/verify-" + std::to_string(getpid())) {
    std::filesystem::remove_all(dir_);
  }
  ~Verify() override { std::filesystem::remove_all(dir_); }

  Verification Of(const std::string& name) {
    const auto result = VerifyDataset(name, dir_, [](int64_t, int64_t) {});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : Verification{};
  }
  const std::string dir_;
};

TEST_F(Verify, FindsNothingWrongWithASoundFolder) {
  MakeImageFolder(dir_, 12, 4);
  const Verification result = Of("imagefolder");
  EXPECT_EQ(result.files, 48);
  EXPECT_EQ(result.images, 48);
  EXPECT_TRUE(result.bad.empty()) << result.bad[0].path << ": " << result.bad[0].problem;
}

TEST_F(Verify, NamesEveryBadImageInOrder) {
  MakeImageFolder(dir_, 6, 2);
  WriteBytes(dir_ + "/train/bee/a.jpg", "");
  WriteBytes(dir_ + "/train/bee/z.png", "no image");
  const std::string jpeg = EncodeJpeg(MakePicture(60, 60, 1));
  WriteBytes(dir_ + "/val/ant/0.jpg", jpeg.substr(0, jpeg.size() / 2));
  const Verification result = Of("imagefolder");
  EXPECT_EQ(result.images, 27);
  ASSERT_EQ(result.bad.size(), 3u);
  EXPECT_EQ(result.bad[0].path, dir_ + "/train/bee/a.jpg");
  EXPECT_EQ(result.bad[0].problem, "the file is empty");
  EXPECT_EQ(result.bad[1].path, dir_ + "/train/bee/z.png");
  EXPECT_EQ(result.bad[2].path, dir_ + "/val/ant/0.jpg");
  EXPECT_THAT(result.bad[2].problem, HasSubstr("remature end"));
}

TEST_F(Verify, FindsLabelsThatAreNoneAndFilesThatAreNotTheOfficialOnes) {
  std::string record(kCifar10RecordBytes, '\x07'), wrong = record;
  wrong[0] = 10;
  WriteBytes(dir_ + "/data_batch_1.bin", record + record + wrong);
  std::string large;
  for (int i = 0; i < 10'000; ++i) large += record;
  WriteBytes(dir_ + "/test_batch.bin", large);
  const Verification result = Of("cifar10");
  EXPECT_EQ(result.files, 2);
  EXPECT_EQ(result.images, 10'003);
  ASSERT_EQ(result.bad.size(), 2u);
  EXPECT_THAT(result.bad[0].problem, HasSubstr("record 2 has label 10"));
  EXPECT_EQ(result.bad[1].path, dir_ + "/test_batch.bin");
  EXPECT_THAT(result.bad[1].problem, HasSubstr("803d5f7f4d78ea53de84dbe85f74fb6d"));
}

TEST_F(Verify, SaysWhatThereIsToVerify) {
  EXPECT_THAT(std::string(VerifyDataset("synthetic", dir_, {}).status().message()),
              HasSubstr("known: cifar10, imagefolder"));
  EXPECT_THAT(std::string(VerifyDataset("imagefolder", dir_, {}).status().message()),
              HasSubstr("does not exist"));
}

}  // namespace
}  // namespace scalelab
