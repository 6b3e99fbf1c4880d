#include "client/selection/conditions.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

bool Holds(const Condition& condition, const std::optional<Field>& field) {
  if (condition.op == "=" || condition.op == "!=") {
    const bool equal = field.has_value() && fnmatch(condition.value.c_str(), field->text.c_str(), 0) == 0;
    return equal == (condition.op == "=");
  }
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

}  // namespace scalelab::client
