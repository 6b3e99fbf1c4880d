#include "server/scheduler/slurm_view.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/scheduler/slurm_errors.h"
#include "server/scheduler/slurm_queue.h"

namespace scalelab::server {
namespace {

constexpr int kNodeColumns = 10;

// Counts GPUs: "gpu:a100:4(S:0-1),gpu:2,shard:8" -> 6.
int Gpus(absl::string_view gres) {
  int gpus = 0, depth = 0;
  std::string plain;
  for (char c : gres) {  // split at commas, but not at those in parentheses
    if (c == '(') ++depth;
    if (depth == 0) plain += c;
    if (c == ')') --depth;
  }
  for (absl::string_view one : absl::StrSplit(plain, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(one, ':');
    int count = 0;
    if (parts.size() >= 2 && parts[0] == "gpu" && absl::SimpleAtoi(parts.back(), &count) && count > 0)
      gpus += count;
  }
  return gpus;
}

// Removes the flags that sinfo appends to a state: "*" (not responding), powering up, rebooting and others.
std::string StateText(absl::string_view text) {
  while (!text.empty() && !absl::ascii_isalpha(text.back())) text.remove_suffix(1);
  return absl::AsciiStrToUpper(Printable(text));
}

bool ParseLine(absl::string_view line, std::map<std::string, ClusterView::Partition>* partitions,
               std::map<std::string, ClusterView::Node>* nodes) {
  // The reason is the last column, because an administrator's text may contain separators.
  const std::vector<absl::string_view> f = absl::StrSplit(line, absl::MaxSplits('|', kNodeColumns - 1));
  if (f.size() != kNodeColumns || f[1].empty()) return false;
  const bool is_default = absl::EndsWith(f[1], "*");
  const std::string name = Printable(absl::StripSuffix(f[1], "*"));
  const std::optional<absl::Duration> time = ParseSlurmDuration(f[3]);
  const std::vector<absl::string_view> cpus = absl::StrSplit(f[5], '/');  // allocated/idle/other/total
  ClusterView::Node node;
  int idle = 0;
  if (!time || cpus.size() != 4 || !absl::SimpleAtoi(cpus[0], &node.cpus_allocated) ||
      !absl::SimpleAtoi(cpus[1], &idle) || !absl::SimpleAtoi(cpus[3], &node.cpus)) {
    return false;
  }
  ClusterView::Partition& partition = (*partitions)[name];
  partition.name = name;
  partition.is_default = is_default;
  partition.state = absl::AsciiStrToUpper(Printable(f[2]));
  partition.max_time = *time;
  if (f[0].empty()) return true;  // a partition without nodes
  node.name = Printable(f[0]);
  node.state = StateText(f[4]);
  node.responds = !absl::StrContains(f[4], '*');
  if (f[9] != "none") {
    node.reason = Printable(f[9]);
  } else if (!node.responds) {
    node.reason = "it does not respond";
  }
  if (!absl::SimpleAtoi(f[6], &node.memory_mib)) node.memory_mib = 0;
  node.gpus = Gpus(f[7]);
  node.gpus_allocated = Gpus(f[8]);
  ++partition.nodes;
  if (node.state == "IDLE" && node.responds && idle == node.cpus) ++partition.idle_nodes;
  const auto [entry, is_new] = nodes->emplace(node.name, std::move(node));
  entry->second.partitions.push_back(name);
  return true;
}

}  // namespace

absl::StatusOr<ClusterView> ParseView(absl::string_view text) {
  std::map<std::string, ClusterView::Partition> partitions;
  std::map<std::string, ClusterView::Node> nodes;
  int malformed = 0;
  std::string first;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (!ParseLine(line, &partitions, &nodes) && malformed++ == 0) first = Printable(line);
  }
  if (partitions.empty() && malformed > 0)
    return absl::UnavailableError(absl::StrCat("the output of sinfo is malformed: '", first, "'"));
  ClusterView view;
  for (auto& [name, partition] : partitions) view.partitions.push_back(std::move(partition));
  for (auto& [name, node] : nodes) {
    std::sort(node.partitions.begin(), node.partitions.end());
    view.nodes.push_back(std::move(node));
  }
  return view;
}

Capacity CapacityOf(const ClusterView& view) {
  Capacity capacity;
  for (const ClusterView::Node& node : view.nodes) {
    capacity.slots += node.cpus;
    capacity.slots_per_node = std::max(capacity.slots_per_node, node.cpus);
    capacity.gpus += node.gpus;
  }
  return capacity;
}

absl::Status CheckFits(const ClusterView& view, const JobRequest& request) {
  std::set<std::string> wanted =
      absl::StrSplit(request.partition, ',', absl::SkipEmpty());  // "a,b": any of them
  std::set<std::string> known;
  for (const ClusterView::Partition& partition : view.partitions) {
    if (request.partition.empty() && partition.is_default) wanted.insert(partition.name);
    known.insert(partition.name);
  }
  if (wanted.empty() || !std::includes(known.begin(), known.end(), wanted.begin(), wanted.end()))
    return absl::OkStatus();  // the partition is hidden, so Slurm decides
  const int64_t cpus = int64_t{request.ranks_per_node} * request.cpus_per_rank;
  const int64_t gpus = int64_t{request.ranks_per_node} * request.gpus_per_rank;
  int all = 0, large_enough = 0;
  for (const ClusterView::Node& node : view.nodes) {
    if (std::none_of(node.partitions.begin(), node.partitions.end(),
                     [&](const std::string& name) { return wanted.contains(name); })) {
      continue;
    }
    ++all;
    if (node.cpus >= cpus && node.gpus >= gpus && node.memory_mib >= request.memory_mib) ++large_enough;
  }
  if (large_enough >= request.nodes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the job requests ", Shape(request), ", but partition ", absl::StrJoin(wanted, ","), " has ", all,
      all == 1 ? " node, of which " : " nodes, of which ", large_enough, large_enough == 1 ? " is" : " are",
      " large enough; request fewer ranks, ranks_per_node, cpus_per_rank, gpus_per_rank or "
      "memory_mib, or another resources.partition"));
}

}  // namespace scalelab::server
