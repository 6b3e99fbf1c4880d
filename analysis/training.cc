#include "analysis/training.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/statistics.h"
#include "catalog/engines.h"
#include "catalog/models.h"
#include "scalelab/v1/run.pb.h"
#include "study/values.h"

namespace scalelab::analysis {
namespace {

using v1::TrainingDifference;

// Differences of smaller losses are relative to this one.
constexpr double kSmallLoss = 0.2;
// Number of repeats per cell among which RunsToCompare chooses the repeat that most engines have. One repeat
// is enough, and a search of all would be slow.
constexpr size_t kCandidates = 16;

// Returns a string that is equal for cells that must train alike; empty for cells that are not compared.
std::string RecipeOf(v1::RunSpec spec) {
  if (spec.model().empty()) return "";
  for (const RunParameter& parameter : RunParameters()) {
    if (!parameter.recipe) ClearField(parameter, &spec);
  }
  return Fingerprint(spec);
}

// Finds the recipes of cells. Most cells of a study differ only in values that no recipe contains, and making
// a recipe takes some microseconds.
class Recipes {
 public:
  explicit Recipes(const CellList& parameters) : parameters_(parameters) {
    std::set<int> fields;  // numbers of the parameters that recipes do not contain
    for (const RunParameter& parameter : RunParameters()) {
      if (!parameter.recipe) fields.insert(parameter.number);
    }
    const CellValues& values = parameters.values();
    for (int number = 1; number <= values.size(); ++number) {
      const auto* field = values.field(number);
      contained_.push_back(field == nullptr || !fields.contains(field->number()));
    }
  }

  const std::string& Of(size_t cell) {
    std::vector<int> numbers;
    for (const int number : parameters_.spec(cell)) {
      if (contained_[static_cast<size_t>(number) - 1]) numbers.push_back(number);
    }
    const auto [it, added] = known_.try_emplace(std::move(numbers));
    if (added) it->second = RecipeOf(parameters_.SpecWithoutCommand(cell));
    return it->second;
  }

