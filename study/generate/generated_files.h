// The files that are made from the API and the tables of run parameters and engines (catalog/run_parameters.def,
// catalog/engines.cc). They are part of the repository, so that people and editors can read them. generated_files_test
// fails when one is out of date.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace scalelab {

struct GeneratedFile {
  std::string path;  // from the top of the repository
  std::string text;
};

// Returns proto/scalelab/v1/run_spec.proto, docs/users/keys.md, deploy/schema/study.schema.json and
// worker/adapters/scalelab/run_parameters.json. `descriptors` is the API as a serialized FileDescriptorSet with source
// information; INVALID_ARGUMENT when it is not.
absl::StatusOr<std::vector<GeneratedFile>> GeneratedFiles(const std::string& descriptors);

std::string RunSpecProto();
std::string KeysPage();
// JSON Schema (draft 7) of a study file, for editors. The descriptions of sections are the comments of study.proto.
absl::StatusOr<std::string> StudySchema(const std::string& descriptors);

}  // namespace scalelab
