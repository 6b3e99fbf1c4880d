// Maps the members of each record to the columns of its table, for reading and writing.
#pragma once

#include <concepts>
#include <string>
#include <tuple>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "db/records.h"
#include "db/sqlite.h"

namespace scalelab::db {

// Table<Row> has kName, kKey (primary key) and kColumns (in the order of Members(row)).
template <class Row>
struct Table;

template <class R, class Row>
concept RowOf = std::same_as<std::remove_const_t<R>, Row>;

template <>
struct Table<StudyRow> {
  static constexpr char kName[] = "study", kKey[] = "id";
  static constexpr char kColumns[] =
      "id,name,owner,request_id,spec,state,priority,runs,created,started,finished,cancel_requested,pause_"
      "reason";
};
template <RowOf<StudyRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.name, r.owner, r.request_id, r.spec, r.state, r.priority, r.runs, r.created,
                  r.started, r.finished, r.cancel_requested, r.pause_reason);
}

template <>
struct Table<CellRow> {
  static constexpr char kName[] = "cell", kKey[] = "id";
  static constexpr char kColumns[] =
      "id,study_id,position,engine,model,precision,backend,ranks,global_batch,key,spec,excluded";
};
template <RowOf<CellRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.study_id, r.position, r.engine, r.model, r.precision, r.backend, r.ranks,
                  r.global_batch, r.key, r.spec, r.excluded);
}

template <>
struct Table<RunRow> {
  static constexpr char kName[] = "run", kKey[] = "id";
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
  static constexpr char kName[] = "allocation", kKey[] = "id";
  static constexpr char kColumns[] =
      "id,token,study_id,run_id,state,external_id,nodes,ranks_per_node,cpus_per_rank,gpus_per_rank,"
      "reason,created,started,ended";
};
template <RowOf<AllocationRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.token, r.study_id, r.run_id, r.state, r.external_id, r.nodes, r.ranks_per_node,
                  r.cpus_per_rank, r.gpus_per_rank, r.reason, r.created, r.started, r.ended);
}

template <>
struct Table<AttemptRow> {
  static constexpr char kName[] = "attempt", kKey[] = "id";
  static constexpr char kColumns[] =
      "id,run_id,number,token,allocation_id,state,cause,message,nodes,directory,exit_status,parameter_hash,"
      "assigned,"
      "started,finished";
};
template <RowOf<AttemptRow> R>
auto Members(R& r) {
  return std::tie(r.id, r.run_id, r.number, r.token, r.allocation_id, r.state, r.cause, r.message, r.nodes,
                  r.directory, r.exit_status, r.parameter_hash, r.assigned, r.started, r.finished);
}

template <>
struct Table<ProvenanceRow> {
  static constexpr char kName[] = "provenance", kKey[] = "attempt_id";
  static constexpr char kColumns[] = "attempt_id,json";
};
template <RowOf<ProvenanceRow> R>
auto Members(R& r) {
  return std::tie(r.attempt_id, r.json);
}

template <>
struct Table<StreamRow> {
  static constexpr char kName[] = "stream", kKey[] = "attempt_id,rank";
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
  static constexpr char kName[] = "epoch", kKey[] = "attempt_id,rank,epoch";
  static constexpr char kColumns[] = "attempt_id,rank,epoch,time,metrics";
};
template <RowOf<EpochRow> R>
auto Members(R& r) {
  return std::tie(r.attempt_id, r.rank, r.epoch, r.time, r.metrics);
}

// Its metrics are in a separate table, run_metrics.
template <>
struct Table<RunSummary> {
  static constexpr char kName[] = "run_summary", kKey[] = "run_id";
  static constexpr char kColumns[] =
      "run_id,attempt_id,throughput,epoch_seconds,comm_share,peak_memory,accuracy,train_loss,time_to_"
      "accuracy,"
      "fingerprint,throughput_mean,step_seconds,device_memory,straggler_skew,cpu_utilisation,steps";
};
template <RowOf<RunSummary> R>
auto Members(R& r) {
  return std::tie(r.run_id, r.attempt_id, r.throughput, r.epoch_seconds, r.comm_share, r.peak_memory,
                  r.accuracy, r.train_loss, r.time_to_accuracy, r.fingerprint, r.throughput_mean,
                  r.step_seconds, r.device_memory, r.straggler_skew, r.cpu_utilisation, r.steps);
}

// "INSERT INTO run (..) VALUES (..) ON CONFLICT (id) DO UPDATE SET ..". Not INSERT OR REPLACE, which would
// delete the old row first, with its other columns and the rows that refer to it.
template <class Row>
const char* UpsertSql() {
  static const std::string* const sql = [] {
    const std::vector<std::string> columns = absl::StrSplit(Table<Row>::kColumns, ',');
    const std::vector<std::string> key = absl::StrSplit(Table<Row>::kKey, ',');
    std::vector<std::string> updates;
    for (size_t i = key.size(); i < columns.size(); ++i) {
      updates.push_back(absl::StrCat(columns[i], "=excluded.", columns[i]));
    }
    return new std::string(
        absl::StrCat("INSERT INTO ", Table<Row>::kName, " (", Table<Row>::kColumns, ") VALUES (",
                     absl::StrJoin(std::vector<const char*>(columns.size(), "?"), ","), ") ON CONFLICT (",
                     Table<Row>::kKey, ") DO UPDATE SET ", absl::StrJoin(updates, ",")));
  }();
  return sql->c_str();
}

template <class Row>
absl::Status Put(Statement& upsert, const Row& row) {
  return std::apply([&](const auto&... member) { return upsert.Run(member...); }, Members(row));
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

}  // namespace scalelab::db
