#include "client/selection/conditions.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

absl::StatusOr<Condition> ParseCondition(absl::string_view text,
                                         absl::FunctionRef<absl::Status(const std::string&)> check) {
  // Try operators of two characters first, so that "<=" is not parsed as "<".
  for (const absl::string_view op : {"!=", "<=", ">=", "==", "=", "<", ">"}) {
    const size_t at = text.find(op);
    if (at == absl::string_view::npos || at == 0) continue;
    if (text.find_first_of("!<>=") != at) continue;  // this operator is part of the value
    Condition condition{std::string(absl::StripAsciiWhitespace(text.substr(0, at))),
                        op == "==" ? "=" : std::string(op),
                        std::string(absl::StripAsciiWhitespace(text.substr(at + op.size())))};
    if (const absl::Status status = check(condition.field); !status.ok()) return status;
    if (condition.value.find_first_of("=<>") == 0)
      return absl::InvalidArgumentError(absl::StrCat("--where: the value '", condition.value, "' in '", text,
                                                     "' begins with an operator; the operators are =, !=, <, "
                                                     "<=, > and >="));
    if ((op[0] == '<' || op[0] == '>') && !absl::SimpleAtod(condition.value, &condition.number))
      return absl::InvalidArgumentError(absl::StrCat("--where: '", condition.value, "' in '", text,
                                                     "' is no number; ", op, " compares numbers"));
    return condition;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--where: '", text, "' is no condition; write for example engine=native/* and ranks>=4"));
}

// A number may be written in another way than its text: 1e-5 and 0.00001 are the number with the text "1e-05".
bool IsEqual(const Condition& condition, const Field& field) {
  double number = 0;
  if (field.number.has_value() && absl::SimpleAtod(condition.value, &number) && number == *field.number)
    return true;
  return fnmatch(condition.value.c_str(), field.text.c_str(), 0) == 0;
}

bool Holds(const Condition& condition, const std::optional<Field>& field) {
  if (condition.op == "=" || condition.op == "!=")
    return (field.has_value() && IsEqual(condition, *field)) == (condition.op == "=");
  if (!field.has_value() || !field->number.has_value()) return false;
  if (condition.op == "<") return *field->number < condition.number;
  if (condition.op == "<=") return *field->number <= condition.number;
  if (condition.op == ">") return *field->number > condition.number;
  return *field->number >= condition.number;
}

}  // namespace

Field NumberField(double value) { return {Exact(value), value}; }

Field ValueField(const google::protobuf::Value& value) {
  Field field{ValueText(value), std::nullopt};
  if (value.has_number_value()) field.number = value.number_value();
  return field;
}

absl::StatusOr<std::vector<Condition>> ParseConditions(
    const std::vector<std::string>& where, absl::FunctionRef<absl::Status(const std::string& field)> check) {
  std::vector<Condition> conditions;
  for (const std::string& text : where) {
    for (const absl::string_view part : absl::StrSplit(text, " and ")) {
      auto condition = ParseCondition(absl::StripAsciiWhitespace(part), check);
      if (!condition.ok()) return condition.status();
      conditions.push_back(*std::move(condition));
    }
  }
  return conditions;
}

bool Fulfils(const std::vector<Condition>& conditions,
             absl::FunctionRef<std::optional<Field>(const std::string& field)> field_of) {
  return std::all_of(conditions.begin(), conditions.end(),
                     [&](const Condition& condition) { return Holds(condition, field_of(condition.field)); });
}

Sorting ParseSorting(absl::string_view option) {
  const bool descending = absl::ConsumePrefix(&option, "-");
  return {std::string(option), descending};
}

void SortByField(const Sorting& sorting, absl::FunctionRef<std::optional<Field>(int object)> field_of,
                 std::vector<int>& objects) {
  // Numbers come first, then texts, then objects without a value to compare: a NaN is neither below nor above
  // a number.
  using SortKey = std::pair<int, std::pair<double, std::string>>;
  std::vector<std::pair<SortKey, int>> sorted;
  for (const int object : objects) {
    const std::optional<Field> field = field_of(object);
    SortKey key{2, {0, ""}};
    if (field.has_value() && !std::isnan(field->number.value_or(0))) {
      if (field->number.has_value()) {
        key = SortKey{0, {sorting.descending ? -*field->number : *field->number, ""}};
      } else {
        key = SortKey{1, {0, field->text}};
      }
    }
    sorted.emplace_back(std::move(key), object);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) {
    const bool texts = a.first.first == 1 && b.first.first == 1;
    return texts && sorting.descending ? b.first < a.first : a.first < b.first;
  });
  for (size_t i = 0; i < sorted.size(); ++i) objects[i] = sorted[i].second;
}

}  // namespace scalelab::client
