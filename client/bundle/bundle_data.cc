#include "client/bundle/bundle_data.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/export/study_tables.h"
#include "db/archive/archive.h"
#include "db/continued_points.h"
#include "db/sqlite_store.h"
#include "nlohmann/json.hpp"
#include "server/cells/message_json.h"
#include "server/runs/run_messages.h"

namespace scalelab::client {
namespace {

using nlohmann::ordered_json;
using scalelab::v1::Attempt;
using scalelab::v1::Run;

// The database stores the number of a study in the upper half of other numbers.
constexpr int64_t kMostStudies = int64_t{1} << 31;
constexpr int64_t kMostRuns = int64_t{1} << 53;

// Passes the points of the last attempt of the run to the sink, as the server returns them.
absl::Status PassPointsOf(db::Store& store, const db::RunRow& run, const DataSink& sink) {
  const auto attempts = store.ListAttempts(run.id);
  if (!attempts.ok()) return attempts.status();
  if (attempts->empty()) return absl::OkStatus();
  std::vector<DataCell> row(PointColumns().size());
  row[0] = server::RunName(run.study_id, run.id);
  absl::Status passed;
  const absl::Status read =
      db::ReadContinuedPoints(store, db::AttemptsContinued(*attempts, attempts->back().number),
                              db::PointFilter{}, [&](const db::Series& series) {
                                row[1] = int64_t{series.rank};
                                row[4] = series.key;
                                for (size_t i = 0; i < series.value.size() && passed.ok(); ++i) {
                                  row[2] = series.step[i];
                                  row[3] = series.time[i];
                                  row[5] = series.value[i];
                                  passed = sink(row);
                                }
                              });
  return read.ok() ? passed : read;
}

// A list of different JSON values.
class Different {
 public:
  // Returns the index of the value of `message`. Adds it unless it is in the list.
  size_t IndexOf(const google::protobuf::Message& message) {
    const std::string text = server::ToJson(message);
    const auto [at, is_new] = index_.try_emplace(text, list_.size());
    if (is_new) list_.push_back(ordered_json::parse(text));
    return at->second;
  }
  const ordered_json& list() const { return list_; }

 private:
  std::map<std::string, size_t> index_;
  ordered_json list_ = ordered_json::array();
};

ordered_json AttemptJson(const Run& run, const Attempt& attempt, Different& machines, Different& codes) {
  ordered_json json;
  json["run"] = run.name();
  json["attempt"] = attempt.number();
  json["nodes"] = ordered_json::array();
  for (const std::string& node : attempt.nodes()) json["nodes"].push_back(node);
  json["machines"] = ordered_json::array();
  for (const auto& node : attempt.node_infos()) json["machines"].push_back(machines.IndexOf(node));
  if (attempt.has_code()) json["code"] = codes.IndexOf(attempt.code());
  return json;
}

}  // namespace

absl::StatusOr<TemporaryDirectory> TemporaryDirectory::Make() {
  std::error_code unknown;
  std::string pattern = (std::filesystem::temp_directory_path(unknown) / "scalelab-bundle-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr)
    return absl::UnknownError(absl::StrCat("cannot create ", pattern, ": ", std::strerror(errno),
                                           "; set TMPDIR to a directory with space"));
  return TemporaryDirectory(std::move(pattern));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code unknown;
  if (!path_.empty()) std::filesystem::remove_all(path_, unknown);
}

std::optional<FirstNumbers> ParseFirstRun(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  FirstNumbers first;
  if (parts.size() != 4 || parts[0] != "studies" || parts[2] != "runs") return std::nullopt;
  if (!absl::SimpleAtoi(parts[1], &first.study) || !absl::SimpleAtoi(parts[3], &first.run))
    return std::nullopt;
  if (first.study < 1 || first.study >= kMostStudies || first.run < 1 || first.run >= kMostRuns)
    return std::nullopt;
  return first;
}

absl::StatusOr<std::unique_ptr<db::Store>> RestoreArchive(int fd, const std::string& directory,
                                                          const FirstNumbers& first) {
  auto store = db::OpenSqliteStore({directory + "/study.db"});
  if (!store.ok()) return store.status();
  auto head = db::CheckArchive(fd);
  if (!head.ok()) return head.status();
  db::FirstIds ids;
  ids.fill(1);
  ids[static_cast<size_t>(db::Numbered::kStudy)] = first.study;
  ids[static_cast<size_t>(db::Numbered::kRun)] = first.run;
  db::Restore restore(**store, fd, *std::move(head), ids);
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = restore.Step();
  if (!more.ok()) return more.status();
  return *std::move(store);
}

DataTable ArchivedPoints(db::Store& store, int64_t study_id) {
  const auto rows = [&store, study_id](const DataSink& sink) -> absl::Status {
    db::RunFilter filter;
    filter.study_id = study_id;
    for (bool more = true; more;) {
      const auto page = store.ListRuns(filter);
      if (!page.ok()) return page.status();
      for (const db::RunRow& run : *page) {
        if (absl::Status status = PassPointsOf(store, run, sink); !status.ok()) return status;
      }
      more = static_cast<int>(page->size()) == filter.limit;
      if (more) filter.after_position = page->back().position;
    }
    return absl::OkStatus();
  };
  return {"metrics", PointColumns(), rows};
}

std::string ProvenanceText(const std::vector<Run>& runs) {
  Different machines, codes;
  ordered_json attempts = ordered_json::array();
  for (const Run& run : runs) {
    for (const Attempt& attempt : run.attempts())
      attempts.push_back(AttemptJson(run, attempt, machines, codes));
  }
  ordered_json provenance;
  provenance["format"] = "scalelab provenance 1";
  provenance["machines"] = machines.list();
  provenance["code"] = codes.list();
  provenance["attempts"] = std::move(attempts);
  return provenance.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace scalelab::client
