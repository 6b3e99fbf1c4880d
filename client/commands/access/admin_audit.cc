// `scalelab admin audit`: lists calls that changed something or were refused, newest first.
#include "absl/strings/str_cat.h"
#include "client/commands/access/days.h"
#include "client/commands/commands.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListAuditEntriesRequest;
using scalelab::v1::ListAuditEntriesResponse;

struct AdminAuditOptions {
  std::string user;
  std::string since;
  bool refused = false;
  int limit = 100;
};

Section Table(const ListAuditEntriesResponse& list) {
  Section table;
  table.columns = {{"time", Column::In::kTables},
                   {"time", Column::In::kCsv},
                   {"user", Column::In::kAll, false, true},
                   {"source", Column::In::kAll, false, false, 3},
                   {"address", Column::In::kAll, false, true, 2},
                   {"action", Column::In::kAll, false, true},
                   {"target", Column::In::kAll, false, true},
                   {"result"},
                   {"count", Column::In::kAll, true, false, 4},
                   {"detail", Column::In::kAll, false, true, 1, true}};
  table.empty = "no entries";
  table.rows = [&list](const RowSink& sink) {
    for (const auto& e : list.entries()) {
      sink({LocalTime(e.time()), UtcTime(e.time()), e.user(), e.source(), e.address(), e.action(), e.target(),
            Cell(e.result(), e.result() == "OK" ? Tone::kGood : Tone::kBad), absl::StrCat(e.count()),
            e.detail()});
    }
  };
  return table;
}

absl::StatusOr<ExitCode> ExecuteAdminAudit(const AdminAuditOptions& options, Session& session) {
  ListAuditEntriesRequest request;
  request.set_user(options.user);
  request.set_refused_only(options.refused);
  if (!options.since.empty()) {
    const auto age = ParseDays("--since", options.since);
    if (!age.ok()) return age.status();
    request.mutable_since()->set_seconds(absl::ToUnixSeconds(session.now() - *age));
  }
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ListAuditEntriesResponse list;
  do {
    request.set_page_size(options.limit - list.entries_size());
    auto page =
        (*server)->Call((*server)->admin(), &scalelab::v1::AdminService::Stub::ListAuditEntries, request);
    if (!page.ok()) return page.status();
    for (auto& entry : *page->mutable_entries()) list.mutable_entries()->Add(std::move(entry));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && list.entries_size() < options.limit);
  if (const absl::Status status = session.Print({list, {Table(list)}}); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddAdminAudit(CLI::App& admin, Action& chosen) {
  auto options = std::make_shared<AdminAuditOptions>();
  CLI::App* command =
      admin.add_subcommand("audit", "List calls that changed something or were refused, newest first");
  command->add_option("--user", options->user, "Only calls of this user");
  command->add_option("--since", options->since, "Only calls of the last time, for example 7d or 12h");
  command->add_flag("--refused", options->refused, "Only calls that were refused");
  command->add_option("--limit", options->limit, "Largest number of entries")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteAdminAudit(*options, session); };
  });
}

}  // namespace scalelab::client
