// The cells of one or several studies, grouped so that those of a group differ in one axis only.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/ratios.h"
#include "analysis/sample.h"
#include "db/records.h"
#include "nlohmann/json.hpp"
#include "study/cell_list.h"

namespace scalelab::analysis {

// The input. `parameters[i]` belongs to `cells[i]`.
struct StudyRows {
  const std::vector<db::CellRow>& cells;
  const CellList& parameters;
  const std::vector<db::CurveRow>& rows;
  std::string name = {};  // name of the study, for comparisons of studies
  // The confidence of the intervals of a study with adaptive_repeats (see SequentialConfidence). Absent
  // for other studies.
  std::optional<double> sequential = {};
};

// Cells with one fingerprint.
struct Machine {
  std::deque<Sample> samples;  // throughputs, by cell
  std::deque<std::vector<double>> epoch_seconds;
  std::map<std::string, size_t> index;  // indexes of the cells, by their parameters
};

// One value of the axis.
struct Candidate {
  std::string name;
  int ranks = 0;
  size_t cell = 0;  // of the machine
};

struct CellGroup {
  nlohmann::json key;  // values of the axes that all of its cells share, without ranks
  int ranks = 0;       // 0 if the axis is "ranks"
  std::string fingerprint;
  std::vector<Candidate> candidates;
};

struct CellGroups {
  std::map<std::string, Machine> machines;  // by fingerprint
  std::vector<CellGroup> groups;            // in the order of the cells
  int blocks = 0;
};

// Groups the cells with results by all axes but `axis`. With one study, a block is a repeat. With several
// studies, each study is one block, and its value of a cell is the geometric mean of the cell's repeats.
CellGroups GroupCells(const std::vector<StudyRows>& studies, const std::string& axis);

// Returns the confidence at which intervals of the differences between these studies are computed: the highest of all studies
// with adaptive_repeats, at least kConfidence.
double ConfidenceOf(const std::vector<StudyRows>& studies);

// The ratios of cells with the same fingerprint. If there is only one study and it has adaptive_repeats, the
// intervals are the same as in a curve of this study.
class MachineRatios {
 public:
  // `cells` is from GroupCells of these studies, and must outlive this object.
  MachineRatios(const std::vector<StudyRows>& studies, const CellGroups& cells);
  CellRatios& of(const std::string& fingerprint) { return ratios_.at(fingerprint); }
  // Returns the confidence of the intervals.
  double confidence() const { return bootstrap_.critical().confidence(); }

 private:
  const BlockBootstrap bootstrap_;
  std::map<std::string, CellRatios> ratios_;  // by fingerprint
};

}  // namespace scalelab::analysis
