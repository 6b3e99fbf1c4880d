#include "events/software.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/worker/temp_dir.h"

namespace scalelab {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using worker::Append;
using worker::TempDir;

TEST(SoftwareOf, IsWhatTheStartEventSaysAndWhereTheEnvironmentLeads) {
  TempDir dir;
  std::filesystem::create_directory(dir / "pytorch-0123456789ab");
  std::filesystem::create_symlink("pytorch-0123456789ab", dir / "pytorch");
  v1::FrameworkEnvironment environment;
  environment.set_venv(dir / "pytorch");
  environment.add_modules("cuda/12");
  EXPECT_THAT(SoftwareOf(&environment, dir / "none"),
              ElementsAre(Pair("environment", "pytorch-0123456789ab cuda/12")));
  Append(dir / "events-0.jsonl",
         "warning: not JSON\n{\"event\":\"start\",\"framework\":\"pytorch\",\"version\":\"1.13.1\"}\n");
  EXPECT_EQ(SoftwareOf(&environment, dir / "events-0.jsonl").at("framework"), "pytorch 1.13.1");
  Append(dir / "other", "{\"event\":\"start\",\"framework\":\"mxnet\",\"version\":\"mxnet 1.9.1\"}\n");
  EXPECT_EQ(SoftwareOf(&environment, dir / "other").at("framework"), "mxnet 1.9.1");
}

TEST(SoftwareOf, HasTheDeviceOfTheStartEventWithAndWithoutAFramework) {
  TempDir dir;
  Append(dir / "events-0.jsonl",
         "{\"event\":\"start\",\"framework\":\"native\",\"version\":\"1\",\"device\":\"NVIDIA H100 80GB "
         "HBM3\"}\n");
  EXPECT_THAT(SoftwareOf(nullptr, dir / "events-0.jsonl"),
              ElementsAre(Pair("device", "NVIDIA H100 80GB HBM3")));
  const v1::FrameworkEnvironment framework;
  EXPECT_THAT(SoftwareOf(&framework, dir / "events-0.jsonl"),
              ElementsAre(Pair("device", "NVIDIA H100 80GB HBM3"), Pair("framework", "native 1")));
}

TEST(SoftwareOf, DoesNotOpenAFifoAndReadsOnlyTheBeginningOfAHugeFile) {
  TempDir dir;
  const v1::FrameworkEnvironment none;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  EXPECT_TRUE(SoftwareOf(&none, dir / "fifo").empty());
  Append(dir / "sparse", "");
  std::filesystem::resize_file(dir / "sparse", uintmax_t{200} << 30);
  EXPECT_TRUE(SoftwareOf(&none, dir / "sparse").empty());
}

TEST(SoftwareOf, IsValidUtf8WhateverTheEnvironmentIsCalled) {
  TempDir dir;
  std::filesystem::create_directory(dir / "torch-\xFF");
  std::filesystem::create_symlink("torch-\xFF", dir / "torch");
  v1::FrameworkEnvironment environment;
  environment.set_venv(dir / "torch");
  EXPECT_EQ(SoftwareOf(&environment, dir / "none").at("environment"), "torch-?");
}

}  // namespace
}  // namespace scalelab
