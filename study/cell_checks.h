// Checks of whole cells. Internal to this library.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "study/grid.h"
#include "study/rules.h"

namespace scalelab {

// Returns an upper limit of the number of steps of a run, or 0 if the specification does not imply one.
int64_t KnownSteps(const scalelab::v1::RunSpec& run);

// Checks cells. Reports each problem once, however many cells have it.
class CellChecker {
 public:
  // `raw` is the specification as written, `spec` the one with defaults. `runs_here` may be empty.
  CellChecker(const scalelab::v1::StudySpec& raw, const scalelab::v1::StudySpec& spec, const Grid& grid,
              const CellCheck& runs_here, Violations* violations)
      : raw_(raw), spec_(spec), grid_(grid), runs_here_(runs_here), violations_(violations) {}

  // Returns false if the cell cannot run and the study excludes such cells (on_unusable: exclude).
  bool Check(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  // Returns the reasons why cells were excluded: the first hundred distinct sentences.
  std::vector<std::string> TakeUnusable() { return std::move(unusable_); }

 private:
  void Add(std::string field, std::string description);
  std::vector<FieldViolation> WhyUnusable(const scalelab::v1::RunSpec& run,
                                          const std::vector<int>& index) const;
  std::string HowToSplit(absl::string_view key) const;
  bool IgnoresBatch(const scalelab::v1::RunSpec& run, const std::vector<int>& index) const;
  void CheckBatch(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckNeeds(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckPipelineParts(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckTensorRanks(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
  void CheckTraining(const scalelab::v1::RunSpec& run, const std::vector<int>& index);
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
