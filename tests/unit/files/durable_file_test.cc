// Tests durable files on the file system of this machine. tests/powercut tests them on a simulated disk that loses power.
#include "files/durable_file.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace scalelab {
namespace {

class DurableFile : public ::testing::Test {
 protected:
  DurableFile() {
    std::string pattern = ::testing::TempDir() + "durable-file-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~DurableFile() override { std::filesystem::remove_all(folder_); }
  std::string Content(const std::string& path) {
    std::string content;
    return files_.Read(path, 1000, content) == 0 ? content : "no file";
  }

  FileSystem& files_ = SystemFiles();
  std::string folder_;
};

TEST_F(DurableFile, IsReplacedAndOnlyItsOwnerMayReadIt) {
  const std::string file = folder_ + "/file";
  std::ofstream(file + ".part") << "left over";
  for (const std::string& content : {std::string("first"), std::string("second")}) {
    EXPECT_EQ(WriteDurably(files_, file, content).error, 0);
    EXPECT_EQ(Content(file), content);
    EXPECT_FALSE(files_.Exists(file + ".part"));
    struct stat found {};
    ASSERT_EQ(stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, 0600u);
    int64_t size = 0;
    EXPECT_EQ(files_.Size(file, size), 0);
    EXPECT_EQ(size, static_cast<int64_t>(content.size()));
  }
}

TEST_F(DurableFile, OnRequestReplacesNoFile) {
  const std::string file = folder_ + "/file";
  ASSERT_EQ(files_.Create(file, "old"), 0);
  EXPECT_EQ(files_.Create(file, "new"), EEXIST);
  ASSERT_EQ(files_.Create(file + ".part", "new"), 0);
  EXPECT_EQ(PublishFile(files_, file + ".part", file, /*replace=*/false).error, EEXIST);
  EXPECT_EQ(Content(file), "old");
  EXPECT_EQ(PublishFile(files_, file + ".part", file, /*replace=*/true).error, 0);
  EXPECT_EQ(Content(file), "new");
}

TEST_F(DurableFile, FailsWithTheErrorOfTheSystem) {
  const FileFailure failure = WriteDurably(files_, folder_ + "/none/file", "content");
  EXPECT_EQ(failure.error, ENOENT);
  EXPECT_FALSE(failure.folder);
  EXPECT_EQ(Content(folder_ + "/none/file"), "no file");
}

}  // namespace
}  // namespace scalelab
