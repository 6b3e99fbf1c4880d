#include "server/config_policy.h"

#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/nearest.h"
#include "yaml-cpp/yaml.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kDay = absl::Hours(24);

absl::Status Invalid(const PlaceText& at, const YAML::Node& node, const std::string& key,
                     const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat(at(node.Mark()), ": ", key, ": ", sentence));
}

// Calls `read(key, value)` for each entry of a map whose keys must be of `known`.
absl::Status ForEachKey(const YAML::Node& node, const PlaceText& at, const std::string& name,
                        const std::vector<absl::string_view>& known,
                        const std::function<absl::Status(const std::string&, const YAML::Node&)>& read) {
  if (!node.IsMap())
    return Invalid(at, node, name, absl::StrCat("expected some of the keys ", absl::StrJoin(known, ", ")));
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string nearest = Nearest(key, known);
      return Invalid(at, entry.first, name,
                     absl::StrCat("unknown key '", key, "'; ",
                                  nearest.empty() ? absl::StrCat("known: ", absl::StrJoin(known, ", "))
                                                  : absl::StrCat("did you mean ", nearest, "?")));
    }
    if (!seen.insert(key).second)
      return Invalid(at, entry.first, name, absl::StrCat("duplicate key \"", key, "\"; remove one"));
    if (absl::Status status = read(key, entry.second); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Reads a limit: a number of at least `min`, whole if `whole`, or "none".
template <typename Number>
absl::Status ReadLimit(const YAML::Node& node, const PlaceText& at, const std::string& key, double min,
                       bool whole, Number* limit) {
  const std::string text = node.IsScalar() ? node.Scalar() : "";
  if (text == "none") {
    *limit = LimitSet::kNone;
    return absl::OkStatus();
  }
  double number = 0;
  int count = 0;
  const bool valid = whole ? absl::SimpleAtoi(text, &count) : absl::SimpleAtod(text, &number);
  if (whole) number = count;
  if (!valid || !(number >= min && number <= 1e9)) {
    return Invalid(at, node, absl::StrCat("limits.", key),
                   absl::StrCat("'", text, "' is not a ", whole ? "whole number" : "number", " from ", min,
                                " to 1000000000, or none"));
  }
  *limit = number;
  return absl::OkStatus();
}

absl::Status ReadName(const YAML::Node& node, const PlaceText& at, const std::string& key,
                      std::optional<std::string>* name) {
  if (!node.IsScalar() || node.Scalar().empty())
    return Invalid(at, node, "limits.overrides", absl::StrCat(key, " needs a name"));
  *name = node.Scalar();
  return absl::OkStatus();
}

// Reads one limit of a rule. Pending allocations are at least 1: with 0, nothing would ever be submitted.
absl::Status ReadRuleKey(const std::string& key, const YAML::Node& value, const PlaceText& at,
                         LimitRule* rule) {
  if (key == "pending_allocations") return ReadLimit(value, at, key, 1, true, &rule->pending_allocations);
  if (key == "running_allocations") return ReadLimit(value, at, key, 0, true, &rule->running_allocations);
  if (key == "runs") return ReadLimit(value, at, key, 0, true, &rule->runs);
  return ReadLimit(value, at, key, 0, false, &rule->gpu_hours_per_week);
}

absl::Status ReadOverrides(const YAML::Node& node, const PlaceText& at, Limits* limits) {
  if (!node.IsSequence()) {
    return Invalid(at, node, "limits.overrides",
                   "expected a list, for example [{user: ada, running_allocations: 32}]");
  }
  for (const YAML::Node& item : node) {
    LimitRule rule;
    const absl::Status status = ForEachKey(
        item, at, "limits.overrides",
        {"user", "partition", "pending_allocations", "running_allocations", "runs", "gpu_hours_per_week"},
        [&](const std::string& key, const YAML::Node& value) {
          if (key == "user") return ReadName(value, at, key, &rule.user);
          if (key == "partition") return ReadName(value, at, key, &rule.partition);
          return ReadRuleKey(key, value, at, &rule);
        });
    if (!status.ok()) return status;
    if (!rule.user && !rule.partition)
      return Invalid(at, item, "limits.overrides", "an entry needs user, partition or both");
    limits->rules.push_back(std::move(rule));
  }
  return absl::OkStatus();
}

// Parses a time such as "7d", "12h" or "1h30m".
bool ParseTime(const std::string& text, absl::Duration* time) {
  double days = 0;
  if (absl::EndsWith(text, "d") && absl::SimpleAtod(text.substr(0, text.size() - 1), &days)) {
    *time = days * kDay;
    return true;
  }
  return absl::ParseDuration(text, time);
}

}  // namespace

absl::Status ReadLimits(const YAML::Node& node, const PlaceText& at, Limits* limits) {
  LimitRule base;
  Limits overrides;
  const absl::Status status =
      ForEachKey(node, at, "limits",
                 {"pending_allocations", "running_allocations", "runs", "gpu_hours_per_week",
                  "partition_pending_allocations", "overrides"},
                 [&](const std::string& key, const YAML::Node& value) {
                   if (key == "overrides") return ReadOverrides(value, at, &overrides);
                   if (key == "partition_pending_allocations")
                     return ReadLimit(value, at, key, 1, true, &limits->partition_pending_allocations);
                   return ReadRuleKey(key, value, at, &base);
                 });
  if (!status.ok()) return status;
  limits->rules.push_back(std::move(base));
  limits->rules.insert(limits->rules.end(), overrides.rules.begin(), overrides.rules.end());
  return absl::OkStatus();
}

absl::Status ReadFairShare(const YAML::Node& node, const PlaceText& at, FairShare* share) {
  return ForEachKey(
      node, at, "fair_share", {"half_life", "weight"}, [&](const std::string& key, const YAML::Node& value) {
        const std::string text = value.IsScalar() ? value.Scalar() : "";
        if (key == "weight") {
          if (text != "node" && text != "gpu")
            return Invalid(at, value, "fair_share.weight",
                           absl::StrCat("'", text, "' is not one of node, gpu"));
          share->weight = text == "gpu" ? FairShare::Weight::kGpus : FairShare::Weight::kNodes;
          return absl::OkStatus();
        }
        absl::Duration time;
        if (!ParseTime(text, &time) || time < absl::Minutes(1) || time > 3650 * kDay) {
          return Invalid(at, value, "fair_share.half_life",
                         absl::StrCat("'", text, "' is not a time from 1m to 3650d, such as 12h or 7d"));
        }
        share->half_life = time;
        return absl::OkStatus();
      });
}

}  // namespace scalelab::server
