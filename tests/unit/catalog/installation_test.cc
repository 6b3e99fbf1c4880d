#include "catalog/installation.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"

namespace scalelab {
namespace {

class InstallationTest : public testing::Test {
 protected:
  InstallationTest() {
    std::string directory = testing::TempDir() + "installation-XXXXXX";
    root_ = mkdtemp(directory.data());
  }
  ~InstallationTest() override { std::filesystem::remove_all(root_); }

  void Touch(const std::string& file) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << "x";
  }

  std::filesystem::path root_;
};

TEST_F(InstallationTest, AProgramInTheSameDirectoryIsFirst) {
  Touch("bin/scalelab-rank");
  Touch("lib/scalelab/scalelab-rank");
  EXPECT_EQ(CompanionProgram(root_ / "bin/scalelab-worker", "scalelab-rank"), root_ / "bin/scalelab-rank");
}

TEST_F(InstallationTest, AProgramThatPackagesInstallForOtherProgramsIsFound) {
  Touch("bin/scalelab-worker");
  Touch("lib/scalelab/scalelab-rank");
  EXPECT_EQ(CompanionProgram(root_ / "bin/scalelab-worker", "scalelab-rank"),
            root_ / "lib/scalelab/scalelab-rank");
}

TEST_F(InstallationTest, AMissingProgramIsExpectedInTheSameDirectory) {
  EXPECT_EQ(CompanionProgram(root_ / "bin/scalelab-worker", "scalelab-rank"), root_ / "bin/scalelab-rank");
}

TEST_F(InstallationTest, AdaptersAreInShareNextToTheDirectoryOfPrograms) {
  EXPECT_EQ(AdaptersDirectory("/usr/bin/scalelab-worker"), "/usr/share/scalelab/adapters");
}

}  // namespace
}  // namespace scalelab
