#include "server/core/nodes/bad_nodes.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/utf8.h"

namespace scalelab::server {
namespace {

// Greatest number of studies whose unexplained failures are counted for each node.
constexpr size_t kMostStudies = 16;
constexpr size_t kLongestReason = 300;

// Returns whether the text is a plain node name. Workers report the names, and the list of nodes in an option
// of sbatch has a special syntax.
bool IsName(absl::string_view name) {
  return name.size() <= 255 && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

const char* NameOf(db::Cause cause) {
  switch (cause) {
    case db::Cause::kNodeFail:
      return "the node failed";
    case db::Cause::kBootFail:
      return "the node did not boot";
    case db::Cause::kWorkerLost:
      return "the worker was lost";
    case db::Cause::kLaunchError:
      return "the ranks could not be started";
    default:
      return "failed";
  }
}

}  // namespace

bool BadNodes::SpeaksAgainstNode(db::Cause cause) {
  return cause == db::Cause::kNodeFail || cause == db::Cause::kBootFail || cause == db::Cause::kWorkerLost ||
         cause == db::Cause::kLaunchError;
}

void BadNodes::Failed(const std::string& nodes, int64_t study_id, bool works, db::Cause cause,
                      const std::string& message, db::Micros now) {
  if (!SpeaksAgainstNode(cause)) return;
  for (const absl::string_view name : absl::StrSplit(nodes, ',', absl::SkipEmpty())) {
    if (!IsName(name)) continue;
    Node& node = nodes_[std::string(name)];
    if (node.last != 0 && now - node.last > limits_.forget) node = Node();
    node.last = now;
    node.reason = absl::StrCat(NameOf(cause), message.empty() ? "" : ": ", CutUtf8(message, kLongestReason));
    if (works) {
      ++node.failures;
    } else if (node.unexplained.contains(study_id) || node.unexplained.size() < kMostStudies) {
      ++node.unexplained[study_id];
    }
    Judge(node, now);
  }
  while (nodes_.size() > limits_.most_known) ForgetOldest();
}

void BadNodes::Succeeded(const std::string& nodes, int64_t study_id, db::Micros now) {
  for (const absl::string_view name : absl::StrSplit(nodes, ',', absl::SkipEmpty())) {
    const auto it = nodes_.find(std::string(name));
    // If the node is avoided now, the attempt began earlier, so its success does not show that the
    // node is repaired.
    if (it != nodes_.end() && it->second.until <= now) nodes_.erase(it);
  }
  // The study can succeed, so count its earlier failures on other nodes.
  for (auto& [name, node] : nodes_) {
    const auto failures = node.unexplained.find(study_id);
    if (failures == node.unexplained.end()) continue;
    node.failures += failures->second;
    node.unexplained.erase(failures);
    Judge(node, now);
  }
}

// Avoids the node if it has enough failures. After that time, the next failure makes jobs avoid it again, for
// twice the time.
void BadNodes::Judge(Node& node, db::Micros now) {
  const int needed = node.times == 0 ? limits_.failures : limits_.failures + node.times;
  if (node.until > now || node.failures < needed) return;
  const db::Micros time = std::min(limits_.first << std::min(node.times, 20), limits_.longest);
  node.failures = needed;
  ++node.times;
  node.since = now;
  node.until = now + time;
}

std::vector<AvoidedNode> BadNodes::Avoided(db::Micros now) const {
  std::vector<std::pair<db::Micros, AvoidedNode>> avoided;
  for (const auto& [name, node] : nodes_) {
    // `now` is before `since` if the clock was set back.
    if (node.until <= now || now < node.since) continue;
    avoided.push_back({node.last, {name, node.reason, node.failures, node.since, node.until}});
  }
  std::stable_sort(avoided.begin(), avoided.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (avoided.size() > limits_.most_avoided) avoided.resize(limits_.most_avoided);
  std::vector<AvoidedNode> nodes;
  nodes.reserve(avoided.size());
  for (auto& [last, node] : avoided) nodes.push_back(std::move(node));
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return nodes;
}

void BadNodes::ForgetOldest() {
  nodes_.erase(std::min_element(nodes_.begin(), nodes_.end(),
                                [](const auto& a, const auto& b) { return a.second.last < b.second.last; }));
}

}  // namespace scalelab::server