 private:
  const CellList& parameters_;
  std::vector<bool> contained_;                    // whether recipes contain a value, by its number - 1
  std::map<std::vector<int>, std::string> known_;  // recipes by the values that they contain
};

bool IsCompared(const db::CellRow& cell) {
  return !cell.excluded && cell.engine != UnsynchronisedEngine().name;
}

// Returns the reason why cell `i` does not compute the same steps as one rank; empty if it computes them.
absl::string_view DesignOf(const db::CellRow& cell, const CellList& parameters, size_t i) {
  const Engine* const engine = FindEngine(cell.engine);
  if (engine == nullptr || cell.ranks == 1) return "";
  const auto text = [&](ParameterGroup group, int field) {
    return engine->Reads(group) ? parameters.Text(i, field) : std::string();
  };
  return WhyDiffersByDesign(*engine,
                            text(ParameterGroup::kCompression, v1::RunSpec::kGradientCompressionFieldNumber),
                            text(ParameterGroup::kServers, v1::RunSpec::kConsistencyFieldNumber));
}

// Returns the number of parts into which a step of the cell divides its samples; each part passes through
// the model separately.
double PartsOf(const v1::RunSpec& spec, const Engine& engine) {
  const auto groups_of = [&](int members) { return members == 0 ? 1.0 : double(spec.ranks()) / members; };
  double slices = spec.ranks();
  if (engine.Reads(ParameterGroup::kReplicas)) {
    slices = spec.replicas();
  } else if (spec.ranks() == 1) {
    slices = 1;
  } else if (engine.Reads(ParameterGroup::kPipeline)) {
    slices = groups_of(spec.pipeline_stages());
  } else if (engine.Reads(ParameterGroup::kTensor)) {
    slices = groups_of(spec.tensor_ranks());
  } else if (engine.Reads(ParameterGroup::kServers)) {
    slices = spec.ranks() - spec.server_ranks();
  }
  const int parts = engine.Reads(ParameterGroup::kStep) ? std::max(spec.accumulation_steps(), 1) : 1;
  return std::max(slices, 1.0) * parts;
}

// Returns ComparedRun::normalised_samples.
double NormalisedSamples(const v1::RunSpec& spec) {
  const Engine* const engine = FindEngine(spec.engine());
  const ModelInfo* const model = FindModel(spec.model());
  const bool of_part = spec.batch_norm() != "sync" && spec.batch_norm() != "eval";
  if (engine == nullptr || model == nullptr || !model->batch_norm || !of_part) return 0;
  return spec.global_batch() / PartsOf(spec, *engine);
}

constexpr size_t kNoAuthority = std::numeric_limits<size_t>::max();

// Returns the rank of an engine as the reference, from 0: native engines that synchronise, in the order of the table.
// kNoAuthority: the engine is never the reference.
size_t Authority(absl::string_view name) {
  for (size_t i = 0; i < Engines().size(); ++i) {
    const Engine& engine = Engines()[i];
    if (engine.name != name) continue;
    const bool reference = engine.program == Engine::Program::kTrainer &&
                           engine.synchronisation != Engine::Synchronisation::kNever;
    return reference ? i : kNoAuthority;
  }
  return kNoAuthority;
}

// Allowed difference of a loss, relative to that of the reference.
struct Band {
  double first;  // the allowed difference at the first step or epoch
  // Later, the allowed difference is `growth` times the largest earlier difference, clamped to [least, most].
  double least, most;
  double growth;
};
constexpr Band kSteps{0.0003, 0.01, 0.20, 100}, kReducedSteps{0.003, 0.03, 0.20, 100};
constexpr Band kRandomSteps{0.20, 0.20, 0.20, 0};
constexpr Band kEpochs{0.15, 0.15, 0.15, 0}, kReducedEpochs{0.20, 0.20, 0.20, 0};

// Returns whether the model has dropout, whose random units differ between frameworks.
bool DropsOut(const db::CellRow& cell) {
  constexpr absl::string_view kModels[] = {"alexnet", "inception_v3", "mobilenet_v2", "vgg16"};
  return std::ranges::find(kModels, cell.model) != std::end(kModels);
}

Band BandOf(const db::CellRow& cell, bool of_epoch) {
  const bool reduced = cell.precision != "fp32";
  if (of_epoch) return reduced ? kReducedEpochs : kEpochs;
  if (DropsOut(cell)) return kRandomSteps;
  return reduced ? kReducedSteps : kSteps;
}

// Returns the difference relative to the reference, or to kSmallLoss if the reference is smaller.
double Apart(double loss, double reference) {
  if (std::isfinite(loss) != std::isfinite(reference)) return HUGE_VAL;
  return std::isfinite(loss) ? std::abs(loss - reference) / std::max(std::abs(reference), kSmallLoss) : 0;
}

// The reference losses, with which the losses of a group are compared.
struct Reference {
  std::string name;
  // Index of the run with these losses; the median has no run.
  size_t run = std::numeric_limits<size_t>::max();
  Losses losses;
};

std::vector<double> MedianAtEach(const std::vector<const std::vector<double>*>& all) {
  std::vector<double> medians;
  for (size_t at = 0;; ++at) {
    std::vector<double> there;
    for (const std::vector<double>* one : all) {
      if (at < one->size() && std::isfinite((*one)[at])) there.push_back((*one)[at]);
    }
    if (there.size() < 2) return medians;
    medians.push_back(Median(there));
  }
}

Reference ReferenceOf(const std::vector<db::CellRow>& cells, const std::vector<ComparedRun>& runs,
                      const std::vector<Losses>& losses, const std::vector<size_t>& group) {
  Reference reference;
  size_t best = kNoAuthority;
  for (const size_t i : group) {
    const size_t authority = Authority(cells[runs[i].cell].engine);
    if (authority >= best || losses[i].steps.empty()) continue;
    best = authority;
    reference = {cells[runs[i].cell].engine, i, losses[i]};
  }
  if (best < kNoAuthority) return reference;
  // The median of two losses is their mean, which would halve the difference of each. With two engines, the
  // first one is therefore the reference.
  std::vector<size_t> reporting;
  for (const size_t i : group) {
    if (!losses[i].steps.empty() || !losses[i].epochs.empty()) reporting.push_back(i);
  }
  if (reporting.size() == 2) {
    const size_t first = *std::min_element(reporting.begin(), reporting.end(), [&](size_t a, size_t b) {
      return cells[runs[a].cell].position < cells[runs[b].cell].position;
    });
    return {cells[runs[first].cell].engine, first, losses[first]};
  }
  reference.name = "the median of the engines";
  std::vector<const std::vector<double>*> steps, epochs;
  for (const size_t i : group) {
    steps.push_back(&losses[i].steps);
    epochs.push_back(&losses[i].epochs);
  }
  reference.losses = {MedianAtEach(steps), MedianAtEach(epochs)};
  return reference;
}

TrainingDifference Describe(const db::CellRow& cell, const Reference& reference, bool of_epoch, int place,
                            double loss, double expected, double band, const std::string& why) {
  TrainingDifference difference;
  difference.set_reference(reference.name);
  if (of_epoch) {
    difference.set_epoch(place);
  } else {
    difference.set_step(place);
  }
  difference.set_loss(loss);
  difference.set_reference_loss(expected);
  difference.set_band(band);
  difference.set_message(
      absl::StrFormat("trains differently on %d %s: loss %s %d is %.4g where %s has %.4g (band %.2g%%)%s",
                      cell.ranks, cell.ranks == 1 ? "rank" : "ranks", of_epoch ? "of epoch" : "at step",
                      place, loss, reference.name, expected, 100 * band, why));
  return difference;
}

// Returns the reason for a difference that the numbers of samples in batch normalisation explain, else nothing.
std::string OtherStatistics(const ComparedRun& run, const ComparedRun* reference,
                            const std::string& reference_name) {
  if (reference == nullptr || run.normalised_samples == reference->normalised_samples) return "";
  return absl::StrFormat(
      ": batch normalisation has %g samples at a time, that of %s has %g; compare with batch_norm eval, or a "
      "model "
      "without it",
      run.normalised_samples, reference_name, reference->normalised_samples);
}

}  // namespace

std::vector<ComparedRun> RunsToCompare(const std::vector<db::CellRow>& cells, const CellList& parameters,
                                       const std::vector<db::CurveRow>& rows) {
  std::vector<ComparedRun> runs;
  std::set<absl::string_view> engines;
  std::vector<bool> compared(cells.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    compared[i] = IsCompared(cells[i]) && DesignOf(cells[i], parameters, i).empty();
    if (compared[i]) engines.insert(cells[i].engine);
  }
  if (engines.size() < 2) return runs;

  std::unordered_map<std::string, std::vector<size_t>> by_recipe;
  Recipes recipes(parameters);
  for (size_t i = 0; i < cells.size(); ++i) {
    if (!compared[i]) continue;
    if (const std::string& recipe = recipes.Of(i); !recipe.empty()) by_recipe[recipe].push_back(i);
  }
  std::unordered_map<int64_t, std::pair<size_t, size_t>>
      rows_of;  // by cell; the rows of a cell are contiguous
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].cell_id != rows[i - 1].cell_id) rows_of[rows[i].cell_id].first = i;
    if (i + 1 == rows.size() || rows[i].cell_id != rows[i + 1].cell_id)
      rows_of[rows[i].cell_id].second = i + 1;
  }
  // Returns the first runs of a cell that succeeded.
  const auto runs_of = [&](const db::CellRow& cell) {
    std::vector<const db::CurveRow*> of_cell;
    const auto [begin, end] = rows_of[cell.id];
    for (size_t i = begin; i < end && of_cell.size() < kCandidates; ++i) {
      if (rows[i].state == db::RunState::kSucceeded && rows[i].attempt_id != 0) of_cell.push_back(&rows[i]);
    }
    return of_cell;
  };
  std::vector<std::vector<size_t>> groups;
  for (auto& [recipe, group] : by_recipe) groups.push_back(std::move(group));
  std::sort(groups.begin(), groups.end());  // the order of a hash table is arbitrary
  int number = 0;
  for (const std::vector<size_t>& group : groups) {
    std::vector<std::vector<const db::CurveRow*>> of_cells;
    std::map<int, std::set<absl::string_view>> having;  // engines by repeat
    for (const size_t i : group) {
      of_cells.push_back(runs_of(cells[i]));
      for (const db::CurveRow* row : of_cells.back()) having[row->repeat].insert(cells[i].engine);
    }
    const auto most = std::max_element(having.begin(), having.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    if (most == having.end() || most->second.size() < 2) continue;
    for (size_t i = 0; i < group.size(); ++i) {
      const auto run = std::ranges::find(of_cells[i], most->first, &db::CurveRow::repeat);
      if (run != of_cells[i].end())
        runs.push_back({group[i], (*run)->attempt_id, number,
                        NormalisedSamples(parameters.SpecWithoutCommand(group[i]))});
    }
    ++number;
  }
  return runs;
}

