// `scalelabd backup` while a service is running, and restoring the backup.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 150;

std::string Study(const std::string& name) {
  return absl::StrCat("study: ", name, "\nfixed: {model: resnet8, dataset: synthetic, max_steps: ", kSteps,
                      "}\nmatrix: {ranks: [1]}\nscaling: {mode: strong, global_batch: 8}\n"
                      "measure: {evaluate: false}\n");
}

Output Backup(const Service& service, const std::string& file) {
  return RunProgram({Program("scalelabd"), "backup", file, "--data", service.data()});
}

TEST(Backup, BringsBackWhatWasThereAndTrainingGoesOnAsIfNothingHadHappened) {
  Service service({"--local-slots", "2"});
  ASSERT_EQ(service.Start(), "");
  const std::string study = service.Submit(Study("kept"));
  const std::string run = service.WaitUntilTraining(study, 3);
  const std::string file = service.dir() + "/backup.db";
  const Output backup = Backup(service, file);
  ASSERT_EQ(backup.code, 0) << backup.err;
  EXPECT_EQ(backup.out, "");
  EXPECT_THAT(backup.err, HasSubstr(file + " is a complete, checked backup of " + service.data()));
  const std::string lost = service.Submit(Study("lost"));
  service.WaitUntilTraining(lost);

  ASSERT_EQ(service.Stop(), 0);
  const std::string database = service.data() + "/scalelab.db";
  std::filesystem::remove(database);
  std::filesystem::remove(database + "-wal");
  std::filesystem::remove(database + "-shm");
  std::filesystem::copy(file, database);
  ASSERT_EQ(service.Start(), "");

  EXPECT_EQ(service.Json({"study", "list"})["studies"].size(), 1u) << "what came after the backup is gone";
  ASSERT_EQ(service.WaitFor(study), 0) << service.Run({"run", "list", study}).out;
  EXPECT_EQ(service.Attempts(run).size(), 1u) << "the attempt of the backup went on";
  std::multiset<std::string> steps;
  for (const std::string& point : service.Points(run)) {
    const std::vector<std::string> field = absl::StrSplit(point, ',');
    if (field[3] == "train/loss") steps.insert(field[1]);
  }
  EXPECT_EQ(steps.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(std::set<std::string>(steps.begin(), steps.end()).size(), static_cast<size_t>(kSteps));
  // The backup does not contain the second allocation: the coordinator rejects its worker, which exits.
  EXPECT_TRUE(Eventually([&] { return service.Workers().empty(); }));
  EXPECT_NE(service.Submit(Study("new")), lost)
      << "its run would continue from the checkpoints of the lost study";
}

TEST(Backup, EveryFailureIsASentence) {
  Service service;
  const auto refused = [&](const Output& output, int code, const std::string& words) {
    EXPECT_EQ(output.code, code);
    EXPECT_THAT(output.err, AllOf(HasSubstr("scalelabd: "), HasSubstr(words))) << output.err;
    EXPECT_EQ(std::count(output.err.begin(), output.err.end(), '\n'), 1) << output.err;
  };
  const std::string file = service.dir() + "/backup.db";
  refused(Backup(service, file), 1, "There is no database " + service.data() + "/scalelab.db");
  ASSERT_EQ(service.Start(), "");
  ASSERT_EQ(Backup(service, file).code, 0);
  refused(Backup(service, file), 1, file + " exists");
  refused(Backup(service, service.dir() + "/none/b.db"), 1, "No such file or directory");
  refused(RunProgram({Program("scalelabd"), "backup", file}), 2, "--data DIR is missing");
  refused(RunProgram({Program("scalelabd"), "backup", "--data", service.data()}), 2, "FILE is required");
}

}  // namespace
}  // namespace scalelab::e2e
