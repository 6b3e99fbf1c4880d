// The cells of one or several studies, grouped so that those of a group differ in one axis only.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "db/records.h"
#include "nlohmann/json.hpp"
#include "server/analysis/sample.h"
#include "study/cell_list.h"

namespace scalelab::server {

// The input. `parameters[i]` belongs to `cells[i]`.
struct StudyRows {
  const std::vector<db::CellRow>& cells;
  const CellList& parameters;
  const std::vector<db::CurveRow>& rows;
  std::string name = {};  // of the study, for comparisons of studies
};

// Cells with one fingerprint.
struct Machine {
  std::deque<Sample> samples;  // of throughput, by cell
  std::deque<std::vector<double>> epoch_seconds;
  std::map<std::string, size_t> index;  // of the cells, by their parameters
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

// Groups the cells with results by all axes but `axis`. Of one study a block is a repeat. Of several studies each is one
// block, whose value of a cell is the geometric mean of the cell's repeats.
CellGroups GroupCells(const std::vector<StudyRows>& studies, const std::string& axis);

}  // namespace scalelab::server
