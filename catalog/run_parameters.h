// The table of run parameters. run_parameters.def contains the rows; this header gives access to them
// at run time.
//
// The table is used by the checks and the expansion of a study (study/), the trainer
// (worker/trainer/training_spec.h), the adapters (through worker/adapters/scalelab/run_parameters.json) and
// `scalelab study keys`. These files are generated from it: RunSpec in proto/scalelab/v1/run_spec.proto,
// docs/users/keys.md and deploy/schema/study.schema.json.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "catalog/engines.h"

namespace scalelab {

// kMap maps names that the user chooses to texts, numbers or booleans. A study sets each
// name separately: "params.dropout".
enum class ParameterType { kString, kInt32, kInt64, kDouble, kBool, kStringList, kMap };

struct RunParameter {
  int number;  // field number of RunSpec
  absl::string_view name;
  ParameterType type;
  // The value if a study sets none. Numbers are stored as double. Lists and maps have no default.
  std::variant<std::monostate, absl::string_view, double, bool> default_value;
  // Allowed values of a string; empty: any non-empty text.
  std::vector<absl::string_view> choices;
  // Range of a number, both ends included. A default of zero outside the range means "not set".
  double min = 0, max = 0;
  absl::string_view unit;  // "" for none
  ParameterGroup group = ParameterGroup::kCommon;
  // Whether a study may set it in "fixed", "matrix" and "zip" and name it in "exclude" and "baseline". Otherwise other
  // sections of the study decide it.
  bool study_key = true;
  // Whether it changes the results of the computation. Runs that differ only in other parameters must have
  // the same losses.
  bool recipe = true;
  absl::string_view help;     // one line, without a full stop
  absl::string_view details;  // further sentences, or ""
};

// The samples of a step if nothing sets them: of all ranks in strong scaling, of each rank in weak scaling
// and in a run that is started without a study.
inline constexpr int kDefaultBatch = 128;

// Returns all parameters in the order in which they are shown to users.
const std::vector<RunParameter>& RunParameters();
// Returns the parameter that a study may set under this name, or null.
const RunParameter* FindStudyKey(absl::string_view name);
// Returns the names of all parameters that a study may set.
const std::vector<absl::string_view>& StudyKeyNames();

// Returns whether engines with an adapter reject every value except the default. They do not support the
// parameter, so their runs would not measure what the study specifies.
bool IsNativeOnly(const RunParameter& parameter);

bool IsNumber(ParameterType type);
bool IsInteger(ParameterType type);

// Returns "text", "whole number", "number", "true or false", "list of texts" or "mapping".
absl::string_view TypeName(ParameterType type);
// Returns protobuf's name of the type, or of a list's elements: "string", "int32", "int64",
// "double", "bool", "google.protobuf.Struct".
absl::string_view ScalarTypeName(ParameterType type);
// Returns the default as text: "25", "0.1", "fp32", "true", or "" where there is none.
std::string DefaultText(const RunParameter& parameter);
// Returns "1 to 4096", "drop, keep", or "" where every value of the type is allowed.
std::string ValuesText(const RunParameter& parameter);
// Returns the names of the engines that read the parameter.
std::vector<absl::string_view> ReadingEngines(const RunParameter& parameter);
// Returns "all", "native/ddp, native/serial" and the like.
std::string EnginesText(const RunParameter& parameter);
// Returns the shortest text that reads back as `number`; whole numbers below 2^53 without an exponent: "1000000".
std::string ShowNumber(double number);
// Returns the tables of parameters and engines as JSON, an object
// {"parameters": [...], "engines": [...], "default_batch": kDefaultBatch}. The adapters and the tests of frameworks read it as worker/adapters/scalelab/run_parameters.json.
std::string RunParametersJson();

}  // namespace scalelab
