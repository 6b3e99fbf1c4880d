#include "server/retention/rules.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "catalog/nearest.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

using At = std::function<std::string(const YAML::Mark&)>;

constexpr double kLargestNumber = 1e9;

absl::Status Invalid(const At& at, const YAML::Node& node, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat(at(node.Mark()), ": retention: ", sentence));
}

// Splits "365d" into 365 and "d". Returns false if the text does not begin with a number above 0.
bool SplitNumber(const std::string& text, double* number, std::string* unit) {
  const size_t end = text.find_first_not_of("0123456789.");
  *unit = end == std::string::npos ? "" : text.substr(end);
  return absl::SimpleAtod(text.substr(0, end), number) && *number > 0 && *number <= kLargestNumber;
}

absl::Status ReadAge(const YAML::Node& node, const At& at, absl::Duration* age) {
  double number = 0;
  std::string unit;
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const bool is_number = SplitNumber(text, &number, &unit);
  const absl::Duration of_unit = unit == "d"   ? absl::Hours(24)
                                 : unit == "h" ? absl::Hours(1)
                                 : unit == "m" ? absl::Minutes(1)
                                               : absl::ZeroDuration();
  if (!is_number || of_unit == absl::ZeroDuration())
    return Invalid(
        at, node,
        absl::StrCat("'", text, "' is not an age; write days, hours or minutes, for example 90d or 12h"));
  *age = number * of_unit;
  return absl::OkStatus();
}

absl::Status ReadSize(const YAML::Node& node, const At& at, int64_t* bytes) {
  static const auto* const units = new std::vector<std::string>{"MiB", "GiB", "TiB"};
  double number = 0;
  std::string unit;
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  const bool is_number = SplitNumber(text, &number, &unit);
  const auto found = std::find(units->begin(), units->end(), unit);
  if (!is_number || found == units->end() || number > 1e6)
    return Invalid(at, node,
                   absl::StrCat("'", text, "' is not a size; write MiB, GiB or TiB, for example 50GiB"));
  *bytes =
      static_cast<int64_t>(number * static_cast<double>(int64_t{1} << (20 + 10 * (found - units->begin()))));
  return absl::OkStatus();
}

// An entry of the section, such as `logs`, and where its values go. nullptr: the entry does not have the key.
struct Subject {
  const char* name;
  absl::Duration RetentionRules::*age;  // older_than
  int64_t RetentionRules::*size;        // max_size
  const char* example;
};
constexpr Subject kSubjects[] = {
    {"points", &RetentionRules::points, nullptr, "older_than: 365d"},
    {"logs", &RetentionRules::logs, &RetentionRules::logs_bytes, "older_than: 90d"},
    {"attempt_directories", &RetentionRules::directories, &RetentionRules::directories_bytes,
     "older_than: 180d"},
    {"database", nullptr, &RetentionRules::database_bytes, "max_size: 50GiB"}};

absl::Status ReadSubject(const Subject& subject, const YAML::Node& node, const At& at,
                         RetentionRules* rules) {
  std::vector<std::string> keys;
  if (subject.age != nullptr) keys.emplace_back("older_than: ...");
  if (subject.size != nullptr) keys.emplace_back("max_size: ...");
  const std::string needed = absl::StrCat(subject.name, " needs {", absl::StrJoin(keys, "} or {"), "}",
                                          keys.size() > 1 ? " or both" : "", ", for example ", subject.name,
                                          ": {", subject.example, "}");
  if (!node.IsMap() || node.size() == 0) return Invalid(at, node, needed);
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const bool is_age = subject.age != nullptr && key == "older_than";
    const bool is_size = subject.size != nullptr && key == "max_size";
    if (!is_age && !is_size) return Invalid(at, entry.first, needed);
    if (!seen.insert(key).second)
      return Invalid(at, entry.first, absl::StrCat("duplicate key \"", key, "\"; remove one"));
    const absl::Status status = is_age ? ReadAge(entry.second, at, &(rules->*subject.age))
                                       : ReadSize(entry.second, at, &(rules->*subject.size));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

std::string AgeText(absl::Duration age) {
  if (age % absl::Hours(24) == absl::ZeroDuration()) return absl::StrCat(age / absl::Hours(24), "d");
  if (age % absl::Hours(1) == absl::ZeroDuration()) return absl::StrCat(age / absl::Hours(1), "h");
  return absl::StrCat(absl::ToInt64Minutes(age), "m");
}

absl::Status ReadRetention(const YAML::Node& node, const At& at, RetentionRules* rules) {
  std::vector<std::string> known;
  for (const Subject& subject : kSubjects) known.emplace_back(subject.name);
  if (!node.IsMap())
    return Invalid(
        at, node,
        absl::StrCat("expected ", absl::StrJoin(known, ", "), ", for example {points: {older_than: 365d}}"));
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const auto subject = std::find_if(std::begin(kSubjects), std::end(kSubjects),
                                      [&](const Subject& s) { return name == s.name; });
    if (subject == std::end(kSubjects)) {
      const std::string nearest = Nearest(name, {known.begin(), known.end()});
      return Invalid(at, entry.first,
                     absl::StrCat("unknown key '", name, "'; ",
                                  nearest.empty() ? absl::StrCat("known: ", absl::StrJoin(known, ", "))
                                                  : absl::StrCat("did you mean ", nearest, "?")));
    }
    if (!seen.insert(name).second)
      return Invalid(at, entry.first, absl::StrCat("duplicate key \"", name, "\"; remove one"));
    if (absl::Status status = ReadSubject(*subject, entry.second, at, rules); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace scalelab::server
