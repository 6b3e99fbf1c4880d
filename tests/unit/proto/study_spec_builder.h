// Study specifications for tests, written as the JSON of StudySpec.
#pragma once

#include <string>

#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab {

inline v1::StudySpec Spec(const std::string& json) {
  v1::StudySpec spec;
  auto status = google::protobuf::util::JsonStringToMessage(json, &spec);
  EXPECT_TRUE(status.ok()) << status.ToString() << "\n" << json;
  return spec;
}

// A valid study of one cell with further JSON fields behind it.
inline v1::StudySpec Small(const std::string& more = "", const std::string& fixed = R"("ranks": 1)") {
  return Spec(R"({"study": "s", "fixed": {"model": "resnet20", "dataset": "synthetic", )" + fixed + "}" +
              (more.empty() ? "" : ", " + more) + "}");
}

}  // namespace scalelab
