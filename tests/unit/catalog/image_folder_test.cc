#include "catalog/image_folder.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "catalog/datasets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class ImageFolder : public testing::Test {
 protected:
  ImageFolder() : dir_(testing::TempDir() + "/image_folder_test." + std::to_string(getpid())) {
    fs::remove_all(dir_);
    for (const char* file : {"train/b/2.jpg", "train/b/10.JPEG", "train/b/notes.txt", "train/b/.hidden.png",
                             "train/a/1.png", "train/.cache/1.jpg", "train/readme.jpg", "val/b/7.jpeg"}) {
      Put(file);
    }
  }
  ~ImageFolder() override { fs::remove_all(dir_); }

  void Put(const std::string& name, const std::string& bytes = "x") {
    fs::create_directories(fs::path(dir_ + "/" + name).parent_path());
    std::ofstream(dir_ + "/" + name) << bytes;
  }
  // Makes all existing files older than anything written from now on.
  void Age() {
    const auto before = fs::file_time_type::clock::now() - std::chrono::hours(1);
    for (const auto& entry : fs::recursive_directory_iterator(dir_)) fs::last_write_time(entry, before);
  }
  std::vector<std::string> Names(ImagePart part = ImagePart::kTrain) {
    const absl::StatusOr<ImageList> list = ListImages(dir_, part);
    EXPECT_TRUE(list.ok()) << list.status();
    std::vector<std::string> names;
    for (int64_t i = 0; list.ok() && i < list->size(); ++i) {
      names.push_back(std::to_string(list->label(i)) + " " + list->path(i).substr(dir_.size() + 1));
    }
    return names;
  }
  std::string Error() {
    const absl::StatusOr<ImageList> train = ListImages(dir_, ImagePart::kTrain);
    return std::string((train.ok() ? CheckImageFolder(dir_) : train.status()).message());
  }
  const std::string dir_;
};

TEST_F(ImageFolder, IsListedByClassAndName) {
  EXPECT_THAT(Names(), ElementsAre("0 train/a/1.png", "1 train/b/10.JPEG", "1 train/b/2.jpg"));
  EXPECT_THAT(Names(ImagePart::kVal), ElementsAre("1 val/b/7.jpeg")) << "numbered as in training";
  EXPECT_THAT(*ListImageClasses(dir_), ElementsAre("a", "b"));
  EXPECT_TRUE(CheckImageFolder(dir_).ok());
  EXPECT_TRUE(CheckDataset("imagefolder", dir_).ok());
}

TEST_F(ImageFolder, IsReadFromItsIndexAsLongAsThatIsNewer) {
  Age();
  ASSERT_EQ(*WriteImageIndex(dir_), 4);
  const auto by_index = Names();
  EXPECT_THAT(by_index, ElementsAre("0 train/a/1.png", "1 train/b/10.JPEG", "1 train/b/2.jpg"));
  EXPECT_EQ(ListImages(dir_, ImagePart::kTrain)->bytes(0), 1);
  EXPECT_EQ(ListImages(dir_, ImagePart::kTrain)->name(1), "10.JPEG");
  // Add a file that the index lacks, and make its directory look older than the index. If the file is not
  // listed, the index was read.
  Put("train/b/3.jpg");
  fs::last_write_time(dir_ + "/train/b", fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(Names(), by_index);
  fs::last_write_time(dir_ + "/train/b", fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(Names().size(), 4u);
  EXPECT_EQ(ListImages(dir_, ImagePart::kTrain)->bytes(0), -1);
}

TEST_F(ImageFolder, IsListedAnewWhereTheIndexIsNotWhole) {
  Age();
  ASSERT_TRUE(WriteImageIndex(dir_).ok());
  for (const char* content : {"", "scalelab-index 1 2\n1\ta\t1.png\n", "scalelab-index 1 1\n1\tz\t1.png\n",
                              "scalelab-index 9 1\n1\ta\t1.png\n", "scalelab-index 1 1\nx\ta\t1.png\n",
                              "scalelab-index 1 1\n1\ta\t1.png"}) {
    std::ofstream(dir_ + "/train.index") << content;
    EXPECT_EQ(Names().size(), 3u) << content;
  }
  std::ofstream(dir_ + "/train.index") << "scalelab-index 1 1\n1\ta\t1.png\n";
  EXPECT_EQ(Names().size(), 1u) << "or nothing was read at all";
}

TEST_F(ImageFolder, SaysWhatIsMissing) {
  Put("train/c/notes.txt");
  EXPECT_THAT(Error(), HasSubstr("/train/c holds no image"));
  fs::remove_all(dir_ + "/train/c");
  Put("val/d/1.jpg");
  EXPECT_THAT(Error(), HasSubstr("/val/d is not a class, because train/d does not exist"));
  fs::remove_all(dir_ + "/val/d");
  fs::remove_all(dir_ + "/val/b");
  Put("val/1.jpg");
  EXPECT_THAT(Error(), HasSubstr("put each image into the directory of its class"));
  fs::remove_all(dir_ + "/val");
  EXPECT_THAT(Error(), HasSubstr("/val does not exist; the layout of imagefolder is DIR/train/CLASS"));
  fs::remove_all(dir_ + "/train/a");
  EXPECT_THAT(Error(), HasSubstr("one directory, but at least two classes are required"));
  fs::remove_all(dir_ + "/train");
  EXPECT_THAT(Error(), HasSubstr("/train does not exist"));
  fs::remove_all(dir_);
  EXPECT_THAT(Error(), HasSubstr("check data_dir"));
  EXPECT_THAT(std::string(CheckImageFolder("").message()), HasSubstr("set data_dir"));
}

TEST_F(ImageFolder, RefusesToIndexANameThatWouldBreakALine) {
  Put("train/a/1\n2.jpg");
  EXPECT_THAT(std::string(WriteImageIndex(dir_).status().message()), HasSubstr("line break in its name"));
  EXPECT_FALSE(fs::exists(dir_ + "/train.index"));
}

}  // namespace
}  // namespace scalelab
