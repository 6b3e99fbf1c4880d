// Problems that only a whole cell can have. Internal to this room.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "study/grid.h"
#include "study/rules.h"

namespace scalelab {

// Steps that the run will not exceed as far as the specification tells; 0 when it does not.
int64_t KnownSteps(const scalelab::v1::RunSpec& run);

// Each problem is told once, whatever the number of cells that have it.
class CellChecker {
 public:
  // `raw` as it was written, `spec` with defaults; `runs_here` may be empty.
  CellChecker(const scalelab::v1::StudySpec& raw, const scalelab::v1::StudySpec& spec, const Grid& grid,
              const CellCheck& runs_here, Violations* violations)
      : raw_(raw), spec_(spec), grid_(grid), runs_here_(runs_here), violations_(violations) {}

  // False: the cell cannot run, and the study wants such cells left out.
  bool Check(const Cell& cell, const std::vector<int>& index);
  // Why cells were left out, the first hundred different sentences.
  std::vector<std::string> TakeUnusable() { return std::move(unusable_); }

 private:
  void Add(std::string field, std::string description);
  std::vector<FieldViolation> WhyUnusable(const Cell& cell, const std::vector<int>& index) const;
  void CheckBatch(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckNeeds(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckImages(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckCommunication(const scalelab::v1::RunSpec& run, const std::vector<int>& index);

  const scalelab::v1::StudySpec& raw_;
  const scalelab::v1::StudySpec& spec_;
  const Grid& grid_;
  const CellCheck& runs_here_;
  Violations* violations_;
  std::unordered_set<std::string> seen_;
  std::vector<std::string> unusable_;
};

}  // namespace scalelab
