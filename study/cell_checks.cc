#include "study/cell_checks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "catalog/command_template.h"
#include "catalog/datasets.h"
#include "catalog/device.h"
#include "catalog/engines.h"
#include "catalog/lr_milestones.h"
#include "catalog/models.h"
#include "study/communication.h"
#include "study/engine_checks.h"

namespace scalelab {

using v1::RunSpec;
using v1::Scaling;
using v1::StudySpec;

namespace {
constexpr int kCifarImage = 32;  // side length of the images of cifar10, and the default for synthetic ones

bool Reads(const RunSpec& run, ParameterGroup group) {
  const Engine* engine = FindEngine(run.engine());
  return engine != nullptr && engine->Reads(group);
}

// The key with the number of ranks among which a run divides its model.
struct RanksOfModel {
  absl::string_view key;  // empty: the engine does not divide models
  int64_t count = 0;      // 0: all ranks
};

RanksOfModel RanksThatDivide(const RunSpec& run) {
  if (Reads(run, ParameterGroup::kPipeline)) return {"pipeline_stages", run.pipeline_stages()};
  if (Reads(run, ParameterGroup::kTensor)) return {"tensor_ranks", run.tensor_ranks()};
  return {};
}

// Returns the number of parts into which the ranks of a run divide a global batch.
int64_t SlicesOf(const RunSpec& run) {
  const int64_t ranks = std::max(run.ranks(), 1);
  if (Reads(run, ParameterGroup::kServers)) return std::max<int64_t>(ranks - run.server_ranks(), 1);
  const RanksOfModel divide = RanksThatDivide(run);
  if (divide.key.empty()) return ranks;
  return divide.count == 0 ? 1 : std::max<int64_t>(ranks / divide.count, 1);
}

}  // namespace

int64_t KnownSteps(const RunSpec& run) {
  int64_t steps = run.max_steps();
  if (run.train_samples() > 0 && run.global_batch() > 0) {
    int64_t in_epoch = run.train_samples() / run.global_batch();
    const int64_t rest = run.train_samples() % run.global_batch();
    if (run.last_batch() == "keep" && rest >= SlicesOf(run)) ++in_epoch;
    int64_t by_epochs = std::max<int64_t>(in_epoch, 1) * run.epochs();
    steps = steps > 0 ? std::min(steps, by_epochs) : by_epochs;
  }
  return steps;
}

bool CellChecker::Check(const RunSpec& run, const std::vector<int>& index) {
  constexpr size_t kMostReasons = 100;
  if (run.ranks() < 1) return true;  // already reported
  const std::vector<FieldViolation> why = WhyUnusable(run, index);
  if (!why.empty() && spec_.on_unusable() == StudySpec::EXCLUDE) {
    if (unusable_.size() < kMostReasons && seen_.insert(why.front().description).second)
      unusable_.push_back(why.front().description);
    return false;
  }
  CheckBatch(run, index);
  if (raw_.measure().has_warmup_steps() && KnownSteps(run) > 0 && run.warmup_steps() >= KnownSteps(run)) {
    Add("measure.warmup_steps", absl::StrCat("warmup_steps ", run.warmup_steps(), " must be less than the ",
                                             KnownSteps(run), " steps of the run"));
  }
  CheckNeeds(run, index);
  for (const FieldViolation& violation : why) Add(violation.field, violation.description);
  CheckCommunication(run, index);
  return true;
}

void CellChecker::Add(std::string field, std::string description) {
  if (seen_.insert(field + "\n" + description).second)
    violations_->Add(std::move(field), std::move(description));
}

// Returns the reasons why the cell cannot run on this machine, or cannot run at all because its settings
// contradict each other.
std::vector<FieldViolation> CellChecker::WhyUnusable(const RunSpec& run,
                                                     const std::vector<int>& index) const {
  std::vector<FieldViolation> out;
  const auto add = [&](absl::string_view key, std::string description) {
    out.push_back({grid_.Where(key, index, absl::StrCat("fixed.", key)), std::move(description)});
  };
  const bool own_program = RunsOwnProgram(run.engine());
  const Engine* engine = FindEngine(run.engine());
  const bool may_use_gpus = !own_program && (engine == nullptr || engine->gpus != Engine::Gpus::kNever);
  const bool cpu = !UsesGpus(run.device(), run.gpus_per_rank());
  if (may_use_gpus && run.device() == "cuda" && run.gpus_per_rank() == 0)
    add("device", "device cuda needs GPUs; set resources.gpus_per_rank, for example to 1");
  for (EngineMisfit& misfit : EngineMisfits(run, spec_.resources())) {
    const bool of_grid = FindGridKey(misfit.key).parameter != nullptr;
    absl::StrAppend(&misfit.sentence, HowToSplit(misfit.key));
    if (of_grid)
      add(misfit.key, std::move(misfit.sentence));
    else
      out.push_back({std::string(misfit.key), std::move(misfit.sentence)});
  }
  if (may_use_gpus && cpu && (run.precision() == "tf32" || run.precision() == "amp-fp16")) {
    add("precision", absl::StrCat("precision ", run.precision(),
                                  " needs GPUs; set resources.gpus_per_rank, or use fp32 or amp-bf16"));
  }
  if (out.empty() && runs_here_) {
    if (std::optional<FieldViolation> why = runs_here_(run)) out.push_back(*std::move(why));
  }
  return out;
}

// Returns the end of a sentence about the variable `key`, which the engine of a cell ignores: it proposes a
// separate study for the engines of this study that use the variable. Returns "" if there are none.
std::string CellChecker::HowToSplit(absl::string_view key) const {
  size_t factor = 0;
  const GridAxis* engines = grid_.FindAxis("engine", &factor);
  if (engines == nullptr) return "";
  std::vector<absl::string_view> users;
  for (const google::protobuf::Value& name : *engines->values) {
    const Engine* engine = FindEngine(name.string_value());
    if (engine != nullptr && UsesThreadVariable(*engine, key)) users.push_back(engine->name);
  }
  if (users.empty()) return "";
  return absl::StrCat("; or submit ", absl::StrJoin(users, " and "),
                      users.size() == 1 ? ", which uses " : ", which use ", absl::StripPrefix(key, "env."),
                      ", in a separate study");
}

// Returns whether the cell runs a custom program with the default batch, and its command does not contain the
// batch. The batch of such a program is not known.
bool CellChecker::IgnoresBatch(const RunSpec& run, const std::vector<int>& index) const {
  if (!RunsOwnProgram(run.engine()) || raw_.scaling().global_batch() != 0 || grid_.Sets("global_batch"))
    return false;
  const auto has_batch = [](const std::string& word) {
    const std::vector<std::string> names = TemplateNames(word);
    return std::any_of(names.begin(), names.end(), [](const std::string& name) {
      return name == "global_batch" || name == "batch_per_rank";
    });
  };
  size_t factor = 0;
  // If the command is an axis, CellMaker leaves it out of `run`.
  if (const GridAxis* axis = grid_.FindAxis("command", &factor)) {
    const auto& words = axis->values->Get(index[factor]).list_value().values();
    return std::none_of(words.begin(), words.end(),
                        [&](const google::protobuf::Value& word) { return has_batch(word.string_value()); });
  }
  return std::none_of(run.command().begin(), run.command().end(), has_batch);
}

void CellChecker::CheckBatch(const RunSpec& run, const std::vector<int>& index) {
  int64_t ranks = run.ranks();
  if (spec_.scaling().mode() == Scaling::WEAK) {
    int64_t global = run.batch_per_rank() * ranks;
    if (global > std::numeric_limits<int32_t>::max()) {
      Add(grid_.Where("batch_per_rank", index, "scaling.batch_per_rank"),
          absl::StrCat("batch_per_rank ", run.batch_per_rank(), " x ", ranks, " ranks is a global batch of ",
                       WithCommas(global), "; at most 2,147,483,647 is possible"));
    }
    return;
  }
  int64_t batch = run.global_batch();
  if (batch < 1 || batch % ranks == 0 || IgnoresBatch(run, index)) return;
  int64_t below = batch / ranks * ranks;
  Add(grid_.Where("global_batch", index, "scaling.global_batch"),
      absl::StrCat("global_batch ", batch, " does not divide evenly over ", ranks,
                   " ranks; the nearest that ",
                   below > 0 ? absl::StrCat("do are ", below, " and ") : "does is ", below + ranks));
}

// Checks that the cell has the settings that its engine requires.
void CellChecker::CheckNeeds(const RunSpec& run, const std::vector<int>& index) {
  if (RunsOwnProgram(run.engine())) {
    if (run.command().empty() && !grid_.unknown_keys)
      Add("fixed.command", "engine custom needs a command, for example command: [python3, train.py]");
    return;
  }
  if (spec_.measure().success() == v1::Measure::EXIT_STATUS) {
    const absl::string_view key = raw_.measure().extract().empty() ? "success" : "extract";
    Add(absl::StrCat("measure.", key),
        absl::StrCat("measure.", key, " is for engine custom, not ", run.engine(), "; remove it"));
  }
  if (!grid_.unknown_keys) {
    if (run.model().empty()) {
      Add("fixed.model",
          absl::StrCat("engine ", run.engine(), " needs a model, for example model: resnet20"));
    }
    if (run.dataset() == "cifar10" && run.data_dir().empty())
      Add("fixed.data_dir", "dataset cifar10 needs data_dir, the directory that contains data_batch_1.bin");
    if (run.dataset() == "imagefolder" && run.data_dir().empty())
      Add("fixed.data_dir", "dataset imagefolder needs data_dir, the directory that contains train and val");
    if (run.dataset() == "tokens" && run.data_dir().empty())
      Add("fixed.data_dir",
          "dataset tokens needs data_dir, the directory that contains train.bin and val.bin");
  }
  CheckImages(run, index);
  CheckTraining(run, index);
  if (run.cuda_graph() && run.last_batch() == "keep") {
    Add(grid_.Where("cuda_graph", index, "fixed.cuda_graph"),
        "cuda_graph needs equal batch sizes; use last_batch drop, or remove cuda_graph");
  }
  if (const auto [key, count] = RanksThatDivide(run);
      run.ranks() > 1 && count > 0 && run.ranks() % count != 0) {
    Add(grid_.Where(key, index, absl::StrCat("fixed.", key)),
        absl::StrCat(key, " ", count, " does not divide the ", run.ranks(),
                     " ranks; use a divisor of the number of ranks"));
  } else {
    CheckTensorRanks(run, index);
    CheckPipelineParts(run, index);
  }
  if (run.batch_per_rank() > 0 && run.accumulation_steps() > run.batch_per_rank()) {
    Add(grid_.Where("accumulation_steps", index, "fixed.accumulation_steps"),
        absl::StrCat("accumulation_steps ", run.accumulation_steps(), " must not exceed the ",
                     run.batch_per_rank(), " samples of a rank"));
  }
}

// Checks that PyTorch's pipelines can run the cell's number of parts of a batch.
void CellChecker::CheckPipelineParts(const RunSpec& run, const std::vector<int>& index) {
  if (!Reads(run, ParameterGroup::kPipeline) || RunsTrainer(run.engine()) || run.ranks() == 1) return;
  const int64_t slices = SlicesOf(run), stages = run.ranks() / slices;
  const int64_t parts = std::max(run.accumulation_steps(), 1);
  if (run.pipeline_schedule() != "gpipe" && parts < stages) {
    Add(grid_.Where("accumulation_steps", index, "fixed.accumulation_steps"),
        absl::StrCat("accumulation_steps ", parts, " is less than the ", stages, " stages, which engine ",
                     run.engine(), " cannot run with pipeline_schedule 1f1b; use at least ", stages,
                     ", pipeline_schedule gpipe, or native/pipeline"));
  } else if (run.global_batch() % (slices * parts) != 0) {
    Add(grid_.Where("accumulation_steps", index, "fixed.accumulation_steps"),
        absl::StrCat("accumulation_steps ", parts, " does not divide the ", run.global_batch() / slices,
                     " samples of a pipeline, which engine ", run.engine(),
                     " needs; use a divisor, or native/pipeline"));
  }
}

// Checks that the layers of the model can be divided among the cell's number of ranks.
void CellChecker::CheckTensorRanks(const RunSpec& run, const std::vector<int>& index) {
  const ModelInfo* model = FindModel(run.model());
  if (!Reads(run, ParameterGroup::kTensor) || model == nullptr || run.ranks() == 1) return;
  const int ranks = run.tensor_ranks() > 0 ? run.tensor_ranks() : run.ranks();
  const absl::string_view key = run.tensor_ranks() > 0 ? "tensor_ranks" : "ranks";
  const auto add = [&](absl::string_view why) {
    Add(grid_.Where(key, index, absl::StrCat("fixed.", key)),
        absl::StrCat(ranks, " ranks cannot divide the layers of ", run.model(), ", ", why));
  };
  if (model->heads > 0 && ranks > model->heads)
    add(absl::StrCat("which have ", model->heads, " heads; use tensor_ranks of at most ", model->heads));
  if (model->channels > 0 && model->channels % ranks != 0)
    add(absl::StrCat("some of which have ", model->channels, " channels; use tensor_ranks that divide ",
                     model->channels));
}

// Checks that lr_milestones suits the run, and that the model supports zero_gamma.
void CellChecker::CheckTraining(const RunSpec& run, const std::vector<int>& index) {
  if (ParseLrMilestones(run.lr_milestones())) {  // otherwise already reported
    std::string mistake = LrMilestonesMistake(run.lr_milestones(), run.lr_schedule(), run.epochs());
    if (!mistake.empty()) Add(grid_.Where("lr_milestones", index, "fixed.lr_milestones"), std::move(mistake));
  }
  const ModelInfo* model = FindModel(run.model());
  if (run.zero_gamma() && model != nullptr && !model->zero_gamma) {
    Add(grid_.Where("zero_gamma", index, "fixed.zero_gamma"),
        absl::StrCat("zero_gamma is for ResNets, not for model ", run.model(),
                     "; remove zero_gamma, or use for example resnet50"));
  }
}

// Checks that the data set's images or tokens suit the model.
void CellChecker::CheckImages(const RunSpec& run, const std::vector<int>& index) {
  const auto has_its_own = [&](absl::string_view key, absl::string_view takers) {
    Add(grid_.Where(key, index, absl::StrCat("fixed.", key)),
        absl::StrCat(key, " is for dataset ", takers, ", not ", run.dataset(), "; remove it"));
  };
  const bool sized = run.dataset() == "synthetic" || run.dataset() == "imagefolder";
  if (run.image_size() != 0 && !sized) return has_its_own("image_size", "synthetic or imagefolder");
  if (run.classes() != 0 && run.dataset() != "synthetic") return has_its_own("classes", "synthetic");

  const ModelInfo* model = FindModel(run.model());
  const bool tokens = HasTokens(run.dataset());
  for (const auto& [key, value] :
       {std::pair("sequence_length", run.sequence_length()), {"vocabulary", run.vocabulary()}}) {
    if (value != 0 && !tokens) return has_its_own(key, "tokens or synthetic-tokens");
  }
  if (model == nullptr) return;
  if (tokens != (model->context > 0)) {
    return Add(grid_.Where("model", index, "fixed.model"),
               absl::StrCat("model ", run.model(), " trains on ", tokens ? "images" : "tokens",
                            ", not on dataset ", run.dataset(), "; use dataset ",
                            tokens ? "cifar10, imagefolder or synthetic" : "tokens or synthetic-tokens"));
  }
  if (tokens && run.sequence_length() > model->context) {
    return Add(grid_.Where("sequence_length", index, "fixed.sequence_length"),
               absl::StrCat("model ", run.model(), " takes samples of at most ", model->context,
                            " tokens, not ", run.sequence_length()));
  }
  const int side = run.image_size() != 0 ? run.image_size() : kCifarImage;
  if (side >= model->smallest_image) return;
  Add(grid_.Where("model", index, "fixed.model"),
      absl::StrCat("model ", run.model(), " needs images of at least ", model->smallest_image, " x ",
                   model->smallest_image, " pixels, those of ", run.dataset(), " have ", side, " x ", side,
                   "; ",
                   sized ? "set image_size: " : "use dataset synthetic or imagefolder with image_size: ",
                   model->smallest_image));
}

// If the study measures communication, refuses engines without baselines, because the curve could not
// show their cost.
void CellChecker::CheckCommunication(const RunSpec& run, const std::vector<int>& index) {
  const std::string& engine = run.engine();
  if (!spec_.measure().communication() || run.ranks() == 1 || OverlapsCommunication(engine) ||
      IsBaselineEngine(engine)) {
    return;
  }
  Add(grid_.Where("engine", index, "measure.communication"),
      absl::StrCat("measure: {communication: true} does not support engine ", engine,
                   "; measure native/ddp or native/horovod, or remove communication"));
}

}  // namespace scalelab
