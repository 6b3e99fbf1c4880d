#include "worker/trainer/train_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/evaluation.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/metrics/parameter_hash.h"
#include "worker/trainer/metrics/run_meter.h"
#include "worker/trainer/metrics/stopwatch.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

at::Device ResolveDevice(const TrainingSpec& spec) {
  if (spec.device == "cuda") {
    throw TrainerError("device \"cuda\" is not part of this build: set device to \"cpu\" or \"auto\"");
  }
  return at::kCPU;
}

at::MemoryFormat ResolveMemoryFormat(const TrainingSpec& spec) {
  // All models here are convolutional, and oneDNN is half as fast again with channels last.
  return spec.memory_format == "contiguous" ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
}

int64_t StepsPerEpoch(const TrainingSpec& spec, int64_t samples) {
  if (samples < spec.global_batch) {
    throw TrainerError("the training set has " + std::to_string(samples) +
                           " samples, fewer than one global batch of " + std::to_string(spec.global_batch) +
                           ": use a smaller global_batch or more train_samples",
                       ErrorKind::kData);
  }
  return samples / spec.global_batch;
}

// Sums over the ranks of an epoch's totals.
struct EpochTotals {
  double loss = 0, correct = 0, samples = 0;

  void SumOverRanks(Communicator& communicator) {
    at::Tensor sums = torch::tensor({loss, correct, samples}, at::kDouble);
    communicator.AllReduce(sums, ReduceOp::kSum);
    loss = sums[0].item<double>(), correct = sums[1].item<double>(), samples = sums[2].item<double>();
  }
};

std::vector<double> AllGatherNumber(Communicator& communicator, double mine) {
  std::vector<double> result;
  for (const std::string& bytes :
       communicator.AllGather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    std::memcpy(&result.emplace_back(), bytes.data(), sizeof(double));
  }
  return result;
}

void ReportStep(EventWriter& events, int rank, int64_t epoch, int64_t step, const StepTimes& times,
                int64_t bytes, double loss, double rate) {
  const Metric metrics[] = {{"step/total_s", times.total},
                            {"step/data_s", times.data},
                            {"step/forward_s", times.forward},
                            {"step/backward_s", times.backward},
                            {"step/comm_exposed_s", times.comm_exposed},
                            {"step/optimizer_s", times.optimizer},
                            {"comm/bytes", static_cast<double>(bytes)},
                            {"train/loss", loss},
                            {"train/learning_rate", rate}};
  events.Step(epoch, step, std::span(metrics).first(rank == 0 ? 9 : 8));
}

}  // namespace

