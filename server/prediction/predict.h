// Decides which cells can be predicted from the results of a study, and predicts them. Pure functions.
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
  std::vector<db::RunTimes> times;           // times that the ranks of its runs reported
  std::map<int64_t, RecordedStep> recorded;  // recorded buckets of its runs, by attempt
};

// The world sizes of a series with results. docs/users/predictions.md explains which predictions they allow.
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
  std::string refused;    // why there is no prediction; empty: there is one
};
// Predicts cells of `target` from the results of `source`, which may be the same study. `ranks` are the world
// sizes to predict; if it is empty, these are all world sizes in `target` that are larger than those with
// results. If `without_cells`, predicts `ranks` also where `target` has no such cell. `network` is the cost
// of messages on the network that these ranks use, if it was measured; it is stored in `models` of the rows.
std::vector<CellPrediction> PredictCells(const StudyData& source, const StudyData& target,
                                         const std::vector<int>& ranks, bool without_cells,
                                         const std::optional<RingCost>& network = {});

// Returns whether a key of PredictionRow::models belongs to the network of PredictCells, and is not the name
// of a model.
bool IsNetwork(const std::string& model);
// Describes the network that PredictCells used for the prediction, in one sentence; "" if it used none.
std::string NetworkText(const db::PredictionRow& row);

}  // namespace scalelab::server
