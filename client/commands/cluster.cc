// `scalelab cluster`: shows the coordinator, its scheduler's partitions and nodes, allocations and workers.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Allocation;
using scalelab::v1::ClusterService;
using scalelab::v1::GetClusterRequest;
using scalelab::v1::GetClusterResponse;
using scalelab::v1::Node;
using In = Column::In;

// Returns, for example, "3 of 8". Returns "" if `all` is 0.
std::string Used(int64_t used, int64_t all) { return all > 0 ? absl::StrCat(used, " of ", all) : ""; }

// Returns for example "no answer since 2026-11-21 13:37:00 (3m20s): squeue timed out".
std::string AwayText(const GetClusterResponse& cluster, absl::Time now) {
  if (cluster.scheduler_error().empty()) return "";
  std::string since;
  if (cluster.has_scheduler_error_time()) {
    since = absl::StrCat(" since ", LocalTime(cluster.scheduler_error_time()), " (",
                         Span(Since(cluster.scheduler_error_time(), now)), ")");
  }
  return absl::StrCat("no answer", since, ": ", cluster.scheduler_error());
}

// Returns for example "no run begins since 2026-11-21 13:37:00: new switch"; empty if the service is not drained.
std::string DrainText(const GetClusterResponse& cluster) {
  if (!cluster.has_drain_time()) return "";
  return absl::StrCat("no run begins since ", LocalTime(cluster.drain_time()),
                      cluster.drain_reason().empty() ? "" : ": ", cluster.drain_reason());
}

Section ClusterSummary(const GetClusterResponse& cluster, const std::string& server, absl::Time now) {
  int64_t cpus = 0, cpus_used = 0, gpus = 0, gpus_used = 0;
  for (const Node& node : cluster.nodes()) {
    cpus += node.cpus();
    cpus_used += node.cpus_allocated();
    gpus += node.gpus();
    gpus_used += node.gpus_allocated();
  }
  return Facts({{"server", server},
                {"version", cluster.version()},
                {"started", LocalTime(cluster.start_time())},
                {"scheduler", cluster.scheduler()},
                {"away", Cell(AwayText(cluster, now), Tone::kBad)},
                {"drained", Cell(DrainText(cluster), Tone::kBad)},
                {"slots", cluster.slots() > 0 ? absl::StrCat(cluster.slots()) : ""},
                {"nodes", cluster.nodes_size() > 0 ? absl::StrCat(cluster.nodes_size()) : ""},
                {"cores in use", Used(cpus_used, cpus)},
                {"GPUs in use", Used(gpus_used, gpus)},
                {"queued runs", absl::StrCat(cluster.queued_runs())},
                {"running attempts", absl::StrCat(cluster.running_attempts())}});
}

Section Partitions(const GetClusterResponse& cluster) {
  Section section;
  section.title = "Partitions";
  section.columns = {{"partition"},
                     {"default"},
                     {"state"},
                     {"time limit", In::kAll, true},
                     {"nodes", In::kAll, true},
                     {"idle", In::kAll, true}};
  section.in_tables = cluster.partitions_size() > 0;
  section.rows = [&cluster](const RowSink& sink) {
    for (const auto& p : cluster.partitions()) {
      sink({p.name(), p.is_default() ? "yes" : "", p.state(),
            p.max_time_seconds() > 0 ? Span(static_cast<double>(p.max_time_seconds())) : "none",
            absl::StrCat(p.nodes()), absl::StrCat(p.idle_nodes())});
    }
  };
  return section;
}

Section Nodes(const GetClusterResponse& cluster) {
  Section section;
  section.title = "Nodes";
  section.columns = {{"node"},
                     {"partitions", In::kAll, false, true},
                     {"state"},
                     {"cores in use", In::kAll, true},
                     {"GPUs in use", In::kAll, true, false, 1},
                     {"memory", In::kAll, true, false, 2},
                     {"reason", In::kAll, false, true, 0, true}};
  section.in_tables = cluster.nodes_size() > 0;
  section.rows = [&cluster](const RowSink& sink) {
    for (const Node& n : cluster.nodes()) {
      sink({n.name(), absl::StrJoin(n.partitions(), ","), n.state(), Used(n.cpus_allocated(), n.cpus()),
            Used(n.gpus_allocated(), n.gpus()),
            n.memory_mib() > 0 ? Bytes(static_cast<double>(n.memory_mib()) * (1 << 20)) : "", n.reason()});
    }
  };
  return section;
}

