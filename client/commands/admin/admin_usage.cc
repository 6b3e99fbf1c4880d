// `scalelab admin usage`: shows the usage of each user, as fair share counts it.
#include "absl/strings/str_cat.h"
#include "client/commands/admin/admin.h"
#include "client/commands/sections.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListUsageResponse;
using In = Column::In;

std::string Hours(double seconds) { return Short(seconds / 3600); }

Section UsageTable(const ListUsageResponse& response) {
  Section section;
  section.columns = {{"user", Column::In::kAll, false, true},
                     {"share used", In::kTables, true},
                     {"node-hours", In::kTables, true},
                     {"GPU-hours", In::kTables, true},
                     {"GPU-hours in 7 days", In::kTables, true, false, 3},
                     {"decayed_seconds", In::kCsv},
                     {"node_seconds", In::kCsv},
                     {"gpu_seconds", In::kCsv},
                     {"gpu_seconds_week", In::kCsv},
                     {"pending jobs", In::kTables, true, false, 1},
                     {"running jobs", In::kTables, true, false, 2},
                     {"running runs", In::kTables, true},
                     {"pending_allocations", In::kCsv},
                     {"running_allocations", In::kCsv},
                     {"running_runs", In::kCsv}};
  section.empty = "nobody has used anything yet";
  section.rows = [&response](const RowSink& sink) {
    for (const ListUsageResponse::Usage& u : response.usages()) {
      const std::string pending = absl::StrCat(u.pending_allocations());
      const std::string running = absl::StrCat(u.running_allocations());
      const std::string runs = absl::StrCat(u.running_runs());
      sink({u.user(), Hours(u.decayed_node_seconds()), Hours(u.node_seconds()), Hours(u.gpu_seconds()),
            Hours(u.gpu_seconds_week()), Exact(u.decayed_node_seconds()), Exact(u.node_seconds()),
            Exact(u.gpu_seconds()), Exact(u.gpu_seconds_week()), pending, running, runs, pending, running,
            runs});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteAdminUsage(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto response = (*server)->Call((*server)->admin(), &scalelab::v1::AdminService::Stub::ListUsage,
                                        scalelab::v1::ListUsageRequest());
  if (!response.ok()) return response.status();
  const Answer answer{
      *response, {Facts({{"half-life", Span(response->half_life_seconds())}}), UsageTable(*response)}, 1};
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddAdminUsage(CLI::App& admin, Action& chosen) {
  admin
      .add_subcommand("usage",
                      "Show what each user has used; the user with the smallest share is served next")
      ->callback([&chosen] { chosen = ExecuteAdminUsage; });
}

}  // namespace scalelab::client
