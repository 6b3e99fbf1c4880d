#include "tests/powercut/workload.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace scalelab::powercut {
namespace {

using db::WriteBatch;

template <class Row>
void PutAll(const std::vector<Row>& rows, std::map<int64_t, Row>& to) {
  for (const Row& row : rows) to[row.id] = row;
}

template <class T>
void Extend(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Functions that print rows, for the dump of the model and the dump of the store.
std::string StudyLine(const db::StudyRow& s) {
  return absl::StrCat("study ", s.id, " ", s.name, " ", static_cast<int>(s.state), "\n");
}
std::string ValueLine(const db::CellValueRow& v) {
  return absl::StrCat(" value ", v.number, " ", v.name, " ", v.value, "\n");
}
std::string CellLine(const db::CellRow& c) {
  return absl::StrCat(" cell ", c.id, " ", c.key, " ", c.spec, "\n");
}
std::string RunLine(const db::RunRow& r) {
  return absl::StrCat(" run ", r.id, " ", static_cast<int>(r.state), " ", r.attempts, " ", r.message, "\n");
}
std::string AttemptLine(const db::AttemptRow& a) {
  return absl::StrCat("  attempt ", a.id, " ", static_cast<int>(a.state), " ", a.token, "\n");
}
std::string StreamLine(int rank, int64_t position) {
  return absl::StrCat("   stream ", rank, " ", position, "\n");
}

template <class T>
void Bytes(const std::vector<T>& values, std::string& out) {
  absl::StrAppend(&out, values.size(), ":");
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class P>
void PointsLine(const std::string& key, int rank, const P& points, std::string& out) {
  absl::StrAppend(&out, "   points ", key, " ", rank, " ");
  Bytes(points.line, out);
  Bytes(points.step, out);
  Bytes(points.time, out);
  Bytes(points.value, out);
  out += "\n";
}

std::string CountsLine(const std::vector<int64_t>& counts) {
  std::string line = " counts";
  for (const int64_t count : counts) absl::StrAppend(&line, " ", count);
  return line + "\n";
}

}  // namespace

void Model::Apply(const WriteBatch& batch) {
  PutAll(batch.studies, studies_);
  for (const db::CellValueRow& value : batch.cell_values) values_[{value.study_id, value.number}] = value;
  PutAll(batch.cells, cells_);
  PutAll(batch.runs, runs_);
  PutAll(batch.allocations, allocations_);
  PutAll(batch.attempts, attempts_);
  for (const db::StreamAppend& append : batch.appends) {
    positions_[{append.attempt_id, append.rank}] = append.end_position;
    for (const db::PointColumn& column : append.columns) {
      Points& points = points_[append.attempt_id][{column.key, append.rank}];
      Extend(points.line, column.line);
      Extend(points.step, column.step);
      Extend(points.time, column.time);
      Extend(points.value, column.value);
    }
  }
  for (const int64_t study : batch.deleted_studies) {
    std::erase_if(attempts_, [&](const auto& a) {
      if (runs_.at(a.second.run_id).study_id != study) return false;
      points_.erase(a.first);
      std::erase_if(positions_, [&](const auto& p) { return p.first.first == a.first; });
      return true;
    });
    std::erase_if(runs_, [&](const auto& r) { return r.second.study_id == study; });
    std::erase_if(values_, [&](const auto& v) { return v.first.first == study; });
    std::erase_if(cells_, [&](const auto& c) { return c.second.study_id == study; });
    std::erase_if(allocations_, [&](const auto& a) { return a.second.study_id == study; });
    studies_.erase(study);
  }
}

std::string Model::Dump() const {
  std::string out;
  for (auto study = studies_.rbegin(); study != studies_.rend(); ++study) {
    out += StudyLine(study->second);
    std::vector<int64_t> counts(static_cast<size_t>(db::RunState::kSkipped) + 1);
    for (const auto& [id, run] : runs_) {
      if (run.study_id == study->first) ++counts[static_cast<size_t>(run.state)];
    }
    out += CountsLine(counts);
    for (const auto& [place, value] : values_) {
      if (place.first == study->first) out += ValueLine(value);
    }
    for (const auto& [id, cell] : cells_) {
      if (cell.study_id == study->first) out += CellLine(cell);
    }
    for (const auto& [id, run] : runs_) {
      if (run.study_id != study->first) continue;
      out += RunLine(run);
      for (const auto& [attempt_id, attempt] : attempts_) {
        if (attempt.run_id != id) continue;
        out += AttemptLine(attempt);
        for (const auto& [place, position] : positions_) {
          if (place.first == attempt_id) out += StreamLine(place.second, position);
        }
        if (!points_.contains(attempt_id)) continue;
        for (const auto& [series, points] : points_.at(attempt_id))
          PointsLine(series.first, series.second, points, out);
      }
    }
  }
  return out;
}

absl::StatusOr<std::string> DumpStore(db::Store& store) {
  std::string out;
  const auto studies = store.ListStudies(0, 1'000'000, {});
  if (!studies.ok()) return studies.status();
  for (const db::StudyRow& study : *studies) {
    out += StudyLine(study);
    const auto counts = store.CountRuns({study.id});
    if (!counts.ok()) return counts.status();
    out += CountsLine(counts->at(0));
    const auto cells = store.ListCells(study.id);
    if (!cells.ok()) return cells.status();
    const auto values = store.ListCellValues(study.id);
    if (!values.ok()) return values.status();
    for (const db::CellValueRow& value : *values) out += ValueLine(value);
    for (const db::CellRow& cell : *cells) out += CellLine(cell);
    db::RunFilter filter;
    filter.study_id = study.id;
    filter.limit = 1'000'000;
    const auto runs = store.ListRuns(filter);
    if (!runs.ok()) return runs.status();
    for (const db::RunRow& run : *runs) {
      out += RunLine(run);
      const auto attempts = store.ListAttempts(run.id);
      if (!attempts.ok()) return attempts.status();
      for (const db::AttemptRow& attempt : *attempts) {
        out += AttemptLine(attempt);
        const auto streams = store.ListStreams(attempt.id);
        if (!streams.ok()) return streams.status();
        for (const db::StreamRow& stream : *streams) out += StreamLine(stream.rank, stream.position);
        const absl::Status status = store.ReadPoints({attempt.id, "", {}}, [&](db::Series series) {
          PointsLine(series.key, series.rank, series, out);
        });
        if (!status.ok()) return status;
      }
    }
  }
  return out;
}

WriteBatch Workload::NewStudy(int runs) {
  WriteBatch batch;
  db::StudyRow& study = batch.studies.emplace_back();
  study.id = ++last_study_;
  study.name = absl::StrCat("study-", study.id);
  study.owner = "ada";
  study.request_id = absl::StrCat("request-", study.id);
  study.spec = std::string(static_cast<size_t>(Below(6000)), 's');
  db::AllocationRow& allocation = batch.allocations.emplace_back();
  allocation.id = study.id;
  allocation.study_id = study.id;
  allocation.token = absl::StrCat("allocation-", study.id);
  const int values = 1 + static_cast<int>(Below(4));
  for (int number = 0; number < values; ++number) {
    const std::string text(static_cast<size_t>(Below(6000)), 'v');
    batch.cell_values.push_back({study.id, number, number == 0 ? "" : "model", text});
  }
  for (int i = 0; i < runs; ++i) {
    const int64_t id = ++last_run_;
    db::CellRow& cell = batch.cells.emplace_back();
    cell.id = id;
    cell.study_id = study.id;
    cell.position = i;
    cell.spec = absl::StrCat("[", Below(values), "]");
    db::RunRow& run = batch.runs.emplace_back();
    run.id = id;
    run.study_id = study.id;
    run.cell_id = id;
    run.position = i;
    if (i >= 3) continue;
    db::AttemptRow& attempt = batch.attempts.emplace_back();
    attempt.id = id;
    attempt.run_id = id;
    attempt.number = 1;
    attempt.token = absl::StrCat("attempt-", id);
  }
  return batch;
}

db::StreamAppend Workload::Append(const Model& model, int64_t attempt) {
  db::StreamAppend append;
  append.attempt_id = attempt;
  append.rank = static_cast<int>(Below(2));
  const auto position = model.positions_.find({attempt, append.rank});
  append.begin_position = position == model.positions_.end() ? 0 : position->second;
  append.begin_line = append.begin_position / 10;
  const int64_t lines = Below(8) == 0 ? 1 + Below(700) : 1 + Below(4);
  append.end_line = append.begin_line + lines;
  append.end_position = append.end_line * 10;
  for (const char* key : {"loss", "step/total_s"}) {
    db::PointColumn& column = append.columns.emplace_back();
    column.key = key;
    for (int64_t line = append.begin_line; line < append.end_line; ++line) {
      column.line.push_back(line);
      column.step.push_back(line);
      column.time.push_back(1795000000.25 + 0.031 * static_cast<double>(line));
      column.value.push_back(static_cast<double>(random_()) / 1e19);
    }
  }
  return append;
}

WriteBatch Workload::Next(const Model& model) {
  const auto any = [&](const auto& rows) {
    auto it = rows.begin();
    std::advance(it, Below(static_cast<int64_t>(rows.size())));
    return it;
  };
  WriteBatch batch;
  const int64_t choice = Below(20);
  if (model.studies_.size() < 2 || (choice < 2 && model.studies_.size() < 5)) {
    return NewStudy(Below(12) == 0 ? 400 : 1 + static_cast<int>(Below(3)));
  }
  if (choice < 4 && model.studies_.size() > 2) {
    batch.deleted_studies = {any(model.studies_)->first};
    return batch;
  }
  if (choice < 7) {
    db::RunRow run = any(model.runs_)->second;
    run.state = static_cast<db::RunState>(1 + Below(5));
    run.message = std::string(static_cast<size_t>(Below(200)), 'm');
    batch.runs = {run};
  }
  if (choice < 9) {
    db::AttemptRow attempt = any(model.attempts_)->second;
    attempt.state = db::AttemptState::kSucceeded;
    batch.attempts = {attempt};
  }
  if (choice == 19) {
    // Append many small parts, so that Maintain has chunks to merge.
    const int64_t attempt = any(model.attempts_)->first;
    Model next = model;
    for (int i = 0; i < 20; ++i) {
      WriteBatch part;
      part.appends = {Append(next, attempt)};
      next.Apply(part);
      batch.appends.push_back(part.appends[0]);
    }
    return batch;
  }
  batch.appends = {Append(model, any(model.attempts_)->first)};
  return batch;
}

}  // namespace scalelab::powercut
