// Which cells can be predicted from the results of a study, and their predictions. Pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "db/predictions/predictions.h"
#include "db/records.h"
#include "scalelab/v1/study.pb.h"
#include "server/prediction/bucket_replay.h"
#include "study/cell_list.h"

namespace scalelab::server {

// A study with its rows.
struct StudyData {
  db::StudyRow study;
  scalelab::v1::StudySpec spec;  // as submitted
  std::vector<db::CellRow> cells;
  CellList parameters;  // of the cells
  std::vector<db::CurveRow> rows;
  std::vector<db::RunTimes> times;           // of the ranks of its runs
  std::map<int64_t, RecordedStep> recorded;  // buckets of its runs, by attempt
};

// Why a prediction is not made, with the limits that docs/users/predictions.md explains.
struct SizesOfSeries {
  bool strong = true;
  std::vector<int> measured;  // world sizes with results, sorted
  int ranks_per_node = 0;     // 0: all ranks are on one node
};
// Returns why `ranks` cannot be predicted from these world sizes, in one sentence; empty if they can.
std::string WhyNotPredict(const SizesOfSeries& sizes, int ranks);

// A cell with its prediction, or with the reason why there is none.
struct CellPrediction {
  db::PredictionRow row;  // without ids of its own and times; cell_id 0: no study has the cell
  std::string refused;    // empty: it is predicted
};
// Predicts cells of `target` from the results of `source`, which may be the same study. `ranks`: the world sizes to predict;
// empty means all in `target` that are larger than those with results. `without_cells`: predict `ranks` also if `target` has
// no such cell. `network`: the cost of messages on the network that these ranks use, if it was measured; the rows name it.
std::vector<CellPrediction> PredictCells(const StudyData& source, const StudyData& target,
                                         const std::vector<int>& ranks, bool without_cells,
                                         const std::optional<RingCost>& network = {});

// Returns whether the name of a "model" is that of a network in place of a model, see PredictCells.
bool IsNetwork(const std::string& model);
// Returns the network that was given for the prediction, as one sentence; empty if there was none.
std::string NetworkText(const db::PredictionRow& row);

}  // namespace scalelab::server
