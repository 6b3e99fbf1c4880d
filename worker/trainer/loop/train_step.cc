#include "worker/trainer/loop/train_step.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "worker/trainer/errors.h"
#include "worker/trainer/loop/evaluation.h"
#include "worker/trainer/metrics/kept_allocations.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/models/weight_copies.h"

namespace scalelab::trainer {
namespace {

// Steps before recording. Buckets are final after the second step, and cuDNN has chosen its algorithms.
constexpr int64_t kStepsBeforeRecording = 4;
// The step in which activations are measured. The first step may also allocate memory that later steps use again.
constexpr int64_t kMeasuredStep = 2;

// Divides the rows of a tensor evenly among at most `most` parts of at least one row.
std::vector<at::Tensor> PartsOf(const at::Tensor& rows, int64_t most) {
  if (rows.size(0) == 0) return {};
  return at::tensor_split(rows, std::min(most, rows.size(0)));
}

}  // namespace

Communicator* LossScaleCommunicator(const Strategy& strategy, Communicator& communicator) {
  // Equal gradients have the same values that are not finite.
  const bool equal = strategy.stored() == Strategy::Stored::kOnce;
  return communicator.size() > 1 && strategy.averages_gradients() && !equal ? &communicator : nullptr;
}

// The interface of a step that the strategy uses.
class TrainStep::Task : public StepTask {
 public:
  Task(TrainStep& owner, const Batch& batch, StepRecord& record)
      : owner_(owner),
        record_(record),
        samples_(batch.samples()),
        most_parts_(owner.MostParts(record.global_samples)),
        images_(PartsOf(batch.images, most_parts_)),
        labels_(PartsOf(batch.labels, most_parts_)),
        together_(owner.communicator_.size() > 1 && owner.strategy_.averages_gradients()),
        agreeing_(LossScaleCommunicator(owner.strategy_, owner.communicator_)),
        rank_square_(owner.unknown_),
        mean_square_(owner.unknown_),
        kept_(images_.size()) {}

  int64_t parts() const override { return std::ssize(images_); }
  int64_t most_parts() const override { return most_parts_; }
  at::Tensor Forward(int64_t part) override;
  at::Tensor Input(int64_t part) const override { return images_[part]; }
  at::Tensor Run(int64_t part, const std::function<at::Tensor()>& stage, bool last) override;
  void BackwardEnded(int64_t part) override { kept_[part] = 0; }
  void Measured(BackwardCost cost) override;
  void Update() override;
  double rate() const override { return record_.rate; }
  StepMarks& marks() override { return record_.marks; }

  // Returns the numbers of the step's event in the order of StepNumber. The step must have at least one part.
  at::Tensor Numbers() const;

 private:
  // Measures the memory that forward of a micro-batch keeps, in one step of the run. It must be destroyed after all objects that
  // free memory at the end of forward.
  class Forwarding {
   public:
    Forwarding(Task& task, int64_t part) : task_(task), part_(part) {
      if (task.owner_.steps_ == kMeasuredStep) allocations_.emplace(task.owner_.device_.type());
    }
    ~Forwarding() {
      if (!allocations_) return;
      task_.kept_[part_] = allocations_->bytes();
      int64_t& most = task_.owner_.activations_;
      most = std::max(most, std::accumulate(task_.kept_.begin(), task_.kept_.end(), int64_t{0}));
    }
    Forwarding(const Forwarding&) = delete;
    Forwarding& operator=(const Forwarding&) = delete;

   private:
    Task& task_;
    const int64_t part_;
    std::optional<KeptAllocations> allocations_;
  };

  // Returns the result of Forward for the model's output `out`: the weighted and scaled loss.
  at::Tensor LossOf(const TrainingLogits& out, int64_t part);

