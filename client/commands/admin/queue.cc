// `scalelab queue`: shows the waiting studies in the order in which they will get allocations.
#include "absl/strings/str_cat.h"
#include "client/commands/admin/admin.h"
#include "client/commands/sections.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListQueueResponse;
using In = Column::In;

Section QueueTable(const ListQueueResponse& response) {
  Section section;
  section.columns = {{"#", In::kTables, true},
                     {"position", In::kCsv},
                     {"study"},
                     {"name", In::kTables, false, true},
                     {"display_name", In::kCsv},
                     {"owner", In::kAll, false, true},
                     {"partition", In::kAll, false, true, 3},
                     {"priority", In::kAll, true, false, 2},
                     {"share used", In::kTables, true, false, 1},
                     {"owner_usage", In::kCsv},
                     {"queued runs", In::kTables, true},
                     {"queued_runs", In::kCsv},
                     {"why", In::kTables, false, true, 0, true},
                     {"reason", In::kCsv}};
  section.empty = "no study waits for an allocation";
  section.rows = [&response](const RowSink& sink) {
    for (const ListQueueResponse::Entry& e : response.entries()) {
      const std::string position = absl::StrCat(e.position());
      const std::string runs = absl::StrCat(e.queued_runs());
      sink({position, position, e.study(), e.display_name(), e.display_name(), e.owner(), e.partition(),
            absl::StrCat(e.priority()), Short(e.owner_usage() / 3600), Exact(e.owner_usage()), runs, runs,
            e.reason(), e.reason()});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteQueue(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto response = (*server)->Call((*server)->admin(), &scalelab::v1::AdminService::Stub::ListQueue,
                                        scalelab::v1::ListQueueRequest());
  if (!response.ok()) return response.status();
  if (const absl::Status status = session.Print({*response, {QueueTable(*response)}}); !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddQueue(CLI::App& app, Action& chosen) {
  app.add_subcommand("queue",
                     "Show the studies that wait, in the order in which they will be served, and why")
      ->callback([&chosen] { chosen = ExecuteQueue; });
}

}  // namespace scalelab::client