std::map<int64_t, TrainingDifference> DifferencesByDesign(const std::vector<db::CellRow>& cells,
                                                          const CellList& parameters) {
  std::map<int64_t, TrainingDifference> differences;
  for (size_t i = 0; i < cells.size(); ++i) {
    const absl::string_view why = DesignOf(cells[i], parameters, i);
    if (why.empty()) continue;
    differences[cells[i].id].set_message(absl::StrCat("trains differently by design: ", why));
  }
  return differences;
}

std::map<int64_t, TrainingDifference> CompareTraining(const std::vector<db::CellRow>& cells,
                                                      const std::vector<ComparedRun>& runs,
                                                      const std::vector<Losses>& losses) {
  std::map<int64_t, TrainingDifference> differences;
  std::map<int, std::vector<size_t>> groups;
  for (size_t i = 0; i < runs.size(); ++i) groups[runs[i].group].push_back(i);
  for (const auto& [number, group] : groups) {
    const Reference reference = ReferenceOf(cells, runs, losses, group);
    for (const size_t i : group) {
      if (i == reference.run) continue;
      const db::CellRow& cell = cells[runs[i].cell];
      const std::string why = OtherStatistics(
          runs[i], reference.run < runs.size() ? &runs[reference.run] : nullptr, reference.name);
      const auto find = [&](bool of_epoch, const std::vector<double>& own,
                            const std::vector<double>& expected) {
        const Band band = BandOf(cell, of_epoch);
        double largest = 0;
        for (size_t at = 0; at < std::min(own.size(), expected.size()); ++at) {
          const double apart = Apart(own[at], expected[at]);
          const double allowed =
              at == 0 ? band.first : std::clamp(band.growth * largest, band.least, band.most);
          if (apart > allowed) {
            differences.emplace(cell.id, Describe(cell, reference, of_epoch, static_cast<int>(at), own[at],
                                                  expected[at], allowed, why));
            return;
          }
          largest = std::max(largest, apart);
        }
      };
      find(false, losses[i].steps, reference.losses.steps);
      find(true, losses[i].epochs, reference.losses.epochs);  // emplace keeps the first difference
    }
  }
  return differences;
}

std::vector<double> MeanOverRanks(
    const std::vector<std::pair<std::vector<int64_t>, std::vector<double>>>& ranks) {
  std::vector<double> means;
  for (int64_t step = 0; step < kComparedSteps; ++step) {
    double sum = 0;
    for (const auto& [steps, values] : ranks) {
      const auto at = std::find(steps.begin(), steps.end(), step);
      if (at == steps.end()) return means;
      sum += values[static_cast<size_t>(at - steps.begin())];
    }
    if (ranks.empty()) return means;
    means.push_back(sum / static_cast<double>(ranks.size()));
  }
  return means;
}

}  // namespace scalelab::analysis
