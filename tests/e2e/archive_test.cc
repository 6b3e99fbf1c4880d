// Tests archives of studies with real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/service.h"

namespace scalelab::e2e {
namespace {

using testing::HasSubstr;

constexpr char kStudy[] =
    "study: small\nfixed: {model: resnet8, dataset: synthetic, epochs: 1, max_steps: 15}\n"
    "matrix: {ranks: [1, 2]}\nscaling: {mode: strong, global_batch: 8}\nrepeats: 2\n"
    "measure: {evaluate: false}\n";

class Archives : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(service_.Start(), "");
    study_ = service_.Submit(kStudy);
    ASSERT_EQ(service_.WaitFor(study_), 0) << service_.log();
    file_ = service_.dir() + "/small.archive";
  }
  std::string Curve(const Service& service, const std::string& study) {
    nlohmann::json curve = service.Json({"curve", study});
    curve.erase("study");
    return curve.dump();
  }
  Service service_{{"--local-slots", "2"}};
  std::string study_, file_;
};

TEST_F(Archives, AStudyMovesToAnotherServiceWithItsCurveAndPoints) {
  const std::string curve = Curve(service_, study_);
  const auto runs = service_.Runs(study_);
  const Output archived = service_.Run({"study", "archive", study_, file_});
  ASSERT_EQ(archived.code, 0) << archived.err;
  EXPECT_THAT(service_.Run({"study", "archive", study_, file_}).err, HasSubstr("exists; remove it"));
  EXPECT_THAT(service_.Run({"study", "restore", file_}).err, HasSubstr("is there, as studies/1"));

  Service other({"--local-slots", "1"});
  ASSERT_EQ(other.Start(), "");
  const Output restored = other.Run({"study", "restore", file_});
  ASSERT_EQ(restored.code, 0) << restored.err;
  EXPECT_EQ(restored.out, "studies/1\n");
  EXPECT_EQ(Curve(other, "studies/1"), curve);
  const auto moved = other.Runs("studies/1");
  ASSERT_EQ(moved.size(), runs.size());
  for (size_t i = 0; i < runs.size(); ++i)
    EXPECT_EQ(other.Points(moved[i]["name"]), service_.Points(runs[i]["name"]));
  EXPECT_THAT(other.Run({"run", "logs", "1"}).err, HasSubstr("archives have no logs"));
}

TEST_F(Archives, ADamagedFileIsRefusedAndARestoreSurvivesAKill) {
  ASSERT_EQ(service_.Run({"study", "archive", study_, file_}).code, 0);
  ASSERT_EQ(service_.Run({"study", "delete", study_}).code, 0);
  const std::string bytes = ReadFile(file_);
  WriteFile(file_ + ".cut", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(service_.Run({"study", "restore", file_ + ".cut"}).err, HasSubstr("damaged or incomplete"));
  const Output restored = service_.Run({"study", "restore", file_});
  ASSERT_EQ(restored.code, 0) << restored.err;
  service_.Kill();
  ASSERT_EQ(service_.Start(), "");
  EXPECT_EQ(service_.Runs("studies/2").size(), 4u);
  EXPECT_FALSE(std::filesystem::exists(file_ + ".part"));
}

}  // namespace
}  // namespace scalelab::e2e
