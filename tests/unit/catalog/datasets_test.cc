#include "catalog/datasets.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Datasets : public testing::Test {
 protected:
  Datasets() : dir_(fs::path(testing::TempDir()) / ("datasets_test." + std::to_string(getpid()))) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~Datasets() override { fs::remove_all(dir_); }

  void Put(const std::string& name, int64_t bytes) {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name) << std::string(bytes, '\1');
  }
  void PutRecords(const std::string& name, int64_t records) { Put(name, records * kCifar10RecordBytes); }
  std::string Path(const std::string& name) const { return (dir_ / name).string(); }
  absl::Status Find() const { return FindCifar10(dir_.string()).status(); }
  std::string Sentence() const { return std::string(Find().message()); }

  const fs::path dir_;
};

TEST_F(Datasets, FindsTheFilesOfCifar10AndCountsTheirRecords) {
  for (int i = 1; i <= 5; ++i) PutRecords("data_batch_" + std::to_string(i) + ".bin", i);
  PutRecords("test_batch.bin", 7);
  absl::StatusOr<RecordFiles> files = FindCifar10(dir_.string());
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->train.size(), 5u);
  EXPECT_EQ(files->train[2].path, Path("data_batch_3.bin"));
  EXPECT_EQ(files->train[2].records, 3);
  ASSERT_EQ(files->test.size(), 1u);
  EXPECT_EQ(files->test[0].records, 7);
  EXPECT_TRUE(CheckDataset("cifar10", dir_.string()).ok());
}

TEST_F(Datasets, OneTrainingFileIsEnough) {
  PutRecords("data_batch_1.bin", 2);
  PutRecords("test_batch.bin", 1);
  absl::StatusOr<RecordFiles> files = FindCifar10(dir_.string());
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->train.size(), 1u);
}

TEST_F(Datasets, NamesAMissingDirectory) {
  absl::Status status = FindCifar10(Path("nowhere")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "directory " + Path("nowhere") + " does not exist; check data_dir, as the nodes see it");
  EXPECT_THAT(std::string(FindCifar10("").status().message()), HasSubstr("no directory is given"));
}

TEST_F(Datasets, NamesAFileWhereADirectoryShouldBe) {
  Put("file", 1);
  EXPECT_THAT(std::string(FindCifar10(Path("file")).status().message()), HasSubstr("is not a directory"));
}

TEST_F(Datasets, NamesTheFileThatIsMissing) {
  EXPECT_EQ(Find().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Sentence(), HasSubstr("has no data_batch_1.bin; the binary version of CIFAR-10 is"));
  PutRecords("data_batch_2.bin", 1);
  EXPECT_THAT(Sentence(), HasSubstr("has no data_batch_1.bin"));
  PutRecords("data_batch_1.bin", 1);
  EXPECT_THAT(Sentence(), HasSubstr("has no test_batch.bin"));
}

TEST_F(Datasets, NamesAGapInTheNumbering) {
  PutRecords("data_batch_1.bin", 1);
  PutRecords("data_batch_3.bin", 1);
  PutRecords("test_batch.bin", 1);
  EXPECT_EQ(Sentence(), Path("data_batch_2.bin") + " is missing although " + Path("data_batch_3.bin") +
                            " is there; copy or unpack it again");
}

TEST_F(Datasets, TellsOtherLayoutsApart) {
  PutRecords("cifar-10-batches-bin/data_batch_1.bin", 1);
  EXPECT_THAT(Sentence(),
              HasSubstr("the data are in " + Path("cifar-10-batches-bin") + ": set data_dir to it"));
  fs::remove_all(dir_ / "cifar-10-batches-bin");
  Put("data_batch_1", 10);
  EXPECT_THAT(Sentence(), HasSubstr("this is the Python version"));
}

TEST_F(Datasets, CountsTheBytesOfAFileThatIsCutShort) {
  PutRecords("test_batch.bin", 1);
  Put("data_batch_1.bin", 2 * kCifar10RecordBytes + 5);
  EXPECT_EQ(Find().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Sentence(),
            Path("data_batch_1.bin") +
                " has 6151 bytes, which is 5 bytes too many or 3068 too few for whole records of 3073 "
                "bytes; copy or unpack it again");
  Put("data_batch_1.bin", 0);
  EXPECT_THAT(Sentence(), HasSubstr("data_batch_1.bin is empty"));
  PutRecords("data_batch_1.bin", 1);
  Put("test_batch.bin", 1);
  EXPECT_THAT(Sentence(), HasSubstr("test_batch.bin has 1 bytes"));
}

TEST_F(Datasets, NamesAFileThatCannotBeRead) {
  if (geteuid() == 0) GTEST_SKIP() << "root reads everything";
  PutRecords("test_batch.bin", 1);
  PutRecords("data_batch_1.bin", 1);
  chmod(Path("data_batch_1.bin").c_str(), 0);
  EXPECT_THAT(Sentence(), HasSubstr("data_batch_1.bin cannot be read: Permission denied"));
}

TEST_F(Datasets, ADirectoryOrAPipeIsNoDataFile) {
  PutRecords("test_batch.bin", 1);
  fs::create_directories(dir_ / "data_batch_1.bin");
  EXPECT_THAT(Sentence(), HasSubstr("data_batch_1.bin is not a regular file"));
  fs::remove(dir_ / "data_batch_1.bin");
  ASSERT_EQ(mkfifo(Path("data_batch_1.bin").c_str(), 0600), 0);
  EXPECT_THAT(Sentence(), HasSubstr("data_batch_1.bin is not a regular file"))
      << "and does not wait for a writer";
}

TEST_F(Datasets, SyntheticNeedsNoFiles) {
  EXPECT_TRUE(CheckDataset("synthetic", "/does/not/exist").ok());
  EXPECT_EQ(CheckDataset("imagenet", dir_.string()).message(),
            "unknown data set 'imagenet'; known: cifar10, imagefolder, synthetic, tokens, synthetic-tokens");
}

}  // namespace
}  // namespace scalelab