  TrainStep& owner_;
  StepRecord& record_;
  const int64_t samples_, most_parts_;
  const std::vector<at::Tensor> images_, labels_;
  const bool together_;           // gradients are averaged over ranks, which therefore skip the same steps
  Communicator* const agreeing_;  // see LossScaleCommunicator
  std::vector<at::Tensor> logits_, losses_;
  at::Tensor rank_square_, mean_square_;
  std::vector<int64_t> kept_;  // by micro-batch: the bytes that forward has kept for its backward
};

at::Tensor TrainStep::Task::Forward(int64_t part) {
  if (part > 0) BackwardEnded(part - 1);
  const Forwarding forwarding(*this, part);
  const PrecisionScope scope(owner_.precision_, owner_.device_.type());
  const WeightCopies::Scope copies(owner_.copies_.get());
  return LossOf(owner_.strategy_.Forward(owner_.model_, images_[part]), part);
}

at::Tensor TrainStep::Task::Run(int64_t part, const std::function<at::Tensor()>& stage, bool last) {
  const Forwarding forwarding(*this, part);
  const PrecisionScope scope(owner_.precision_, owner_.device_.type());
  const at::Tensor output = stage();
  if (last) return LossOf({.logits = output, .auxiliary = {}}, part);
  record_.marks.Mark(&StepTimes::forward);
  return output;
}

at::Tensor TrainStep::Task::LossOf(const TrainingLogits& out, int64_t part) {
  logits_.push_back(out.logits);
  at::Tensor loss = MeanLoss(out.logits, labels_[part]);
  if (out.auxiliary.defined()) {
    loss = loss + kAuxiliaryWeight * MeanLoss(out.auxiliary, labels_[part]);
  }
  // Weight the loss of the part, so that the losses of all parts add up to the mean over the batch.
  if (images_.size() > 1) {
    loss = loss * (static_cast<double>(labels_[part].size(0)) / static_cast<double>(samples_));
  }
  losses_.push_back(loss.detach());
  // Gradients are averaged over ranks, so the loss is weighted by the rank's share of the samples.
  const double share = !together_ ? 1
                                  : static_cast<double>(samples_ * owner_.slices_) /
                                        static_cast<double>(record_.global_samples);
  if (share != 1) loss = loss * share;
  record_.marks.Mark(&StepTimes::forward);
  return owner_.scaler_.Scale(loss);
}

void TrainStep::Task::Measured(BackwardCost cost) {
  record_.marks.Mark(&StepTimes::backward, std::move(cost.computed));
  record_.marks.Mark(&StepTimes::comm_exposed);
  record_.marks.Communicated(cost.spans);
  record_.bytes = cost.bytes;
  if (cost.mean_square.defined()) {
    mean_square_ = cost.mean_square;
    rank_square_ = owner_.SquareOfRank(cost.rank_square, cost.mean_square);
  }
}

void TrainStep::Task::Update() {
  LossScaler& scaler = owner_.scaler_;
  if (scaler.scale().defined()) {  // read the scale before Unscale, which may change it
    const at::Tensor squared_scale = scaler.scale().to(at::kDouble).square().squeeze();
    rank_square_ = rank_square_ / squared_scale;
    mean_square_ = mean_square_ / squared_scale;
  }
  owner_.optimizer_.Apply(scaler.Unscale(owner_.trained_, agreeing_));
  record_.marks.Mark(&StepTimes::optimizer);
}

at::Tensor TrainStep::Task::Numbers() const {
  at::Tensor loss = at::zeros({}, owner_.unknown_.options()), correct = loss;
  for (size_t part = 0; part < losses_.size(); ++part) {
    loss = loss + losses_[part];
    correct = correct + CountCorrect(logits_[part], labels_[part]);
  }
  std::vector<at::Tensor> numbers = {loss, correct, rank_square_, mean_square_};
  const LossScaler& scaler = owner_.scaler_;
  if (scaler.scale().defined()) {
    numbers.push_back(scaler.scale().to(at::kDouble).squeeze());
    numbers.push_back(scaler.left_out().to(at::kDouble).squeeze());
  }
  const at::Tensor all = at::stack(numbers);
  owner_.strategy_.ShareResult(all.narrow(0, kLoss, 2));
  return all;
}

TrainStep::TrainStep(const TrainingSpec& spec, Precision precision, at::Device device, Model& model,
                     Strategy& strategy, Communicator& communicator)
    : spec_(spec),
      precision_(precision),
      device_(device),
      model_(model),
      strategy_(strategy),
      communicator_(communicator),
      slices_(strategy.SliceOf(communicator.rank(), communicator.size()).count),
      trained_(strategy.Trained()),
      copies_(device.is_cuda() && ComputeType(precision) != at::kFloat &&
                      strategy.only_optimizer_changes_parameters()
                  ? std::make_unique<WeightCopies>(trained_, ComputeType(precision))
                  : nullptr),
      optimizer_(trained_, spec.momentum, spec.weight_decay, spec.decay_norm, device.is_cuda()),
      scaler_(precision == Precision::kAmpFp16, device),
      unknown_(at::full({}, std::nan(""), at::TensorOptions(device).dtype(at::kDouble))),
      left_{.marks = StepMarks(device)} {
  if (copies_ != nullptr)
    optimizer_.WriteCopies([&](const at::Tensor& weight) { return copies_->Of(weight); });
}

TrainStep::~TrainStep() = default;

int64_t TrainStep::MostParts(int64_t global_samples) const {
  // Slices differ by at most one sample. Synchronous batch normalization communicates in each micro-batch, so all ranks
  // must have as many as the smallest slice allows.
  const int64_t samples =
      spec_.batch_norm == "sync" ? global_samples / slices_ : (global_samples + slices_ - 1) / slices_;
  return std::min(spec_.accumulation_steps, samples);
}

at::Tensor TrainStep::SquareOfRank(const at::Tensor& of_slice, const at::Tensor& of_mean) const {
  const int64_t ranks = communicator_.size();
  if (slices_ == ranks) return of_slice;
  // The difference is proportional to 1 / samples - 1 / global_batch.
  return of_mean + (of_slice - of_mean) * (static_cast<double>(ranks - 1) / static_cast<double>(slices_ - 1));
}

void TrainStep::Run(const Batch& batch, double rate, StepRecord& record) {
  record.rate = rate;
  optimizer_.SetRate(strategy_.RateOfUpdate(rate));
  if (copies_ != nullptr && steps_ == 0) copies_->Refresh();  // a checkpoint may have changed the weights
  if (steps_++ == kStepsBeforeRecording && spec_.cuda_graph) Record(batch);
  if (!graph_) return Body(batch, record);
  const at::NoGradGuard no_grad;
  input_.images.copy_(batch.images, /*non_blocking=*/true);
  input_.labels.copy_(batch.labels, /*non_blocking=*/true);
  communicator_.Replay([&] { graph_->Replay(); });
  record.whole = true;
  record.bytes = left_.bytes;
  record.numbers = left_.numbers;
}

void TrainStep::Body(const Batch& batch, StepRecord& record) {
  Task task(*this, batch, record);
  strategy_.Step(task);
  if (task.parts() > 0) record.numbers = task.Numbers();
}

void TrainStep::AppendMemory(std::vector<Metric>& metrics) const {
  const std::vector<at::Tensor> parameters = model_.parameters();
  std::vector<at::Tensor> gradients, of_optimizer;
  double bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    bytes += static_cast<double>(parameter.nbytes());
    gradients.push_back(parameter.grad());
  }
  for (const at::Tensor& tensor : trained_) gradients.push_back(tensor.grad());
  for (const auto& [name, tensor] : optimizer_.State()) of_optimizer.push_back(tensor);
  const ModelMemory memory = strategy_.Memory({.parameters = BytesOf(parameters),
                                               .gradients = BytesOf(gradients),
                                               .optimizer = BytesOf(of_optimizer)}),
                    formula = strategy_.MemoryByFormula(bytes);
  metrics.insert(metrics.end(), {{"memory/parameters_bytes", memory.parameters},
                                 {"memory/gradients_bytes", memory.gradients},
                                 {"memory/optimizer_bytes", memory.optimizer},
                                 {"memory/parameters_ideal_bytes", formula.parameters},
                                 {"memory/gradients_ideal_bytes", formula.gradients},
                                 {"memory/optimizer_ideal_bytes", formula.optimizer}});
  if (activations_ > 0) metrics.emplace_back("memory/activations_bytes", static_cast<double>(activations_));
}

