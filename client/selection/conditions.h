// Conditions on the fields of runs, points and studies, such as "engine=native/* and ranks>=4". Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"

namespace scalelab::client {

// A field of an object: its text, and its number if it is one.
struct Field {
  std::string text;
  std::optional<double> number;
};

Field NumberField(double value);
Field ValueField(const google::protobuf::Value& value);

// The operators = (also written ==) and != compare texts. In the value, * matches any characters, and ? matches one. The operators
// <, <=, > and >= compare numbers. A value does not begin with =, < or >.
struct Condition {
  std::string field, op, value;
  double number = 0;  // of <, <=, >, >=
};

// Parses conditions, which may also be joined by "and". `check` returns an error for a field that the objects do not
// have. INVALID_ARGUMENT with the condition if it cannot be understood.
absl::StatusOr<std::vector<Condition>> ParseConditions(
    const std::vector<std::string>& where, absl::FunctionRef<absl::Status(const std::string& field)> check);

// The order of a list, from an option such as "-throughput".
struct Sorting {
  std::string field;  // empty: the given order
  bool descending = false;
};

// Removes the leading '-' of a descending order.
Sorting ParseSorting(absl::string_view option);

// Sorts the indices of objects by a field. Numbers sort before texts. Objects without the field come last in both
// directions, and so do those whose value is NaN. Objects with equal values keep their order.
void SortByField(const Sorting& sorting, absl::FunctionRef<std::optional<Field>(int object)> field_of,
                 std::vector<int>& objects);

// Returns whether an object fulfils all conditions. `field_of` returns a field of the object, or nothing if it has no
// such field; it then fulfils only !=.
bool Fulfils(const std::vector<Condition>& conditions,
             absl::FunctionRef<std::optional<Field>(const std::string& field)> field_of);

}  // namespace scalelab::client
