// Values of study keys: types, ranges, equality, and their text in messages. The checks and the reader of
// study files both use them, so that their messages agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "catalog/nearest.h"
#include "catalog/run_parameters.h"
#include "google/protobuf/struct.pb.h"
#include "proto/status.h"
#include "scalelab/v1/run.pb.h"
#include "study/grid_key.h"

namespace scalelab {

// A list of violations. Keeps at most kMax and counts the rest, because a malicious request can contain
// a million errors.
class Violations {
 public:
  static constexpr size_t kMax = 1000;

  void Add(std::string field, std::string description);
  // Adds "NAME must be at least MIN, not VALUE" (or "at most MAX") unless MIN <= value <= MAX.
  void CheckRange(std::string field, absl::string_view name, double value, double min, double max);
  bool empty() const { return list_.empty(); }
  size_t size() const { return list_.size(); }
  // Returns the violations in the order of a study file's sections, then in the order of
  // Add, without duplicates.
  std::vector<FieldViolation> Take();

 private:
  std::vector<FieldViolation> list_;
  size_t dropped_ = 0;
};

// Returns `text` in quotes, truncated if it is long, with control characters replaced.
std::string Quote(absl::string_view text);
// Formats a value for messages: text in quotes, numbers in their shortest exact form.
std::string Show(const google::protobuf::Value& value);
// Returns for example "1,234,567" for 1234567.
std::string WithCommas(int64_t number);

// Returns "unknown KIND 'WORD'; did you mean 'NEAR'? known: A, B", without the suggestion if no known
// name is similar.
std::string UnknownName(absl::string_view kind, absl::string_view word,
                        const std::vector<absl::string_view>& known);
// Returns the same kind of message for an unknown key, but lists the known keys only if there
// is no suggestion.
std::string UnknownKey(absl::string_view word, const std::vector<absl::string_view>& known);
// Returns the error in `value` as the value of `key`; nothing if it is valid. With `any_choice`, a text key
// accepts any text.
std::optional<std::string> CheckValue(const GridKey& key, const google::protobuf::Value& value,
                                      bool any_choice);

bool SameValue(const google::protobuf::Value& a, const google::protobuf::Value& b);
// Returns a string that is equal exactly for equal values.
std::string Fingerprint(const google::protobuf::Value& value);

// Sets the RunSpec field that has the key's name, or the key's member of that field. For an invalid value it sets as much as possible, because
// the expansion continues to find further problems.
void SetField(const GridKey& key, const google::protobuf::Value& value, scalelab::v1::RunSpec* spec);
// Returns whether that field has this value.
bool FieldEquals(const GridKey& key, const google::protobuf::Value& value, const scalelab::v1::RunSpec& spec);

// Sets every field to its default in the table of run parameters.
void SetDefaults(scalelab::v1::RunSpec* spec);
// Sets the field to zero, false or empty.
void ClearField(const RunParameter& key, scalelab::v1::RunSpec* spec);
// Clears the field, or removes the key's member from it.
void ClearField(const GridKey& key, scalelab::v1::RunSpec* spec);
// Returns a string that is equal exactly for equal specifications.
std::string Fingerprint(const scalelab::v1::RunSpec& spec);
// Returns false when the field is zero, false or empty.
bool HasField(const RunParameter& key, const scalelab::v1::RunSpec& spec);
// Returns the field's value as text: "25", "true", "fp32".
std::string FieldText(const RunParameter& key, const scalelab::v1::RunSpec& spec);

}  // namespace scalelab