Section ClusterAllocations(const GetClusterResponse& cluster, absl::Time now) {
  Section section;
  section.title = "Allocations";
  section.columns = {{"allocation", In::kAll, false, true},
                     {"state"},
                     {"job", In::kAll, false, true},
                     {"study"},
                     {"nodes", In::kAll, true},
                     {"slots/node", In::kAll, true, false, 5},
                     {"run", In::kAll, false, false, 3},
                     {"on", In::kAll, false, true, 1},
                     {"time left", In::kTables, true, false, 2},
                     {"created", In::kTables, false, false, 4},
                     {"create_time", In::kCsv},
                     {"start_time", In::kCsv},
                     {"end_time", In::kCsv},
                     {"reason", In::kAll, false, true, 0, true}};
  section.empty = "none";
  section.rows = [&cluster, now](const RowSink& sink) {
    for (const Allocation& a : cluster.allocations()) {
      const Tone tone = a.state() == Allocation::RUNNING ? Tone::kBusy : Tone::kDim;
      sink({LastPart(a.name()), Cell(EnumText(Allocation::State_Name(a.state())), tone), a.external_id(),
            a.study(), absl::StrCat(a.nodes()), absl::StrCat(a.slots_per_node()), LastPart(a.run()),
            absl::StrJoin(a.node_names(), ","),
            a.has_end_time() ? Span(std::max(0.0, -Since(a.end_time(), now))) : "",
            LocalTime(a.create_time()), UtcTime(a.create_time()), UtcTime(a.start_time()),
            UtcTime(a.end_time()), a.reason()});
    }
  };
  return section;
}

Section Workers(const GetClusterResponse& cluster, absl::Time now) {
  Section section;
  section.title = "Workers";
  section.columns = {{"node"},
                     {"allocation", In::kAll, false, true},
                     {"version", In::kAll, false, false, 1},
                     {"cpus", In::kAll, true},
                     {"gpus", In::kAll, false, true},
                     {"last seen", In::kTables, true},
                     {"last_seen_time", In::kCsv}};
  section.empty = "none";
  section.rows = [&cluster, now](const RowSink& sink) {
    for (const auto& w : cluster.workers()) {
      sink({w.node(), LastPart(w.allocation()), w.version(), absl::StrCat(w.cpus()),
            absl::StrJoin(w.gpus(), ", "),
            w.has_last_seen_time() ? absl::StrCat(Span(std::max(0.0, Since(w.last_seen_time(), now))), " ago")
                                   : "",
            UtcTime(w.last_seen_time())});
    }
  };
  return section;
}

Section AvoidedNodes(const GetClusterResponse& cluster) {
  Section section;
  section.title = "Avoided nodes";
  section.columns = {{"node"},
                     {"failures", In::kAll, true},
                     {"since", In::kTables, false, false, 1},
                     {"since_time", In::kCsv},
                     {"until", In::kTables},
                     {"until_time", In::kCsv},
                     {"reason", In::kAll, false, true, 0, true}};
  section.in_tables = cluster.avoided_nodes_size() > 0;
  section.rows = [&cluster](const RowSink& sink) {
    for (const auto& n : cluster.avoided_nodes()) {
      sink({n.name(), absl::StrCat(n.failures()), LocalTime(n.since_time()), UtcTime(n.since_time()),
            LocalTime(n.until_time()), UtcTime(n.until_time()), n.reason()});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteCluster(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto cluster =
      (*server)->Call((*server)->cluster(), &ClusterService::Stub::GetCluster, GetClusterRequest());
  if (!cluster.ok()) return cluster.status();
  const absl::Time now = session.now();
  const Answer answer{
      *cluster,
      {ClusterSummary(*cluster, (*server)->address().text, now), ClusterAllocations(*cluster, now),
       Workers(*cluster, now), AvoidedNodes(*cluster), Partitions(*cluster), Nodes(*cluster)},
      1};
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddCluster(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "cluster", "Show the server, its allocations and workers, and the scheduler's partitions and nodes");
  AddClusterFrameworks(*command, chosen);
  command->callback([command, &chosen] {
    if (command->get_subcommands().empty()) chosen = ExecuteCluster;
  });
}

}  // namespace scalelab::client
