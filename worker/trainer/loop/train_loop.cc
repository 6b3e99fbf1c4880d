#include "worker/trainer/loop/train_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/trainer/checkpoint/parameters.h"
#include "worker/trainer/data/random.h"
#include "worker/trainer/data/train_loader.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/loop/checkpoints.h"
#include "worker/trainer/loop/evaluation.h"
#include "worker/trainer/loop/run_state.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/metrics/parameter_hash.h"
#include "worker/trainer/metrics/run_meter.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/metrics/stopwatch.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/optim/schedule.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {
namespace {

at::MemoryFormat ResolveMemoryFormat(const TrainingSpec& spec) {
  // With channels last, convolutions of oneDNN are 1.5 times as fast and those of cuDNN can use tensor cores.
  // Models without images ignore the format.
  return spec.memory_format == "contiguous" ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
}

ShardedSampler MakeSampler(const TrainingSpec& spec, int64_t samples, DataSlice slice) {
  ShardedSampler sampler(samples, spec.global_batch, slice.index, slice.count,
                         static_cast<uint64_t>(spec.seed),
                         spec.last_batch == "keep" ? LastBatch::kKeep : LastBatch::kDrop);
  if (sampler.steps_per_epoch() == 0) {
    throw TrainerError("the training set has " + std::to_string(samples) +
                           " samples, fewer than one global batch of " + std::to_string(spec.global_batch) +
                           ": use a smaller global_batch or more train_samples",
                       ErrorKind::kData);
  }
  return sampler;
}

// Returns the sums of an epoch over all ranks. `copies` ranks train on each sample, which counts once. The
// seconds are those of this rank.
EpochSums SumOverRanks(const EpochSums& mine, int copies, Communicator& communicator) {
  at::Tensor sums = at::tensor({mine.loss, mine.correct, mine.samples}, at::kDouble);
  communicator.AllReduce(sums, ReduceOp::kSum);
  sums.div_(copies);
  EpochSums all = mine;
  all.loss = sums[0].item<double>(), all.correct = sums[1].item<double>(),
  all.samples = sums[2].item<double>();
  return all;
}

std::vector<double> AllGatherNumber(Communicator& communicator, double mine) {
  std::vector<double> result;
  for (const std::string& bytes :
       communicator.AllGather({reinterpret_cast<const char*>(&mine), sizeof mine})) {
    std::memcpy(&result.emplace_back(), bytes.data(), sizeof(double));
  }
  return result;
}

// Copies the norms of gradients from the metrics of rank 0 to those of the ranks that do not train, because
// the coordinator needs them from all ranks. Collective.
void ShareNorms(bool trains, Communicator& communicator, std::vector<Metric>& metrics) {
  constexpr double kNone = -1;
  for (const std::string_view key : {"run/rank_gradient_norm2", "run/mean_gradient_norm2"}) {
    const auto found = std::ranges::find(metrics, key, &Metric::first);
    const double mine = found == metrics.end() ? kNone : found->second;
    const double of_first = AllGatherNumber(communicator, mine).front();
    if (!trains && of_first >= 0) metrics.emplace_back(key, of_first);
  }
}

}  // namespace

void SeedRank(const TrainingSpec& spec, int rank) {
  // Keys of samples start with the epoch (DrawCropFlip), which is never UINT64_MAX.
  Random random(static_cast<uint64_t>(spec.seed), UINT64_MAX, static_cast<uint64_t>(rank));
  at::manual_seed(random.Next());
}

