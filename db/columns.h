// Maps the members of each record to the columns of its table, for reading and writing.
#pragma once

#include <algorithm>
#include <concepts>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "db/records.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// Table<Row> has kName, kKey (primary key), kParent (another column that refers to another table, or empty) and
// kColumns (in the order of Members(row), beginning with the key).
template <class Row>
struct Table;

template <class R, class Row>
concept RowOf = std::same_as<std::remove_const_t<R>, Row>;

template <>
struct Table<StudyRow> {
  static constexpr char kName[] = "study", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] =
      "id,name,owner,request_id,spec,state,priority,runs,created,started,finished,cancel_requested,pause_"
      "reason,private,held";
};
template <RowOf<StudyRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.name, r.owner, r.request_id, r.spec, r.state, r.priority, r.runs, r.created,
                  r.started, r.finished, r.cancel_requested, r.pause_reason, r.is_private, r.held);
}

template <>
struct Table<StudyFileRow> {
  static constexpr char kName[] = "study_file", kKey[] = "study_id", kParent[] = "";
  static constexpr char kColumns[] = "study_id,text";
};
template <RowOf<StudyFileRow> R>
auto Members(R& r) {
  return std::tie(r.study_id, r.text);
}

template <>
struct Table<CellRow> {
  static constexpr char kName[] = "cell", kKey[] = "id", kParent[] = "study_id";
  static constexpr char kColumns[] =
      "id,study_id,position,engine,model,precision,backend,ranks,global_batch,key,spec,excluded";
};
template <RowOf<CellRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.study_id, r.position, r.engine, r.model, r.precision, r.backend, r.ranks,
                  r.global_batch, r.key, r.spec, r.excluded);
}

template <>
struct Table<CellValueRow> {
  static constexpr char kName[] = "cell_value", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] = "id,name,value";
};
// Returns the id of a value. Within a study, number 0 has the smallest id and number
// kMaxCellValue the largest.
inline constexpr int64_t kMaxCellValue = 0xffffffff;
inline int64_t CellValueId(int64_t study_id, int64_t number) { return (study_id << 32) + number; }
inline auto Members(const CellValueRow& r) {
  return std::tuple<int64_t, const std::string&, const std::string&>(CellValueId(r.study_id, r.number),
                                                                     r.name, r.value);
}

template <>
struct Table<RunRow> {
  static constexpr char kName[] = "run", kKey[] = "id", kParent[] = "study_id";
  static constexpr char kColumns[] =
      "id,study_id,cell_id,repeat,position,state,cause,attempts,uncounted,message,started,finished";
};
template <RowOf<RunRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.study_id, r.cell_id, r.repeat, r.position, r.state, r.cause, r.attempts,
                  r.uncounted, r.message, r.started, r.finished);
}

template <>
struct Table<AllocationRow> {
  static constexpr char kName[] = "allocation", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] =
      "id,token,study_id,run_id,state,external_id,nodes,ranks_per_node,cpus_per_rank,gpus_per_rank,"
      "reason,created,started,ended,owner,partition,charged_until,held,cancelled";
};
template <RowOf<AllocationRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.token, r.study_id, r.run_id, r.state, r.external_id, r.nodes, r.ranks_per_node,
                  r.cpus_per_rank, r.gpus_per_rank, r.reason, r.created, r.started, r.ended, r.owner,
                  r.partition, r.charged_until, r.held, r.cancelled);
}

template <>
struct Table<UsageRow> {
  static constexpr char kName[] = "usage", kKey[] = "owner", kParent[] = "";
  static constexpr char kColumns[] =
      "owner,at,decayed_node_seconds,decayed_gpu_seconds,node_seconds,gpu_seconds";
};
template <RowOf<UsageRow> R>
auto Members(R& r) {
  return std::tie(r.owner, r.at, r.decayed_node_seconds, r.decayed_gpu_seconds, r.node_seconds,
                  r.gpu_seconds);
}

template <>
struct Table<UsageHourRow> {
  static constexpr char kName[] = "usage_hour", kKey[] = "owner,partition,hour", kParent[] = "";
  static constexpr char kColumns[] = "owner,partition,hour,gpu_seconds";
};
template <RowOf<UsageHourRow> R>
auto Members(R& r) {
  return std::tie(r.owner, r.partition, r.hour, r.gpu_seconds);
}

template <>
struct Table<DrainRow> {
  static constexpr char kName[] = "drain", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] = "id,draining,reason,since";
};
template <RowOf<DrainRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.on, r.reason, r.since);
}

template <>
struct Table<AttemptRow> {
  static constexpr char kName[] = "attempt", kKey[] = "id", kParent[] = "run_id";
  static constexpr char kColumns[] =
      "id,run_id,number,token,allocation_id,state,cause,message,nodes,directory,exit_status,parameter_hash,"
      "assigned,"
      "started,finished,resumed_step,checkpoint_step,throughput,epoch_seconds";
};
template <RowOf<AttemptRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.run_id, r.number, r.token, r.allocation_id, r.state, r.cause, r.message, r.nodes,
                  r.directory, r.exit_status, r.parameter_hash, r.assigned, r.started, r.finished,
                  r.resumed_step, r.checkpoint_step, r.throughput, r.epoch_seconds);
}

template <>
struct Table<ProvenanceRow> {
  static constexpr char kName[] = "provenance", kKey[] = "attempt_id", kParent[] = "";
  static constexpr char kColumns[] = "attempt_id,json";
};
template <RowOf<ProvenanceRow> R>
auto Members(R& r) {
  return std::tie(r.attempt_id, r.json);
}

