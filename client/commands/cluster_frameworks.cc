// `scalelab cluster frameworks`: shows which engines can run, and how to make other engines usable.
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ClusterService;
using scalelab::v1::Framework;
using scalelab::v1::ListFrameworksRequest;
using scalelab::v1::ListFrameworksResponse;
using In = Column::In;

Section Table(const ListFrameworksResponse& response) {
  Section section;
  section.columns = {{"engine"},
                     {"usable"},
                     {"version", In::kAll, false, false, 2},
                     {"reason", In::kAll, false, true, 0, true},
                     {"fix", In::kAll, false, true, 1, true},
                     {"environment", In::kWide},
                     {"packages", In::kWide, false, true}};
  section.empty = "none";
  section.rows = [&response](const RowSink& sink) {
    for (const Framework& f : response.frameworks()) {
      const std::map<std::string, std::string> versions(f.versions().begin(), f.versions().end());
      sink({f.engine(), Cell(f.usable() ? "yes" : "no", f.usable() ? Tone::kGood : Tone::kBad), f.version(),
            f.reason(), f.fix(), f.environment(), absl::StrJoin(versions, ", ", absl::PairFormatter(" "))});
    }
  };
  return section;
}

absl::StatusOr<ExitCode> ExecuteClusterFrameworks(Session& session) {
  auto server = session.Server(kFrameworksLimit);
  if (!server.ok()) return server.status();
  const auto frameworks =
      (*server)->Call((*server)->cluster(), &ClusterService::Stub::ListFrameworks, ListFrameworksRequest());
  if (!frameworks.ok()) return frameworks.status();
  if (const absl::Status status = session.Print({*frameworks, {Table(*frameworks)}}); !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddClusterFrameworks(CLI::App& cluster, Action& chosen) {
  CLI::App* command =
      cluster.add_subcommand("frameworks", "Show which engines can run, and what is missing for the others");
  command->callback([&chosen] { chosen = ExecuteClusterFrameworks; });
}

}  // namespace scalelab::client
