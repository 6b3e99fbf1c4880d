// Builds study specifications for tests from the JSON of StudySpec, and returns their violations.
#pragma once

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/status.h"
#include "scalelab/v1/study.pb.h"
#include "study/rules.h"

namespace scalelab {

inline v1::StudySpec Spec(const std::string& json) {
  v1::StudySpec spec;
  auto status = google::protobuf::util::JsonStringToMessage(json, &spec);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << json;
  return spec;
}

// A valid study with one cell, followed by more JSON fields.
inline v1::StudySpec Small(const std::string& more = "", const std::string& fixed = R"("ranks": 1)") {
  return Spec(R"({"study": "s", "fixed": {"model": "resnet20", "dataset": "synthetic", )" + fixed + "}" +
              (more.empty() ? "" : ", " + more) + "}");
}

// Returns why a study is rejected; fails the test if it is not.
inline std::vector<FieldViolation> Wrong(const v1::StudySpec& spec) {
  const absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec);
  EXPECT_EQ(study.status().code(), absl::StatusCode::kInvalidArgument) << study.status();
  return ViolationsOf(study.status());
}

inline auto Only(const std::string& field, const std::string& sentence) {
  return testing::ElementsAre(FieldViolation{field, sentence});
}

}  // namespace scalelab
