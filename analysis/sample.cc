#include "analysis/sample.h"

#include <algorithm>

namespace scalelab::analysis {

std::vector<int> BlockOfRepeat(const std::vector<db::CurveRow>& rows) {
  std::vector<int> block;
  for (const db::CurveRow& row : rows) {
    if (row.state != db::RunState::kSucceeded || row.repeat < 0) continue;
    if (static_cast<size_t>(row.repeat) >= block.size()) block.resize(row.repeat + 1, -1);
    block[row.repeat] = 0;
  }
  int blocks = 0;
  for (int& number : block) {
    if (number == 0) number = blocks++;
  }
  return block;
}

int BlocksWithResults(const std::vector<int>& block_of_repeat) {
  return block_of_repeat.empty() ? 0 : block_of_repeat.back() + 1;
}

std::vector<Sample> InCommonBlocks(const std::vector<const Sample*>& samples) {
  std::vector<Sample> common(samples.size());
  std::vector<size_t> at(samples.size());
  for (const int block : samples[0]->block) {
    bool in_all = true;
    for (size_t s = 0; s < samples.size(); ++s) {
      const std::vector<int>& blocks = samples[s]->block;
      while (at[s] < blocks.size() && blocks[at[s]] < block) ++at[s];
      in_all = in_all && at[s] < blocks.size() && blocks[at[s]] == block;
    }
    if (!in_all) continue;
    for (size_t s = 0; s < samples.size(); ++s) {
      common[s].block.push_back(block);
      common[s].value.push_back(samples[s]->value[at[s]]);
      if (samples[s]->HasTimes()) common[s].time.push_back(samples[s]->time[at[s]]);
    }
  }
  return common;
}

}  // namespace scalelab::analysis
