#include "client/export/study_tables.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/export/point_reader.h"
#include "client/output/text.h"
#include "google/protobuf/descriptor.h"
#include "proto/status.h"

namespace scalelab::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Struct;
using scalelab::v1::Attempt;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetRunRequest;
using scalelab::v1::ListRunsRequest;
using scalelab::v1::ReadPointsResponse;
using scalelab::v1::Run;
using scalelab::v1::RunService;

constexpr char kRemoved[] =
    "REMOVED_BY_RETENTION";  // the reason of an error, see docs/operators/retention.md

DataCell TextCell(const std::string& text) { return text.empty() ? DataCell() : DataCell(text); }

DataCell NumberCell(double number) {
  const bool whole = std::trunc(number) == number && std::abs(number) < 1e15;
  return whole ? DataCell(static_cast<int64_t>(number)) : DataCell(number);
}

DataCell AxisCell(const Struct& key, const std::string& axis) {
  const auto found = key.fields().find(axis);
  if (found == key.fields().end() || found->second.kind_case() == google::protobuf::Value::kNullValue)
    return {};
  if (found->second.kind_case() == google::protobuf::Value::kNumberValue)
    return NumberCell(found->second.number_value());
  return ValueText(found->second);
}

// Returns the axes in the order that other commands use. Leaves out the axis `ranks`, which has
// its own column.
std::vector<std::string> AxesWithoutRanks(const std::vector<const Struct*>& keys) {
  std::vector<std::string> axes = AxesOf(keys);
  std::erase(axes, "ranks");
  return axes;
}

// Keeps the first of the columns with the same name: the batch has a column of its own, and may be an axis.
DataTable WithoutDuplicates(DataTable table) {
  std::set<std::string> names;
  std::vector<size_t> kept;
  for (size_t i = 0; i < table.columns.size(); ++i) {
    if (names.insert(table.columns[i]).second) kept.push_back(i);
  }
  return kept.size() == table.columns.size() ? table : SelectColumns(std::move(table), std::move(kept));
}

// Adds a column for each field of a message that is not repeated and, unless `cells` is null, a cell for
// each. An absent field becomes a cell without a value.
void AddFields(const Message& message, const std::string& prefix, std::vector<std::string>* columns,
               std::vector<DataCell>* cells);

void AddEstimate(const Estimate* estimate, const std::string& name, std::vector<std::string>* columns,
                 std::vector<DataCell>* cells) {
  for (const char* end : {"", "_low", "_high"}) columns->push_back(name + end);
  if (cells == nullptr) return;
  cells->push_back(estimate != nullptr ? DataCell(estimate->mean()) : DataCell());
  cells->push_back(estimate != nullptr && estimate->has_low() ? DataCell(estimate->low()) : DataCell());
  cells->push_back(estimate != nullptr && estimate->has_high() ? DataCell(estimate->high()) : DataCell());
}

DataCell ScalarCell(const Message& message, const FieldDescriptor* field) {
  const auto* values = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return int64_t{values->GetInt32(message, field)};
    case FieldDescriptor::CPPTYPE_INT64:
      return values->GetInt64(message, field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return values->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return values->GetBool(message, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return values->GetEnum(message, field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return TextCell(values->GetString(message, field));
    default:
      return {};  // the API has no fields of other types
  }
}

void AddFields(const Message& message, const std::string& prefix, std::vector<std::string>* columns,
               std::vector<DataCell>* cells) {
  const auto* descriptor = message.GetDescriptor();
  const auto* values = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) continue;
    const std::string name = prefix + field->name();
    const bool absent = field->has_presence() && !values->HasField(message, field);
    if (field->message_type() == Estimate::descriptor()) {
      AddEstimate(absent ? nullptr : static_cast<const Estimate*>(&values->GetMessage(message, field)), name,
                  columns, cells);
    } else if (field->message_type() != nullptr) {
      std::vector<DataCell> of_field;
      const size_t before = columns->size();
      AddFields(values->GetMessage(message, field), name + "_", columns, &of_field);
      if (absent) of_field.assign(columns->size() - before, DataCell());
      if (cells != nullptr) cells->insert(cells->end(), of_field.begin(), of_field.end());
    } else {
      columns->push_back(name);
      if (cells != nullptr) cells->push_back(absent ? DataCell() : ScalarCell(message, field));
    }
  }
}