void Train(const TrainingSpec& spec, at::Device device, Communicator& communicator, EventWriter& events) {
  const int rank = communicator.rank();
  Checkpoints checkpoints(spec, communicator, events);
  const Precision precision = ParsePrecision(spec.precision, device);
  const at::MemoryFormat format = ResolveMemoryFormat(spec);
  ConfigureCpu(static_cast<int>(spec.cpus_per_rank));
  PrepareDevice(device, precision == Precision::kTf32);
  const DeviceStream stream(device);  // a CUDA graph cannot be recorded on the default stream
  const StreamScope on_stream(stream);

  const Dataset data = LoadDataset(spec);
  const std::string parameters_path = spec.save_parameters ? ParametersPath() : "";
  const std::shared_ptr<Model> model = MakeInitialModel(spec, data.train.shape, &communicator);
  model->to(device);
  for (at::Tensor& parameter : model->parameters()) {
    // Do this before the strategy makes buckets of gradients, because a gradient has the strides
    // of its parameter.
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
  const std::unique_ptr<Strategy> strategy = MakeStrategy(
      spec, *model, communicator, [&] { return MakeInitialModel(spec, data.train.shape, &communicator); });
  std::optional<Checkpoint> checkpoint = checkpoints.LoadNewest();
  if (checkpoint) RunState::Prepare(*checkpoint, *strategy, communicator);
  SeedRank(spec, rank);
  const DataSlice slice = strategy->SliceOf(rank, communicator.size());
  const bool trains = slice.index >= 0;
  const ShardedSampler sampler = MakeSampler(spec, data.train.size, slice);
  const int64_t steps_per_epoch = sampler.steps_per_epoch();
  const int64_t all_steps = spec.epochs * steps_per_epoch;
  const int64_t total_steps = spec.max_steps == 0 ? all_steps : std::min(all_steps, spec.max_steps);

  TrainStep train_step(spec, precision, device, *model, *strategy, communicator);
  RunMeter meter(spec.warmup_steps, spec.global_batch);
  RunState state(device, *model, train_step, *strategy, meter, communicator, steps_per_epoch);
  RunTotals totals;
  EpochSums begun;  // sums of the epoch in which the checkpoint was written
  int64_t first_step = 0;
  if (checkpoint) {
    state.Restore(*checkpoint, static_cast<uint64_t>(spec.seed), begun, totals);
    first_step = checkpoint->step;
    checkpoint.reset();  // frees its memory
  }
  std::optional<TrainLoader> loader;
  if (trains) {
    loader.emplace(data.train, sampler,
                   TrainLoader::Options{.batch_per_rank = (spec.global_batch + slice.count - 1) / slice.count,
                                        .total_steps = total_steps,
                                        .augment = spec.augment,
                                        .seed = static_cast<uint64_t>(spec.seed),
                                        .format = format,
                                        .device = device,
                                        .first_step = first_step,
                                        .type = ComputeType(precision)});
  }
  const Batch no_samples{at::empty({0}), at::empty({0}, at::kLong)};

  StepLog log(events, meter, device, rank);
  communicator.Barrier();  // ranks load at different speeds, which must not delay the first step
  totals.lost_seconds = checkpoints.Begin(totals.run_seconds);
  events.Start(rank, communicator.size(), total_steps, DeviceName(device), first_step);
  Stopwatch run_watch;
  const double seconds_before = totals.run_seconds, written_before = totals.checkpoint_seconds;
  const auto write_checkpoint = [&](int64_t steps, const EpochSums& sums) {
    totals.run_seconds = seconds_before + run_watch.Seconds();
    totals.checkpoint_seconds = written_before + checkpoints.seconds();
    checkpoints.Save(steps, state.Shared(), state.Mine(sums, totals));
    checkpoints.EndIfSignalled();
  };

  for (int64_t step = first_step, epoch = step / steps_per_epoch; step < total_steps; ++epoch) {
    const int64_t epoch_end = std::min(total_steps, (epoch + 1) * steps_per_epoch);
    double cpu_before = ProcessCpuSeconds();
    log.BeginEpoch(std::exchange(begun, {}));  // excludes the time of the evaluation
    const Stopwatch epoch_watch;
    for (; step < epoch_end; ++step) {
      if (step > epoch * steps_per_epoch && step > first_step && checkpoints.Due(step)) {
        const EpochSums sums = log.EndEpoch();
        totals.cpu_seconds += ProcessCpuSeconds() - cpu_before;
        write_checkpoint(step, sums);
        cpu_before = ProcessCpuSeconds();
        log.BeginEpoch(sums);
      }
      const double rate = LearningRate(spec, step, steps_per_epoch);
      StepRecord record{.epoch = epoch, .step = step, .rate = rate, .marks = StepMarks(device)};
      const Batch& batch = trains ? loader->Next() : no_samples;
      record.samples = batch.samples();
      record.global_samples = sampler.GlobalBatch(step % steps_per_epoch);
      record.marks.Mark(&StepTimes::data);
      train_step.Run(batch, rate, record);
      if (trains) log.Add(std::move(record));
    }
    strategy->EndEpoch();
    EpochSums mine = log.EndEpoch();
    if (!trains) mine.seconds = epoch_watch.Seconds();
    totals.run_seconds = seconds_before + run_watch.Seconds();
    totals.cpu_seconds += ProcessCpuSeconds() - cpu_before;
    totals.training_seconds += mine.seconds;
    totals.left_out += mine.left_out;

    const EpochSums all = SumOverRanks(mine, RanksOfASlice(*strategy, communicator.size()), communicator);
    totals.samples += all.samples;
    totals.train_loss = all.loss / all.samples;
    std::vector<Metric> metrics = {{"epoch/seconds", mine.seconds},
                                   {"epoch/throughput", all.samples / mine.seconds},
                                   {"epoch/train_loss", totals.train_loss},
                                   {"epoch/train_accuracy", all.correct / all.samples}};
    if (spec.evaluate) {
      strategy->SyncBuffers();
      const Evaluation evaluation = Evaluate(*model, data.test, precision, device, format, communicator);
      metrics.insert(metrics.end(), {{"eval/loss", evaluation.loss},
                                     {"eval/accuracy", evaluation.accuracy},
                                     {"eval/samples", static_cast<double>(evaluation.samples)},
                                     {"eval/seconds", evaluation.seconds}});
      totals.accuracy = evaluation.accuracy;
      const bool reached = spec.target_accuracy > 0 && evaluation.accuracy >= spec.target_accuracy;
      if (reached && totals.time_to_accuracy < 0) {
        totals.time_to_accuracy =
            totals.training_seconds + written_before + checkpoints.seconds() + totals.lost_seconds;
        totals.samples_to_accuracy = totals.samples;
      }
    }
    events.Epoch(epoch, metrics);
    if (step < total_steps && checkpoints.Due(step)) write_checkpoint(step, {});
  }

  std::vector<Metric> metrics;
  meter.AppendTo(metrics, sampler.samples_per_epoch());
  if (RanksOfASlice(*strategy, communicator.size()) * slice.count < communicator.size())
    ShareNorms(trains, communicator, metrics);
  if (meter.measured() == 0 && rank == 0) {
    std::fprintf(stderr, "nothing was measured: the run has %lld steps and warmup_steps is %lld\n",
                 static_cast<long long>(meter.steps()), static_cast<long long>(spec.warmup_steps));
  }
  metrics.emplace_back("run/peak_memory_bytes", static_cast<double>(PeakResidentBytes()));
  if (device.is_cuda()) {
    const DeviceMemory memory = PeakDeviceMemory(device);
    metrics.emplace_back("run/device_memory_bytes", static_cast<double>(memory.tensors));
    metrics.emplace_back("run/device_reserved_bytes", static_cast<double>(memory.reserved));
  }
  if (precision == Precision::kAmpFp16) metrics.emplace_back("run/steps_left_out", totals.left_out);
  metrics.emplace_back("run/cpu_utilisation", totals.cpu_seconds / (totals.training_seconds *
                                                                    static_cast<double>(spec.cpus_per_rank)));
  if (spec.evaluate) metrics.emplace_back("run/accuracy", totals.accuracy);
  metrics.emplace_back("run/train_loss", totals.train_loss);
  if (totals.time_to_accuracy >= 0) {
    metrics.emplace_back("run/time_to_accuracy_s", totals.time_to_accuracy);
    metrics.emplace_back("run/samples_to_accuracy", totals.samples_to_accuracy);
  }
  const double compute = trains ? meter.MeanCompute() : kDoesNotTrain;
  if (const auto skew = StragglerSkew(AllGatherNumber(communicator, compute)))
    metrics.emplace_back("run/straggler_skew", *skew);
  metrics.emplace_back("run/steps", static_cast<double>(meter.steps()));
  metrics.emplace_back("run/seconds", totals.run_seconds + totals.lost_seconds);
  if (checkpoints.on()) {
    metrics.emplace_back("run/checkpoint_seconds", written_before + checkpoints.seconds());
    metrics.emplace_back("run/lost_seconds", totals.lost_seconds);
  }
  train_step.AppendMemory(metrics);
  strategy->AppendMetrics(metrics);
  if (spec.save_parameters && rank == 0) SaveSafetensors(ParametersAndBuffers(*model), parameters_path);
  events.Finish(metrics, strategy->keeps_ranks_equal() ? ParameterHash(model->parameters()) : "");
  checkpoints.RemoveAll();
}

}  // namespace scalelab::trainer
