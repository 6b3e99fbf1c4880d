// The specification of a run: RunSpec of proto/scalelab/v1/run_spec.proto as a plain struct, read from its protobuf
// JSON without protobuf.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace scalelab::trainer {

// The default value of lists and maps. It converts to an empty one.
struct NoDefaultValue {
  template <class T>
  operator T() const {  // NOLINT(google-explicit-constructor): an initialiser of members
    return {};
  }
};

// Has one member for each row of catalog/run_parameters.def, which describes its meaning and its unit. After
// parsing, global_batch == batch_per_rank * ranks.
struct TrainingSpec {
 private:
  using String = std::string;
  using Int32 = int64_t;
  using Int64 = int64_t;
  using Double = double;
  using Bool = bool;
  using StringList = std::vector<std::string>;
  using Map = std::map<std::string, std::string>;  // the values as JSON
  static constexpr NoDefaultValue NoDefault = {};

 public:
#define PARAMETER(number, name, type, default_value, ...) type name = default_value;
#include "catalog/run_parameters.def"
#undef PARAMETER
};

// Numbers may be JSON numbers or strings (protobuf JSON writes 64-bit integers as strings). Unknown fields
// are ignored. Missing fields and empty strings have the default value. If one of global_batch and
// batch_per_rank is missing, it is computed from the other one. If both are missing, batch_per_rank is
// kDefaultBatch. Throws TrainerError that names `source`, the field and its value.
TrainingSpec ParseTrainingSpec(const std::string& text, const std::string& source);
TrainingSpec ReadTrainingSpec(const std::string& path);

}  // namespace scalelab::trainer