std::vector<DataCell> RunCells(const Run& run, const std::vector<std::string>& axes,
                               const std::set<std::string>& results) {
  std::vector<DataCell> row = {run.name()};
  for (const std::string& axis : axes) row.push_back(AxisCell(run.key(), axis));
  const auto& spec = run.spec();
  row.insert(
      row.end(),
      {int64_t{spec.ranks()}, int64_t{run.repeat()}, int64_t{run.position()}, Run::State_Name(run.state()),
       run.cause() == Attempt::CAUSE_UNSPECIFIED ? DataCell() : DataCell(Attempt::Cause_Name(run.cause())),
       TextCell(run.message()), TextCell(UtcTime(run.start_time())), TextCell(UtcTime(run.finish_time())),
       int64_t{run.attempts_size()}, int64_t{spec.global_batch()}, int64_t{spec.batch_per_rank()},
       int64_t{spec.seed()}, TextCell(run.fingerprint())});
  for (const std::string& result : results) {
    const auto found = run.summary().find(result);
    row.push_back(found == run.summary().end() ? DataCell() : DataCell(found->second));
  }
  return row;
}

// Passes the points of a part to the sink. `row` must have the cells that all points of the run have in
// common; this function sets the others.
absl::Status PassPoints(const ReadPointsResponse& part, const DataSink& sink, std::vector<DataCell>& row) {
  row[1] = int64_t{part.rank()};
  row[4] = part.key();
  const int size = std::min({part.step_size(), part.time_size(), part.value_size()});
  for (int i = 0; i < size; ++i) {
    row[2] = int64_t{part.step(i)};
    row[3] = part.time(i);
    row[5] = part.value(i);
    if (absl::Status status = sink(row); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Reads the named runs concurrently, and appends them to `runs` in the order of `names`.
absl::Status ReadRuns(Connection& server, const std::vector<std::string>& names, std::vector<Run>& runs) {
  constexpr size_t kCalls = 8;  // in flight
  const size_t before = runs.size();
  runs.resize(before + names.size());
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  absl::Status failed;
  const auto read = [&] {
    for (size_t i = next++; i < names.size(); i = next++) {
      GetRunRequest request;
      request.set_name(names[i]);
      auto run = server.Call(server.runs(), &RunService::Stub::GetRun, request);
      if (run.ok()) {
        runs[before + i] = std::move(*run->mutable_run());
        continue;
      }
      next = names.size();
      const absl::MutexLock lock(&mutex);
      failed.Update(run.status());
    }
  };
  std::vector<std::thread> threads;
  try {
    for (size_t i = 1; i < std::min(kCalls, names.size()); ++i) threads.emplace_back(read);
  } catch (const std::system_error&) {
    // The process has reached its limit of threads. Fewer threads, or this one alone, read all runs.
  }
  read();
  for (std::thread& thread : threads) thread.join();
  return failed;
}

}  // namespace

DataTable RunData(const std::vector<Run>& runs) {
  std::vector<const Struct*> keys;
  std::set<std::string> results;
  for (const Run& run : runs) {
    keys.push_back(&run.key());
    for (const auto& [name, value] : run.summary()) results.insert(name);
  }
  const std::vector<std::string> axes = AxesWithoutRanks(keys);
  DataTable table{"runs", {"run"}, nullptr};
  table.columns.insert(table.columns.end(), axes.begin(), axes.end());
  for (const char* name :
       {"ranks", "repeat", "position", "state", "cause", "message", "start_time", "finish_time", "attempts",
        "global_batch", "batch_per_rank", "seed", "fingerprint"})
    table.columns.emplace_back(name);
  table.columns.insert(table.columns.end(), results.begin(), results.end());
  table.rows = [&runs, axes, results](const DataSink& sink) {
    absl::Status status;
    for (const Run& run : runs) {
      if (status.ok()) status = sink(RunCells(run, axes, results));
    }
    return status;
  };
  return WithoutDuplicates(std::move(table));
}

DataTable AttemptData(const std::vector<Run>& runs) {
  const auto rows = [&runs](const DataSink& sink) {
    absl::Status status;
    for (const Run& run : runs) {
      for (const Attempt& attempt : run.attempts()) {
        if (!status.ok()) return status;
        status = sink({run.name(), int64_t{attempt.number()}, Attempt::State_Name(attempt.state()),
                       attempt.cause() == Attempt::CAUSE_UNSPECIFIED
                           ? DataCell()
                           : DataCell(Attempt::Cause_Name(attempt.cause())),
                       TextCell(attempt.message()), TextCell(absl::StrJoin(attempt.nodes(), ",")),
                       TextCell(UtcTime(attempt.assign_time())), TextCell(UtcTime(attempt.finish_time())),
                       attempt.has_throughput() ? DataCell(attempt.throughput()) : DataCell(),
                       attempt.has_epoch_seconds() ? DataCell(attempt.epoch_seconds()) : DataCell()});
      }
    }
    return status;
  };
  return {"attempts",
          {"run", "attempt", "state", "cause", "message", "nodes", "assign_time", "finish_time", "throughput",
           "epoch_seconds"},
          rows};
}

const std::vector<std::string>& PointColumns() {
  static const auto* const columns =
      new std::vector<std::string>{"run", "rank", "step", "time", "key", "value"};
  return *columns;
}

DataTable PointData(Connection& server, const std::vector<Run>& runs, absl::Duration timeout,
                    const std::function<void(absl::string_view)>& say) {
  const auto rows = [&server, &runs, timeout, say](const DataSink& sink) {
    std::vector<std::string> begun;
    for (const Run& run : runs) {
      if (!run.attempts().empty()) begun.push_back(run.name());
    }
    PointReader reader(server, begun, timeout);
    std::vector<DataCell> row(6);
    for (const std::string& run : begun) {
      row[0] = run;
      const absl::Status status =
          reader.Next([&](const ReadPointsResponse& part) { return PassPoints(part, sink, row); });
      if (ReasonOf(status) == kRemoved) {
        say(status.message());
      } else if (!status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  };
  return {"metrics", PointColumns(), rows};
}

DataTable CurveData(const scalelab::v1::GetCurveResponse& curve) {
  std::vector<const Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  const std::vector<std::string> axes = AxesWithoutRanks(keys);
  DataTable table{"curve", axes, nullptr};
  AddFields(scalelab::v1::CurvePoint::default_instance(), "", &table.columns, nullptr);
  for (const char* name : {"notes", "baseline_ranks", "fingerprint", "listed_order", "series_notes"})
    table.columns.emplace_back(name);
  table.rows = [&curve, axes](const DataSink& sink) {
    absl::Status status;
    for (const CurveSeries& series : curve.series()) {
      for (const auto& point : series.points()) {
        std::vector<DataCell> row;
        for (const std::string& axis : axes) row.push_back(AxisCell(series.key(), axis));
        std::vector<std::string> columns;
        AddFields(point, "", &columns, &row);
        row.insert(row.end(), {TextCell(absl::StrJoin(point.notes(), "; ")), int64_t{series.baseline_ranks()},
                               TextCell(series.fingerprint()), int64_t{series.listed_order()},
                               TextCell(absl::StrJoin(series.notes(), "; "))});
        if (status.ok()) status = sink(row);
      }
    }
    return status;
  };
  return WithoutDuplicates(std::move(table));
}

absl::StatusOr<std::vector<Run>> ReadAllRuns(Connection& server, const std::string& study) {
  std::vector<Run> runs;
  ListRunsRequest request;
  request.set_parent(study);
  request.set_page_size(10'000);
  request.set_view(ListRunsRequest::BRIEF);
  do {
    const auto page = server.Call(server.runs(), &RunService::Stub::ListRuns, request);
    if (!page.ok()) return page.status();
    std::vector<std::string> names;
    for (const Run& listed : page->runs()) names.push_back(listed.name());
    if (const absl::Status read = ReadRuns(server, names, runs); !read.ok()) return read;
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return runs;
}

}  // namespace scalelab::client
