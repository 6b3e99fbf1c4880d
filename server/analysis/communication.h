// What communication costs a step, from runs that differ in nothing but how they synchronise. Pure.
//
// Within a block (repeat) the step of a cell, of native/none and of native/serial share what the block has in
// common, so everything is made of differences within blocks:
//   exposed = cell - none,  total = serial - none,  hidden = 1 - exposed / total.
// Intervals: exposed and total are means and have Student's t, like every mean of a curve. hidden is a ratio
// of means over the blocks that have all three; its interval is BlockBootstrap's, which carries the noise of
// all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"
#include "server/analysis/bootstrap.h"

namespace scalelab::server {

// What a cell is to the measurement of communication.
struct Comparison {
  bool baseline = false;                         // added for others, no point of a curve
  bool measured = false;                         // compared with the two below
  std::optional<size_t> unsynchronised, serial;  // index of the cell, where there is one
};

// By cell. Reads their specifications, which is what this costs.
std::vector<Comparison> FindComparisons(const std::vector<db::CellRow>& cells);

// Seconds of a step of one cell's runs, or why there are none.
struct Steps {
  Sample seconds;
  std::string missing;  // "every run of native/none failed"
};

// From the rows of one cell that ran on this fingerprint; `name` is what a reader knows the cell by.
Steps StepsOf(int global_batch, absl::string_view name, const std::vector<const db::CurveRow*>& rows,
              const std::string& fingerprint, const std::vector<int>& block_of_repeat);

scalelab::v1::CommunicationCost CompareSteps(const Steps& cell, const Steps& unsynchronised,
                                             const Steps& serial, const BlockBootstrap& bootstrap);

}  // namespace scalelab::server