NamedTensors TrainStep::State() const {
  NamedTensors state;
  for (const auto& [name, tensor] : optimizer_.State()) state.emplace_back("optimizer/" + name, tensor);
  for (const auto& [name, tensor] : scaler_.State()) state.emplace_back("scaler/" + name, tensor);
  return state;
}

std::string TrainStep::WhyNotRecorded() const {
  if (!device_.is_cuda()) return "the device is a CPU";
  if (!communicator_.CanBeRecorded()) {
    return "backend \"" + std::string(communicator_.name()) + "\" communicates from the host; use nccl";
  }
  return strategy_.WhyNotRecorded();
}

void TrainStep::Record(const Batch& batch) {
  if (const std::string why = WhyNotRecorded(); !why.empty()) {
    std::fprintf(stderr, "cuda_graph is set, but steps are not recorded: %s\n", why.c_str());
    return;
  }
  input_ = {batch.images.clone(), batch.labels.clone()};
  left_.global_samples = spec_.global_batch;
  try {
    graph_ = std::make_unique<StepGraph>([&] { Body(input_, left_); });
  } catch (const c10::Error& e) {
    // This rank continues without a graph. The other ranks may still replay their graphs, because the same
    // operations run in the same order with and without a graph.
    std::fprintf(stderr, "cuda_graph is set, but the step cannot be recorded, so steps run as usual: %s\n",
                 FirstLine(e.what_without_backtrace()).c_str());
    strategy_.DiscardStep();
    input_ = {};
  }
}

}  // namespace scalelab::trainer
