#include "worker/trainer/loop/train_step.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "worker/trainer/errors.h"
#include "worker/trainer/loop/evaluation.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

// Steps before recording. Buckets are final after the second step, and cuDNN has chosen its algorithms.
constexpr int64_t kStepsBeforeRecording = 4;

}  // namespace

TrainStep::TrainStep(const TrainingSpec& spec, Precision precision, at::Device device, Model& model,
                     Strategy& strategy, Communicator& communicator)
    : spec_(spec),
      precision_(precision),
      device_(device),
      model_(model),
      strategy_(strategy),
      communicator_(communicator),
      optimizer_(model.parameters(), spec.momentum, spec.weight_decay, spec.decay_norm, device.is_cuda()),
      scaler_(precision == Precision::kAmpFp16, device),
      unknown_(at::full({}, std::nan(""), at::TensorOptions(device).dtype(at::kDouble))),
      left_{.marks = StepMarks(device)} {}

void TrainStep::Run(const Batch& batch, double rate, StepRecord& record) {
  optimizer_.SetRate(rate);
  if (spec_.cuda_graph && steps_++ == kStepsBeforeRecording) Record(batch);
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
  std::vector<at::Tensor> logits, losses;
  at::Tensor rank_square = unknown_, mean_square = unknown_;
  const int64_t samples = batch.labels.numel(), split = std::min(spec_.accumulation_steps, samples);
  const std::vector<at::Tensor> images = at::tensor_split(batch.images, split);
  const std::vector<at::Tensor> labels = at::tensor_split(batch.labels, split);
  const bool together = communicator_.size() > 1 && strategy_.keeps_ranks_equal();
  // Gradients are averaged over ranks, so the loss is weighted by the rank's share of the samples.
  const double share = !together ? 1
                                 : static_cast<double>(samples * communicator_.size()) /
                                       static_cast<double>(record.global_samples);
  for (size_t part = 0; part < images.size(); ++part) {
    at::Tensor loss;
    {
      const PrecisionScope scope(precision_, device_.type());
      const TrainingLogits out = model_.ForwardTraining(images[part]);
      logits.push_back(out.logits);
      loss = at::cross_entropy_loss(out.logits, labels[part]);
      if (out.auxiliary.defined()) {
        loss = loss + kAuxiliaryWeight * at::cross_entropy_loss(out.auxiliary, labels[part]);
      }
    }
    // The parts must add up to the mean over the batch.
    if (images.size() > 1) {
      loss = loss * (static_cast<double>(labels[part].numel()) / static_cast<double>(samples));
    }
    losses.push_back(loss.detach());
    if (share != 1) loss = loss * share;
    record.marks.Mark(&StepTimes::forward);
    loss = scaler_.Scale(loss);
    if (part + 1 < images.size()) {
      strategy_.Accumulate(loss);
      record.marks.Mark(&StepTimes::backward);
    } else {
      BackwardCost cost = strategy_.Backward(loss);
      record.marks.Mark(&StepTimes::backward, std::move(cost.computed));
      record.marks.Mark(&StepTimes::comm_exposed);
      record.marks.Communicated(std::move(cost.spans));
      record.bytes = cost.bytes;
      if (cost.mean_square.defined()) {
        rank_square = cost.rank_square;
        mean_square = cost.mean_square;
      }
    }
  }

  if (scaler_.scale().defined()) {  // before Unscale, which may change it
    const at::Tensor squared_scale = scaler_.scale().to(at::kDouble).square().squeeze();
    rank_square = rank_square / squared_scale;
    mean_square = mean_square / squared_scale;
  }
  // Ranks that train together skip the same steps.
  optimizer_.Apply(scaler_.Unscale(model_.parameters(), together ? &communicator_ : nullptr));
  record.marks.Mark(&StepTimes::optimizer);

  at::Tensor loss = losses[0].to(at::kDouble), correct = CountCorrect(logits[0], labels[0]).to(at::kDouble);
  for (size_t part = 1; part < losses.size(); ++part) {
    loss = loss + losses[part];
    correct = correct + CountCorrect(logits[part], labels[part]);
  }
  std::vector<at::Tensor> numbers = {loss, correct, rank_square, mean_square};
  if (scaler_.scale().defined()) {
    numbers.push_back(scaler_.scale().to(at::kDouble).squeeze());
    numbers.push_back(scaler_.left_out().to(at::kDouble).squeeze());
  }
  record.numbers = at::stack(numbers);
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
    throw TrainerError("the step cannot be recorded as a CUDA graph (" +
                       FirstLine(e.what_without_backtrace()) + "): remove cuda_graph");
  }
}

}  // namespace scalelab::trainer
