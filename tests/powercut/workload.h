// A seeded workload for a store, and a plain model of what the store should contain.
#pragma once

#include <map>
#include <random>
#include <string>

#include "db/store.h"

namespace scalelab::powercut {

// Applies batches to plain maps and prints their contents. It shares no code with the store.
class Model {
 public:
  void Apply(const db::WriteBatch& batch);
  // Returns all contents as text, in the same format as DumpStore.
  std::string Dump() const;

 private:
  friend class Workload;
  struct Points {
    std::vector<int64_t> line, step;
    std::vector<double> time, value;
  };
  std::map<int64_t, db::StudyRow> studies_;
  std::map<std::pair<int64_t, int>, db::CellValueRow> values_;  // by study and number
  std::map<int64_t, db::CellRow> cells_;
  std::map<int64_t, db::RunRow> runs_;
  std::map<int64_t, db::AttemptRow> attempts_;
  std::map<int64_t, db::AllocationRow> allocations_;
  std::map<std::pair<int64_t, int>, int64_t> positions_;                     // by attempt and rank
  std::map<int64_t, std::map<std::pair<std::string, int>, Points>> points_;  // by attempt; by key and rank
};

// Reads everything through the interface of the store.
absl::StatusOr<std::string> DumpStore(db::Store& store);

// Makes the next batch at random: studies, changes of runs, points, ends of attempts, deletions.
class Workload {
 public:
  explicit Workload(uint64_t seed) : random_(seed) {}
  db::WriteBatch Next(const Model& model);

 private:
  db::WriteBatch NewStudy(int runs);
  db::StreamAppend Append(const Model& model, int64_t attempt);
  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

  std::mt19937_64 random_;
  int64_t last_study_ = 0, last_run_ = 0;
};

}  // namespace scalelab::powercut
