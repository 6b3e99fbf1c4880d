// Study files for tests, in a private directory.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "study/file/study_file.h"

namespace scalelab {

class StudyFiles : public testing::Test {
 protected:
  StudyFiles()
      : dir_(std::filesystem::path(testing::TempDir()) / ("study_files." + std::to_string(getpid()))) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  ~StudyFiles() override { std::filesystem::remove_all(dir_); }

  std::string Put(const std::string& text) {
    std::ofstream(Path(), std::ios::binary) << text;
    return Path();
  }
  std::string Path() const { return (dir_ / "f.yaml").string(); }

  // Returns the errors of a file with this text, with "f.yaml" as the file's path; empty if it is valid.
  std::string Errors(const std::string& text) { return Short(CheckStudyFile(Put(text)).status()); }
  std::string Short(const absl::Status& status) const {
    return absl::StrReplaceAll(std::string(status.message()), {{dir_.string() + "/", ""}});
  }

  const std::filesystem::path dir_;
};

}  // namespace scalelab