void Train(const TrainingSpec& spec, Communicator& communicator, EventWriter& events) {
  const int rank = communicator.rank();
  const at::Device device = ResolveDevice(spec);
  const Precision precision = ParsePrecision(spec.precision, device);
  const at::MemoryFormat format = ResolveMemoryFormat(spec);
  ConfigureCpu(static_cast<int>(spec.cpus_per_rank));

  const Dataset data = LoadDataset(spec);
  const int64_t steps_per_epoch = StepsPerEpoch(spec, data.train.size);
  const int64_t all_steps = spec.epochs * steps_per_epoch;
  const int64_t total_steps = spec.max_steps == 0 ? all_steps : std::min(all_steps, spec.max_steps);

  torch::manual_seed(static_cast<uint64_t>(spec.seed));
  const std::shared_ptr<Model> model =
      MakeModel(spec.model, kClasses, {ParseBatchNormMode(spec.batch_norm), &communicator});
  for (at::Tensor& parameter : model->parameters()) {
    // Before buckets are made: gradients follow the strides of their parameters.
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
  const std::unique_ptr<Strategy> strategy = MakeStrategy(spec, *model, communicator);
  Sgd optimizer(model->parameters(), spec.momentum, spec.weight_decay, spec.decay_norm);
  const uint64_t seed = static_cast<uint64_t>(spec.seed);
  TrainLoader loader(data.train,
                     ShardedSampler(data.train.size, spec.global_batch, rank, communicator.size(), seed),
                     {spec.batch_per_rank, total_steps, spec.augment, seed, format});

  RunMeter meter(spec.warmup_steps, spec.global_batch);
  Evaluation evaluation;
  double train_loss = 0, training_seconds = 0, cpu_seconds = 0, time_to_accuracy = -1;
  communicator.Barrier();  // ranks load at their own pace; none should wait for that in its first step
  events.Start(rank, communicator.size(), total_steps);
  Stopwatch run_watch;
  double run_seconds = 0;

  for (int64_t step = 0, epoch = 0; step < total_steps; ++epoch) {
    const int64_t epoch_end = std::min(total_steps, (epoch + 1) * steps_per_epoch);
    EpochTotals totals;
    double epoch_seconds = 0;
    const double cpu_before = ProcessCpuSeconds();
    Stopwatch step_watch;  // steps follow each other without a gap; the pause of an evaluation lies before it

    for (; step < epoch_end; ++step) {
      Stopwatch watch;
      StepTimes times;
      const double rate = LearningRate(spec, step, steps_per_epoch);
      const Batch& batch = loader.Next();
      times.data = watch.Lap();

      BackwardCost cost;
      std::vector<at::Tensor> logits, losses;
      const std::vector<at::Tensor> images = at::tensor_split(batch.images, spec.accumulation_steps);
      const std::vector<at::Tensor> labels = at::tensor_split(batch.labels, spec.accumulation_steps);
      for (size_t part = 0; part < images.size(); ++part) {
        at::Tensor loss;
        {
          const PrecisionScope scope(precision);
          logits.push_back(model->forward(images[part]));
          loss = at::cross_entropy_loss(logits[part], labels[part]);
        }
        // Parts add up to the mean over the batch.
        if (images.size() > 1) {
          loss = loss * (static_cast<double>(labels[part].numel()) / static_cast<double>(spec.batch_per_rank));
        }
        losses.push_back(loss.detach());
        times.forward += watch.Lap();
        if (part + 1 < images.size()) {
          strategy->Accumulate(loss);
          times.backward += watch.Lap();
        } else {
          cost = strategy->Backward(loss);
          times.backward += cost.compute_seconds;
        }
      }
      times.comm_exposed = cost.exposed_seconds;
      watch.Lap();

      optimizer.Step(rate);
      times.optimizer = watch.Lap();

      double batch_loss = 0;
      for (size_t part = 0; part < losses.size(); ++part) {
        batch_loss += losses[part].item<double>();
        totals.correct += static_cast<double>(CountCorrect(logits[part], labels[part]));
      }
      totals.loss += batch_loss * static_cast<double>(spec.batch_per_rank);
      totals.samples += static_cast<double>(spec.batch_per_rank);
      times.total = step_watch.Lap();
      epoch_seconds += times.total;
      meter.Add(times);
      ReportStep(events, rank, epoch, step, times, cost.bytes, batch_loss, rate);
    }
    run_seconds = run_watch.Seconds();
    cpu_seconds += ProcessCpuSeconds() - cpu_before;
    training_seconds += epoch_seconds;

    totals.SumOverRanks(communicator);
    train_loss = totals.loss / totals.samples;
    std::vector<Metric> metrics = {{"epoch/seconds", epoch_seconds},
                                   {"epoch/throughput", totals.samples / epoch_seconds},
                                   {"epoch/train_loss", train_loss},
                                   {"epoch/train_accuracy", totals.correct / totals.samples}};
    if (spec.evaluate) {
      strategy->SyncBuffers();
      evaluation = Evaluate(*model, data.test, precision, format, communicator);
      metrics.insert(metrics.end(), {{"eval/loss", evaluation.loss},
                                     {"eval/accuracy", evaluation.accuracy},
                                     {"eval/samples", static_cast<double>(evaluation.samples)},
                                     {"eval/seconds", evaluation.seconds}});
      const bool reached = spec.target_accuracy > 0 && evaluation.accuracy >= spec.target_accuracy;
      if (reached && time_to_accuracy < 0) time_to_accuracy = training_seconds;
    }
    events.Epoch(epoch, metrics);
  }

  std::vector<Metric> metrics;
  meter.AppendTo(metrics, steps_per_epoch * spec.global_batch);
  if (meter.measured() == 0 && rank == 0) {
    std::fprintf(stderr, "nothing was measured: the run has %lld steps and warmup_steps is %lld\n",
                 static_cast<long long>(meter.steps()), static_cast<long long>(spec.warmup_steps));
  }
  metrics.emplace_back("run/peak_memory_bytes", static_cast<double>(PeakResidentBytes()));
  metrics.emplace_back("run/cpu_utilisation",
                       cpu_seconds / (training_seconds * static_cast<double>(spec.cpus_per_rank)));
  if (spec.evaluate) metrics.emplace_back("run/accuracy", evaluation.accuracy);
  metrics.emplace_back("run/train_loss", train_loss);
  if (time_to_accuracy >= 0) metrics.emplace_back("run/time_to_accuracy_s", time_to_accuracy);
  metrics.emplace_back("run/straggler_skew",
                       StragglerSkew(AllGatherNumber(communicator, meter.MeanCompute())));
  metrics.emplace_back("run/steps", static_cast<double>(meter.steps()));
  metrics.emplace_back("run/seconds", run_seconds);
  strategy->AppendMetrics(metrics);
  events.Finish(metrics, strategy->keeps_ranks_equal() ? ParameterHash(model->parameters()) : "");
}

}  // namespace scalelab::trainer
