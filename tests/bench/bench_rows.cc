#include "tests/bench/bench_rows.h"

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace scalelab::bench {

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "scalelab-bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

double Seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double MedianMilliseconds(int times, const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) all.push_back(1e3 * Seconds(work));
  return Median(std::move(all));
}

db::StudyRow Study(int64_t id) {
  db::StudyRow row;
  row.id = id;
  row.name = "bench";
  row.owner = "bench";
  row.spec =
      R"({"study":"bench","fixed":{"model":"resnet20"},"matrix":[{"key":"ranks","values":[1,2,4,8]}]})";
  row.created = 1'795'000'000'000'000;
  return row;
}

db::CellValueRow Common(int64_t study) {
  return {study, 0, "", R"({"model":"resnet20","note":")" + std::string(600, 'x') + R"("})"};
}

std::vector<db::CellValueRow> CellValues(int64_t study) {
  std::vector<db::CellValueRow> rows = {Common(study)};
  const auto add = [&](const char* name, const std::string& value) {
    rows.push_back({study, static_cast<int>(rows.size()), name, value});
  };
  for (int power = 0; power < 10; ++power) add("ranks", std::to_string(1 << power));
  add("engine", R"("native/ddp")");
  for (int i = 0; i < 100; ++i) add("engine", R"("engine/)" + std::to_string(i) + "\"");
  return rows;
}

db::CellRow Cell(int64_t id, int64_t study, int ranks, const std::string& engine) {
  db::CellRow row;
  row.id = id;
  row.study_id = study;
  row.position = static_cast<int>(id % 1'000'000);
  row.engine = engine;
  row.model = "resnet20";
  row.precision = "fp32";
  row.backend = "auto";
  row.ranks = ranks;
  row.global_batch = 256;
  const int ranks_number = std::bit_width(static_cast<unsigned>(ranks));
  const int engine_number = engine == "native/ddp" ? 11 : 12 + std::atoi(engine.substr(7).c_str());
  row.key = row.spec = "[" + std::to_string(engine_number) + "," + std::to_string(ranks_number) + "]";
  return row;
}

db::RunRow Run(int64_t id, int64_t study, int64_t cell, int repeat) {
  db::RunRow row;
  row.id = id;
  row.study_id = study;
  row.cell_id = cell;
  row.repeat = repeat;
  row.position = static_cast<int>(id % 1'000'000);
  return row;
}

db::AttemptRow Attempt(int64_t id, int64_t run) {
  db::AttemptRow row;
  row.id = id;
  row.run_id = run;
  row.number = 1;
  char token[40];  // random like a UUID, so that the index behaves as in the service
  std::snprintf(token, sizeof(token), "%016llx-attempt",
                static_cast<unsigned long long>(id) * 0x9e3779b97f4a7c15ULL);
  row.token = token;
  row.directory = "/scratch/runs/1/1/" + row.token;
  row.nodes = "node-17";
  return row;
}

db::RunSummary Summary(int64_t run, int64_t attempt) {
  db::RunSummary row;
  row.run_id = run;
  row.attempt_id = attempt;
  row.throughput = 1000.0 + static_cast<double>(run * 7919 % 100);
  row.throughput_mean = row.throughput;
  row.epoch_seconds = 50;
  row.step_seconds = 0.1;
  row.comm_share = 0.1;
  row.peak_memory = 1e9;
  row.accuracy = 0.9;
  row.train_loss = 0.3;
  row.steps = 1000;
  row.fingerprint = "5f2c0b7e9a4d1c83";
  for (int k = 0; k < kKeys; ++k) row.metrics["run/metric_" + std::to_string(k)] = 1.5 * k;
  return row;
}

db::StreamAppend Part(int64_t attempt, int rank, int64_t part, int64_t lines) {
  db::StreamAppend append;
  append.attempt_id = attempt;
  append.rank = rank;
  append.begin_line = part * lines;
  append.end_line = append.begin_line + lines;
  append.begin_position = append.begin_line * 200;
  append.end_position = append.end_line * 200;
  for (int k = 0; k < kKeys; ++k) {
    db::PointColumn& column = append.columns.emplace_back();
    column.key = "step/metric_" + std::to_string(k);
    for (int64_t line = append.begin_line; line < append.end_line; ++line) {
      column.line.push_back(line);
      column.step.push_back(line);
      column.time.push_back(1795000000.0 + 0.031 * static_cast<double>(line));
      column.value.push_back(std::sin(0.001 * static_cast<double>(line * (k + 1))));
    }
  }
  return append;
}

}  // namespace scalelab::bench
