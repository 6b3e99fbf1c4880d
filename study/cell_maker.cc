#include "study/cell_maker.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "catalog/device.h"
#include "catalog/engines.h"
#include "study/cell_checks.h"
#include "study/measure.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::Value;
using v1::LearningRate;
using v1::RunSpec;
using v1::Scaling;
using v1::StudySpec;

// Default image size of data set imagefolder. Most networks for ImageNet expect it.
constexpr int kFolderImage = 224;

// Fields that Derive may change.
constexpr absl::string_view kDerived[] = {
    "dataset",       "augment",           "image_size",   "global_batch", "batch_per_rank",
    "learning_rate", "warmup_start_rate", "warmup_steps", "epochs",       "cpus_per_rank"};

// Number of epochs of a run that only max_steps limits: the largest number that a study may set.
constexpr int kManyEpochs = 1'000'000;

// Returns the values with which all cells begin. Before Derive is called, the batches and the learning rate
// contain the inputs of their derivation.
RunSpec BaseSpec(const StudySpec& spec, const Grid& grid) {
  RunSpec base;
  SetDefaults(&base);
  base.set_global_batch(spec.scaling().global_batch());
  base.set_batch_per_rank(spec.scaling().batch_per_rank());
  base.set_learning_rate(spec.lr().base());
  base.set_warmup_epochs(spec.lr().warmup_epochs());
  base.set_seed(spec.seed());
  SetMeasure(spec.measure(), &base);
  base.set_cpus_per_rank(spec.resources().cpus_per_rank());
  base.set_gpus_per_rank(spec.resources().gpus_per_rank());
  for (const auto& [key, value] : grid.fixed) SetField(key, *value, &base);
  return base;
}

}  // namespace

CellMaker::CellMaker(const StudySpec& raw, const StudySpec& spec, const Grid& grid)
    : spec_(spec),
      dataset_set_(grid.Sets("dataset")),
      augment_set_(grid.Sets("augment")),
      epochs_set_(grid.Sets("epochs")),
      warmup_set_(raw.measure().has_warmup_steps()),
      cores_set_(raw.resources().cpus_per_rank() != 0 || grid.Sets("cpus_per_rank")),
      base_(BaseSpec(spec, grid)),
      index_(grid.factors.size(), -1),
      run_(base_),
      values_(std::make_shared<CellValues>(RunSpec())) {
  for (size_t f = 0; f < grid.factors.size(); ++f) {
    for (const GridAxis& axis : grid.factors[f].axes) {
      if (axis.key.parameter == nullptr) continue;  // this is a violation, so the study is refused
      Place place{f, &axis, {}, std::ranges::find(kDerived, axis.name) != std::end(kDerived)};
      for (const Value& value : *axis.values) place.numbers.push_back(values_->NumberOf(axis.name, value));
      places_.push_back(std::move(place));
    }
  }
  std::ranges::sort(places_, {}, [](const Place& place) { return place.axis->name; });
  // Every cell lists the fields of the other axes.
  MoveTo(std::vector<int>(index_.size(), 0));
  RunSpec common = run_;
  for (const Place& place : places_) {
    if (!place.derived) ClearField(place.axis->key, &common);
  }
  values_->SetCommon(std::move(common));
}

void CellMaker::MoveTo(const std::vector<int>& index) {
  ResetDerived();
  for (const Place& place : places_) {
    if (place.derived || index[place.factor] != index_[place.factor]) SetAxis(place, index[place.factor]);
  }
  index_ = index;
  Derive();
}

void CellMaker::SetAxis(const Place& place, int index) {
  const Value& value = place.axis->values->Get(index);
  const GridKey& key = place.axis->key;
  if (key.parameter->type != ParameterType::kStringList) return SetField(key, value, &run_);
  run_.clear_command();
  if (!value.list_value().values().empty()) run_.add_command("");
}

