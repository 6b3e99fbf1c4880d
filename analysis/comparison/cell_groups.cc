#include "analysis/comparison/cell_groups.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "analysis/statistics.h"
#include "catalog/metric_ranges.h"
#include "google/protobuf/util/json_util.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

// Reads the keys of cells as JSON. Converts each value once, because protobuf's conversion is slow.
class KeyReader {
 public:
  explicit KeyReader(const CellList& cells)
      : cells_(cells), shown_(static_cast<size_t>(cells.values().size()) + 1) {}

  // Returns null if a value cannot be represented.
  json Read(size_t cell) {
    json key = json::object();
    for (const int number : cells_.key(cell)) {
      std::optional<json>& shown = shown_[number];
      if (!shown.has_value()) shown = ToJson(cells_.values().value(number));
      if (shown->is_discarded()) return nullptr;
      key[cells_.values().name(number)] = *shown;
    }
    return key;
  }

 private:
  static json ToJson(const google::protobuf::Value& value) {
    std::string text;
    if (!google::protobuf::util::MessageToJsonString(value, &text).ok())
      return json(json::value_t::discarded);
    return json::parse(text, nullptr, false);
  }

  const CellList& cells_;
  std::vector<std::optional<json>> shown_;  // by number of the value; discarded: it cannot be represented
};

std::string TextOf(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

class Reader {
 public:
  explicit Reader(std::string axis) : axis_(std::move(axis)) {}

  // Adds a study. `block` is the block of all its values; with -1, the block of a value is that of its repeat.
  void Read(const StudyRows& study, int block);
  CellGroups groups;

 private:
  // The values of one cell on one machine. The pointers stay valid when cells are added, because they point into deques.
  struct Place {
    Sample* sample = nullptr;
    std::vector<double>* epoch_seconds = nullptr;
  };
  Place PlaceOf(const json& key, const std::string& name, int ranks, const std::string& fingerprint);
  void AddCell(const db::CellRow& cell, json key, const std::vector<const db::CurveRow*>& rows, int block);

  const std::string axis_;
  std::map<std::tuple<std::string, int, std::string>, size_t> group_of_;
  std::vector<int> block_of_repeat_;  // of the study, see BlockOfRepeat
};

Reader::Place Reader::PlaceOf(const json& key, const std::string& name, int ranks,
                              const std::string& fingerprint) {
  Machine& machine = groups.machines[fingerprint];
  const std::string text = key.dump();
  const auto [cell, added] =
      machine.index.try_emplace(absl::StrCat(text, "\n", ranks, "\n", name), machine.samples.size());
  if (added) {
    const int common_ranks = axis_ == "ranks" ? 0 : ranks;
    const auto [group, is_new] =
        group_of_.try_emplace({text, common_ranks, fingerprint}, groups.groups.size());
    if (is_new) groups.groups.push_back({key, common_ranks, fingerprint, {}});
    groups.groups[group->second].candidates.push_back({name, ranks, cell->second});
    machine.samples.emplace_back();
    machine.epoch_seconds.emplace_back();
  }
  return {&machine.samples[cell->second], &machine.epoch_seconds[cell->second]};
}

void Reader::AddCell(const db::CellRow& cell, json key, const std::vector<const db::CurveRow*>& rows,
                     int block) {
  static const MetricRange& seconds = RangeOf("run/epoch_seconds");
  const std::string name = TextOf(key[axis_]);
  key.erase(axis_);
  key.erase("ranks");
  std::map<std::string, std::vector<double>> logs;  // by fingerprint
  // Most rows have the same fingerprint as the row before them, which saves the searches of PlaceOf.
  const std::string* known = nullptr;
  Place place;  // of the fingerprint `known`
  for (const db::CurveRow* row : rows) {
    if (known == nullptr || *known != row->fingerprint) {
      place = PlaceOf(key, name, cell.ranks, row->fingerprint);
      place.sample->Reserve(rows.size());
      place.epoch_seconds->reserve(rows.size());
    }
    known = &row->fingerprint;
    if (row->epoch_seconds && seconds.Contains(*row->epoch_seconds))
      place.epoch_seconds->push_back(*row->epoch_seconds);
    if (block >= 0) {
      logs[row->fingerprint].push_back(std::log(*row->throughput));
      continue;
    }
    place.sample->block.push_back(block_of_repeat_[row->repeat]);
    place.sample->value.push_back(*row->throughput);
    if (row->started > 0) place.sample->time.push_back(static_cast<double>(row->started) / 1e6);
  }
  for (const auto& [fingerprint, values] : logs) {
    Sample& sample = *PlaceOf(key, name, cell.ranks, fingerprint).sample;
    sample.block.push_back(block);
    sample.value.push_back(std::exp(Mean(values)));
  }
}

void Reader::Read(const StudyRows& study, int block) {
  static const MetricRange& range = RangeOf("run/throughput");
  block_of_repeat_ = BlockOfRepeat(study.rows);
  std::unordered_map<int64_t, std::vector<const db::CurveRow*>> rows;
  std::vector<const db::CurveRow*>* of_cell = nullptr;
  for (const db::CurveRow& row : study.rows) {
    if (row.state != db::RunState::kSucceeded || row.repeat < 0) continue;
    if (!row.throughput.has_value() || !range.Contains(*row.throughput)) continue;
    // Most rows have the same cell as the row before them.
    if (of_cell == nullptr || of_cell->front()->cell_id != row.cell_id) of_cell = &rows[row.cell_id];
    of_cell->push_back(&row);
  }
  if (block < 0)
    groups.blocks = BlocksWithResults(block_of_repeat_);
  else if (!rows.empty())
    groups.blocks = block + 1;
  KeyReader keys(study.parameters);
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const auto found = rows.find(study.cells[i].id);
    if (found == rows.end() || study.parameters.SpecWithoutCommand(i).communication_baseline()) continue;
    json key = keys.Read(i);
    // The world size is an axis only if it varies.
    if (axis_ == "ranks" && key.is_object() && !key.contains("ranks")) key["ranks"] = study.cells[i].ranks;
    if (key.is_object() && key.contains(axis_)) AddCell(study.cells[i], std::move(key), found->second, block);
  }
}

}  // namespace

CellGroups GroupCells(const std::vector<StudyRows>& studies, const std::string& axis) {
  Reader reader(axis);
  for (size_t i = 0; i < studies.size(); ++i)
    reader.Read(studies[i], studies.size() == 1 ? -1 : static_cast<int>(i));
  return std::move(reader.groups);
}

double ConfidenceOf(const std::vector<StudyRows>& studies) {
  double confidence = kConfidence;
  for (const StudyRows& study : studies) confidence = std::max(confidence, study.sequential.value_or(0));
  return confidence;
}

// Only the number of repeats within a study may depend on the results. With several studies, each study is a
// block, so the intervals need no correction for a stopping rule.
MachineRatios::MachineRatios(const std::vector<StudyRows>& studies, const CellGroups& cells)
    : bootstrap_(cells.blocks, kResamples, studies.size() == 1 ? ConfidenceOf(studies) : kConfidence) {
  const bool paired = studies.size() == 1 && studies[0].sequential.has_value();
  for (const auto& [fingerprint, machine] : cells.machines) {
    std::vector<const Sample*> samples;
    for (const Sample& sample : machine.samples) samples.push_back(&sample);
    ratios_.try_emplace(fingerprint, std::move(samples), bootstrap_, paired);
  }
}

}  // namespace scalelab::analysis
