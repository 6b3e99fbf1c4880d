// `scalelab cluster`: the coordinator, its allocations and workers.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Allocation;
using scalelab::v1::ClusterService;
using scalelab::v1::GetClusterRequest;
using scalelab::v1::GetClusterResponse;
using In = Column::In;

Section Allocations(const GetClusterResponse& cluster) {
  Section section;
  section.title = "Allocations";
  section.columns = {{"allocation"},
                     {"state"},
                     {"job"},
                     {"study"},
                     {"nodes", In::kAll, true},
                     {"slots/node", In::kAll, true},
                     {"run"},
                     {"created", In::kTables},
                     {"create_time", In::kCsv},
                     {"reason", In::kAll, false, true}};
  section.empty = "none";
  section.rows = [&cluster](const RowSink& sink) {
    for (const Allocation& a : cluster.allocations()) {
      const Tone tone = a.state() == Allocation::RUNNING ? Tone::kBusy : Tone::kDim;
      sink({LastPart(a.name()), Cell(EnumText(Allocation::State_Name(a.state())), tone), a.external_id(),
            a.study(), absl::StrCat(a.nodes()), absl::StrCat(a.slots_per_node()), LastPart(a.run()),
            LocalTime(a.create_time()), UtcTime(a.create_time()), a.reason()});
    }
  };
  return section;
}

Section Workers(const GetClusterResponse& cluster) {
  Section section;
  section.title = "Workers";
  section.columns = {{"node"},
                     {"allocation"},
                     {"version"},
                     {"cpus", In::kAll, true},
                     {"gpus", In::kAll, false, true},
                     {"last heard of"}};
  section.empty = "none";
  section.rows = [&cluster](const RowSink& sink) {
    for (const auto& w : cluster.workers()) {
      sink({w.node(), LastPart(w.allocation()), w.version(), absl::StrCat(w.cpus()),
            absl::StrJoin(w.gpus(), ", "), LocalTime(w.last_seen_time())});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> Run(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto cluster =
      (*server)->Call((*server)->cluster(), &ClusterService::Stub::GetCluster, GetClusterRequest());
  if (!cluster.ok()) return cluster.status();
  Section facts = Facts({{"server", (*server)->address().text},
                         {"version", cluster->version()},
                         {"scheduler", cluster->scheduler()},
                         {"slots", cluster->slots() > 0 ? absl::StrCat(cluster->slots()) : ""},
                         {"queued runs", absl::StrCat(cluster->queued_runs())},
                         {"running attempts", absl::StrCat(cluster->running_attempts())},
                         {"started", LocalTime(cluster->start_time())}});
  if (const absl::Status status =
          session.Print({*cluster, {facts, Allocations(*cluster), Workers(*cluster)}, 1});
      !status.ok()) {
    return status;
  }
  return ExitCode::kOk;
}

}  // namespace

void AddCluster(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("cluster", "Show the server, its allocations and workers");
  command->callback([&chosen] { chosen = Run; });
}

}  // namespace scalelab::client
