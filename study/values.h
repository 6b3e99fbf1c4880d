// Values of study keys: their type and range, equality, and how sentences show them. Used by the rules and by
// the reader of study files, so that both say the same thing in the same words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "proto/status.h"
#include "catalog/nearest.h"
#include "catalog/run_parameters.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab {

// Collects what is wrong; past kMax it only counts, for a hostile request can be wrong a million times.
class Violations {
 public:
  static constexpr size_t kMax = 1000;

  void Add(std::string field, std::string description);
  // "NAME must be at least MIN, not VALUE" (or at most MAX) unless MIN <= value <= MAX.
  void CheckRange(std::string field, absl::string_view name, double value, double min, double max);
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  // In the order of a study file's sections, otherwise as they were added; equal ones once.
  std::vector<FieldViolation> Take();

 private:
  std::vector<FieldViolation> list_;
  size_t dropped_ = 0;
};

// Text in quotes, cut where it is long, control characters replaced.
std::string Quote(absl::string_view text);
// A value for a sentence: text in quotes, numbers as short as they can be told apart.
std::string Show(const google::protobuf::Value& value);
// 1234567 -> "1,234,567".
std::string WithCommas(int64_t number);

// "unknown KIND 'WORD'; did you mean 'NEAR'? known: A, B" without the parts that do not apply.
std::string UnknownName(absl::string_view kind, absl::string_view word,
                        const std::vector<absl::string_view>& known);
// The same for a key, where the list stands only if nothing is near.
std::string UnknownKey(absl::string_view word, const std::vector<absl::string_view>& known);
// What is wrong with this value of this key; nothing when it may stand. With `any_choice` a text key takes
// any text.
std::optional<std::string> CheckValue(const RunParameter& key, const google::protobuf::Value& value,
                                      bool any_choice);

bool SameValue(const google::protobuf::Value& a, const google::protobuf::Value& b);
// Equal for equal values and for no others.
std::string Fingerprint(const google::protobuf::Value& value);

// Sets the RunSpec field that has the key's name. A value that CheckValue refuses sets what can be set:
// expansion goes on to find further problems.
void SetField(const RunParameter& key, const google::protobuf::Value& value, scalelab::v1::RunSpec* spec);
// Whether that field has this value.
bool FieldEquals(const RunParameter& key, const google::protobuf::Value& value,
                 const scalelab::v1::RunSpec& spec);

// Sets every field to its default in the table of run parameters.
void SetDefaults(scalelab::v1::RunSpec* spec);
// Sets the field to zero, false or empty.
void ClearField(const RunParameter& key, scalelab::v1::RunSpec* spec);
// Returns false when the field is zero, false or empty.
bool HasField(const RunParameter& key, const scalelab::v1::RunSpec& spec);
// Returns the field's value as text: "25", "true", "fp32".
std::string FieldText(const RunParameter& key, const scalelab::v1::RunSpec& spec);

}  // namespace scalelab