// Sets the fields in kDerived to the values from which Derive computes them.
void CellMaker::ResetDerived() {
  if (run_.dataset() != base_.dataset()) run_.set_dataset(base_.dataset());
  run_.set_augment(base_.augment());
  run_.set_image_size(base_.image_size());
  run_.set_global_batch(base_.global_batch());
  run_.set_batch_per_rank(base_.batch_per_rank());
  run_.set_learning_rate(base_.learning_rate());
  run_.set_warmup_start_rate(base_.warmup_start_rate());
  run_.set_warmup_steps(base_.warmup_steps());
  run_.set_epochs(base_.epochs());
  run_.set_cpus_per_rank(base_.cpus_per_rank());
}

void CellMaker::Derive() {
  RunSpec* run = &run_;
  if (!dataset_set_ && RunsOwnProgram(run->engine())) run->clear_dataset();
  const bool folder = run->dataset() == "imagefolder";
  if (!augment_set_) run->set_augment(folder || run->dataset() == "cifar10");
  if (folder && run->image_size() == 0) run->set_image_size(kFolderImage);
  // A decay of the learning rate depends on the number of epochs, so with a decay the epochs
  // keep their default.
  if (!epochs_set_ && run->max_steps() > 0 && run->lr_schedule() == "constant") run->set_epochs(kManyEpochs);
  int64_t ranks = std::max(run->ranks(), 1);
  if (spec_.scaling().mode() == Scaling::WEAK) {
    int64_t global = run->batch_per_rank() * ranks;
    run->set_global_batch(std::min<int64_t>(global, std::numeric_limits<int32_t>::max()));
  } else {
    run->set_batch_per_rank(run->global_batch() / ranks);
  }
  double base = run->learning_rate();
  double reference = spec_.lr().reference_batch();
  double rate = base;
  if (spec_.lr().rule() == LearningRate::LINEAR) rate = base * run->global_batch() / reference;
  if (spec_.lr().rule() == LearningRate::SQRT) rate = base * std::sqrt(run->global_batch() / reference);
  run->set_learning_rate(rate);
  run->set_warmup_start_rate(run->warmup_epochs() > 0 ? std::min(base / 10, rate) : rate);
  int64_t steps = KnownSteps(*run);
  // With cuda_graph, keep the number of warm-up steps: the last of them records the graph, which takes long.
  const int64_t least = run->cuda_graph() ? std::min<int64_t>(run->warmup_steps(), steps - 1) : 0;
  if (!warmup_set_ && steps > 0)
    run->set_warmup_steps(std::min<int64_t>(run->warmup_steps(), std::max(steps / 4, least)));
  if (!cores_set_) run->set_cpus_per_rank(DefaultCores(run->gpus_per_rank()));
}

template <class T>
void CellMaker::AddDerived(const char* name, const T& value, const T& common) {
  if (value == common) return;
  Value stored;
  if constexpr (std::is_same_v<T, std::string>) {
    stored.set_string_value(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    stored.set_bool_value(value);
  } else {
    stored.set_number_value(value);
  }
  listed_.push_back(values_->NumberOf(name, stored));
}

void CellMaker::AddTo(CellList* list) {
  key_.clear();
  listed_.clear();
  for (const Place& place : places_) {
    key_.push_back(place.numbers[index_[place.factor]]);
    if (!place.derived) listed_.push_back(key_.back());
  }
  const RunSpec& common = values_->short_common();
  AddDerived("dataset", run_.dataset(), common.dataset());
  AddDerived("augment", run_.augment(), common.augment());
  AddDerived("image_size", run_.image_size(), common.image_size());
  AddDerived("global_batch", run_.global_batch(), common.global_batch());
  AddDerived("batch_per_rank", run_.batch_per_rank(), common.batch_per_rank());
  AddDerived("learning_rate", run_.learning_rate(), common.learning_rate());
  AddDerived("warmup_start_rate", run_.warmup_start_rate(), common.warmup_start_rate());
  AddDerived("warmup_steps", run_.warmup_steps(), common.warmup_steps());
  AddDerived("epochs", run_.epochs(), common.epochs());
  AddDerived("cpus_per_rank", run_.cpus_per_rank(), common.cpus_per_rank());
  list->Add(key_, listed_);
}

}  // namespace scalelab