template <>
struct Table<StreamRow> {
  static constexpr char kName[] = "stream", kKey[] = "attempt_id,rank", kParent[] = "";
  static constexpr char kColumns[] =
      "attempt_id,rank,position,line,malformed,first_malformed,finished,parameter_hash,error_kind,error_"
      "message";
};
template <RowOf<StreamRow> R>
auto Members(R& r) {
  return std::tie(r.attempt_id, r.rank, r.position, r.line, r.malformed, r.first_malformed, r.finished,
                  r.parameter_hash, r.error_kind, r.error_message);
}

template <>
struct Table<EpochRow> {
  static constexpr char kName[] = "epoch", kKey[] = "attempt_id,rank,epoch", kParent[] = "";
  static constexpr char kColumns[] = "attempt_id,rank,epoch,time,metrics";
};
template <RowOf<EpochRow> R>
auto Members(R& r) {
  return std::tie(r.attempt_id, r.rank, r.epoch, r.time, r.metrics);
}

template <>
struct Table<NoticeRow> {
  static constexpr char kName[] = "notice", kKey[] = "id", kParent[] = "";
  static constexpr char kColumns[] =
      "id,key,study_id,channel,target,payload,state,attempts,error,created,due,ended";
};
template <RowOf<NoticeRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.key, r.study_id, r.channel, r.target, r.payload, r.state, r.attempts, r.error,
                  r.created, r.due, r.ended);
}

// The metrics of the row are in a separate table, run_metrics.
template <>
struct Table<RunSummary> {
  static constexpr char kName[] = "run_summary", kKey[] = "run_id", kParent[] = "";
  static constexpr char kColumns[] =
      "run_id,attempt_id,throughput,epoch_seconds,comm_share,peak_memory,accuracy,train_loss,time_to_"
      "accuracy,"
      "fingerprint,throughput_mean,step_seconds,device_memory,straggler_skew,cpu_utilisation,steps,"
      "reported_step,nodes_hash";
};
template <RowOf<RunSummary> R>
auto Members(R& r) {
  return std::tie(r.run_id, r.attempt_id, r.throughput, r.epoch_seconds, r.comm_share, r.peak_memory,
                  r.accuracy, r.train_loss, r.time_to_accuracy, r.fingerprint, r.throughput_mean,
                  r.step_seconds, r.device_memory, r.straggler_skew, r.cpu_utilisation, r.steps,
                  r.reported_step, r.nodes_hash);
}

// "INSERT INTO run (..) VALUES (?1,..)".
template <class Row>
const char* InsertSql() {
  static const std::string* const sql = [] {
    const std::vector<std::string> columns = absl::StrSplit(Table<Row>::kColumns, ',');
    return new std::string(
        absl::StrCat("INSERT INTO ", Table<Row>::kName, " (", Table<Row>::kColumns, ") VALUES (",
                     absl::StrJoin(std::vector<const char*>(columns.size(), "?"), ","), ")"));
  }();
  return sql->c_str();
}

// "UPDATE run SET cell_id=?3,.. WHERE id=?1", with the parameters of InsertSql. Leaves out the foreign key, which never
// changes: setting it would make SQLite check the constraint and write a statement journal.
template <class Row>
const char* UpdateSql() {
  static const std::string* const sql = [] {
    const std::vector<std::string> columns = absl::StrSplit(Table<Row>::kColumns, ',');
    const size_t keys = 1 + std::ranges::count(std::string_view(Table<Row>::kKey), ',');
    std::vector<std::string> where, set;
    for (size_t i = 0; i < columns.size(); ++i) {
      if (i >= keys && columns[i] == Table<Row>::kParent) continue;
      (i < keys ? where : set).push_back(absl::StrCat(columns[i], "=?", i + 1));
    }
    return new std::string(absl::StrCat("UPDATE ", Table<Row>::kName, " SET ", absl::StrJoin(set, ","),
                                        " WHERE ", absl::StrJoin(where, " AND ")));
  }();
  return sql->c_str();
}

// Overwrites the row with this key, or inserts the row. `may_exist`: whether there may be such a row. Does
// not use an upsert: SQLite would write a statement journal for it, which doubles the cost. Returns whether
// the row was inserted.
template <class Row>
absl::StatusOr<bool> Put(Database& db, const Row& row, bool may_exist) {
  const auto run = [&](Statement& statement) {
    return std::apply([&](const auto&... member) { return statement.Run(member...); }, Members(row));
  };
  if (may_exist) {
    Statement update(db, UpdateSql<Row>());
    if (absl::Status status = run(update); !status.ok()) return status;
    if (update.changes() > 0) return false;
  }
  Statement insert(db, InsertSql<Row>());
  if (absl::Status status = run(insert); !status.ok()) return status;
  return true;
}

// Returns "SELECT .. FROM run" followed by `rest`. Keep the result in a static variable, because Statement
// caches by address.
template <class Row>
std::string SelectSql(const char* rest) {
  return absl::StrCat("SELECT ", Table<Row>::kColumns, " FROM ", Table<Row>::kName, " ", rest);
}

template <class Row>
Row ReadRow(Statement& statement) {
  Row row;
  std::apply([&](auto&... member) { statement.Read(member...); }, Members(row));
  return row;
}

template <>
inline CellValueRow ReadRow<CellValueRow>(Statement& statement) {
  CellValueRow row;
  int64_t id = 0;
  statement.Read(id, row.name, row.value);
  row.study_id = id >> 32;
  row.number = static_cast<int>(id & kMaxCellValue);
  return row;
}

}  // namespace scalelab::db
