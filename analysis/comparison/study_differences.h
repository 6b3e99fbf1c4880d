// The parameters in which cells of several studies differ, for comparisons of studies. Pure functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "analysis/comparison/cell_groups.h"
#include "nlohmann/json.hpp"

namespace scalelab::analysis {

// A cell of one study with its results.
struct StudyCell {
  size_t study = 0;
  int ranks = 0;
  nlohmann::json values;  // of all parameters except the seed, flat: also "params.dropout"
  std::vector<double> throughput;
  std::set<std::string> fingerprints;
  nlohmann::json key;  // values of the axes, without ranks
};

// Reads the cells with results, without communication baselines.
class StudyReader {
 public:
  void Read(const StudyRows& study, size_t number);

  std::vector<StudyCell> cells;
  std::set<std::string> axes;  // axes of any study, without ranks
};

// Collects the values of the parameters in which cells of different studies differ.
class StudyDifferences {
 public:
  // Adds cells that are compared or combined with each other.
  void Add(const std::vector<const StudyCell*>& cells);
  // Returns a note for each parameter in which cells of one call of Add differ.
  std::vector<std::string> Notes(const std::vector<StudyRows>& studies) const;

 private:
  std::map<std::string, std::map<size_t, std::set<std::string>>> values_;  // by parameter and study
};

}  // namespace scalelab::analysis
