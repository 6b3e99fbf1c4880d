// `scalelab admin prune`: removes data by the retention rules.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AdminService;
using scalelab::v1::PruneRequest;
using scalelab::v1::PruneResponse;
using In = Column::In;

struct AdminPruneOptions {
  bool dry_run = false;
};

Section Removed(const PruneResponse& response, bool dry_run) {
  Section section;
  section.title = dry_run ? "Would be removed" : "Removed";
  section.columns = {{"rule"},
                     {"studies", In::kAll, true},
                     {"points", In::kAll, true},
                     {"attempts' files", In::kAll, true},
                     {"size of files", In::kTables, true},
                     {"bytes", In::kCsv, true}};
  section.empty = "the configuration has no retention rules; see docs/operators/retention.md";
  section.rows = [&response](const RowSink& sink) {
    for (const auto& r : response.removed()) {
      sink({r.rule(), absl::StrCat(r.studies()), absl::StrCat(r.points()), absl::StrCat(r.directories()),
            Bytes(static_cast<double>(r.bytes())), absl::StrCat(r.bytes())});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteAdminPrune(const AdminPruneOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  PruneRequest request;
  request.set_dry_run(options.dry_run);
  const auto response = (*server)->Call((*server)->admin(), &AdminService::Stub::Prune, request);
  if (!response.ok()) return response.status();
  const Section size =
      Facts({{"database before", Bytes(static_cast<double>(response->database_bytes_before()))},
             {"database after", Bytes(static_cast<double>(response->database_bytes_after()))}});
  if (const absl::Status status = session.Print({*response, {Removed(*response, options.dry_run), size}, 0});
      !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddAdminPrune(CLI::App& admin, Action& chosen) {
  auto options = std::make_shared<AdminPruneOptions>();
  CLI::App* command =
      admin.add_subcommand("prune", "Apply the retention rules of the server's configuration now");
  command->add_flag("--dry-run", options->dry_run, "Show what would be removed, and remove nothing");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteAdminPrune(*options, session); };
  });
}

}  // namespace scalelab::client
