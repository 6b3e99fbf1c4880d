#include "catalog/image_folder.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_replace.h"
#include "catalog/datasets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

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
  // Only an index has the sizes of images.
  bool IndexIsRead() {
    const absl::StatusOr<ImageList> list = ListImages(dir_, ImagePart::kTrain);
    return list.ok() && list->size() > 0 && list->bytes(0) >= 0;
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

TEST_F(ImageFolder, IsReadFromItsIndexUntilADirectoryChanges) {
  const auto listed = Names();
  EXPECT_FALSE(IndexIsRead());
  Age();
  ASSERT_EQ(*WriteImageIndex(dir_), 4);
  EXPECT_TRUE(IndexIsRead());
  EXPECT_EQ(Names(), listed);
  EXPECT_EQ(ListImages(dir_, ImagePart::kTrain)->name(1), "10.JPEG");
  Put("train/b/3.jpg");
  EXPECT_FALSE(IndexIsRead());
  EXPECT_EQ(Names().size(), 4u);
  // The directory looks older than the index again.
  fs::last_write_time(dir_ + "/train/b", fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(Names().size(), 4u);
  ASSERT_EQ(*WriteImageIndex(dir_), 5);
  EXPECT_TRUE(IndexIsRead());
}

TEST_F(ImageFolder, IsListedAnewAfterAPartWasReplacedByAnOlderOne) {
  Put("other/a/5.png");
  Put("other/b/6.png");
  Age();
  for (const char* name : {"/other", "/other/a", "/other/b"})
    fs::last_write_time(dir_ + name, fs::file_time_type::clock::now() - std::chrono::hours(2));
  ASSERT_TRUE(WriteImageIndex(dir_).ok());
  ASSERT_TRUE(IndexIsRead());
  fs::rename(dir_ + "/train", dir_ + "/replaced");
  fs::rename(dir_ + "/other", dir_ + "/train");
  EXPECT_THAT(Names(), ElementsAre("0 train/a/5.png", "1 train/b/6.png"));
}

TEST_F(ImageFolder, AnImageOfAClassThatHadNoneOutdatesTheIndex) {
  fs::create_directories(dir_ + "/val/a");
  Age();
  ASSERT_EQ(*WriteImageIndex(dir_), 4);
  EXPECT_THAT(Names(ImagePart::kVal), ElementsAre("1 val/b/7.jpeg"));
  Put("val/a/1.png");
  EXPECT_THAT(Names(ImagePart::kVal), ElementsAre("0 val/a/1.png", "1 val/b/7.jpeg"));
}

TEST_F(ImageFolder, IsListedAnewWhereTheIndexIsNotWhole) {
  Age();
  ASSERT_TRUE(WriteImageIndex(dir_).ok());
  std::ostringstream text;
  text << std::ifstream(dir_ + "/train.index").rdbuf();
  const std::string whole = text.str();
  ASSERT_THAT(whole, StartsWith("scalelab-index 2 3 3\n"));
  const auto with = [&](const char* part, const char* other) {
    return absl::StrReplaceAll(whole, {{part, other}});
  };
  for (const std::string& content :
       {std::string(), with("index 2", "index 1"), with("index 2", "index 9"), with(" 3 3\n", " 3 4\n"),
        with(" 3 3\n", " 3\n"), with(" 3 3\n", " 4 3\n"), with(" 3 3\n", " 0 3\n"),
        with("\ta\t1.png", "\tz\t1.png"), with("1\ta\t1.png", "x\ta\t1.png"), with("1\ta\t1.png", "1\t1.png"),
        whole.substr(0, whole.size() - 1)}) {
    ASSERT_NE(content, whole);
    std::ofstream(dir_ + "/train.index") << content;
    EXPECT_FALSE(IndexIsRead()) << content;
    EXPECT_EQ(Names().size(), 3u) << content;
  }
  std::ofstream(dir_ + "/train.index") << whole;
  EXPECT_TRUE(IndexIsRead());
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
