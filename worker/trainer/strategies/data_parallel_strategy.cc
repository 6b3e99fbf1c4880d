#include "worker/trainer/strategies/data_parallel_strategy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "worker/trainer/errors.h"
#include "worker/trainer/models/dropout.h"
#include "worker/trainer/models/model.h"

namespace scalelab::trainer {
namespace {

// Returns the name of the state of a replica's generator in a checkpoint. The states of CPUs and of GPUs have
// different formats.
std::string NameOfGenerator(size_t replica, at::Device device) {
  return std::string(device.is_cuda() ? "random/cuda/" : "random/cpu/") + std::to_string(replica);
}

}  // namespace

// One thread for each replica. The threads exist from step to step, because each has its own team
// of OpenMP threads.
class DataParallelStrategy::Threads {
 public:
  Threads(const std::vector<at::Device>& devices, int cpu_threads)
      : devices_(devices), errors_(devices.size()) {
    const int each = std::max(1, cpu_threads / static_cast<int>(devices.size()));
    try {
      for (size_t i = 0; i < devices.size(); ++i) {
        threads_.emplace_back([this, i, each] {
          at::set_num_threads(each);
          Serve(i);
        });
      }
    } catch (const std::system_error& error) {
      End();
      throw TrainerError(std::string("cannot start a thread for each replica: ") + error.what() +
                         "; use fewer replicas, or raise the limit of processes");
    }
  }
  ~Threads() { End(); }

  // Calls body(i) for each replica i below `count` at the same time, on the calling thread's current streams. Returns when all
  // calls have ended, and throws the exception of the first replica that failed.
  void Run(size_t count, const std::function<void(size_t)>& body) {
    const auto information = c10::ThreadLocalDebugInfo::current();  // KeptAllocations uses it
    std::vector<c10::Stream> streams;
    for (const at::Device& device : devices_)
      streams.push_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    std::unique_lock lock(mutex_);
    body_ = [&](size_t i) {
      // A copy between GPUs runs on the calling thread's current stream of the source, which may be another replica's GPU.
      const c10::MultiStreamGuard on_streams(streams);
      const c10::StreamGuard on_stream(streams[i]);
      const c10::DebugInfoGuard with_information(information);
      body(i);
    };
    count_ = count;
    running_ = threads_.size();
    ++round_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return running_ == 0; });
    body_ = nullptr;
    std::exception_ptr first;
    for (std::exception_ptr& error : errors_) {
      if (std::exception_ptr own = std::exchange(error, nullptr); own && !first) first = own;
    }
    if (first) std::rethrow_exception(first);
  }

 private:
  void End() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Serve(size_t i) {
    std::unique_lock lock(mutex_);
    for (int64_t done = 0;; done = round_) {
      changed_.wait(lock, [&] { return closing_ || round_ != done; });
      if (closing_) return;
      if (i < count_) {
        lock.unlock();
        std::exception_ptr error;
        try {
          body_(i);  // body_ does not change while a thread runs
        } catch (...) {
          error = std::current_exception();
        }
        lock.lock();
        errors_[i] = error;
      }
      if (--running_ == 0) changed_.notify_all();
    }
  }

  const std::vector<at::Device> devices_;
  std::mutex mutex_;  // guards count_, running_, round_, closing_ and errors_
  std::condition_variable changed_;
  std::function<void(size_t)> body_;
  size_t count_ = 0, running_ = 0;
  int64_t round_ = 0;
  bool closing_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;  // the last member, because the threads use all others
};

DataParallelStrategy::DataParallelStrategy(Model& model, std::vector<std::shared_ptr<Model>> replicas,
                                           const DataParallelOptions& options)
    : options_(options), models_{&model}, replicas_(std::move(replicas)) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(replicas_.size() + 1 == options.devices.size(), "each device needs a replica");
  parameters_.push_back(model.parameters());
  for (size_t i = 1; i < options.devices.size(); ++i) {
    Model& replica = *replicas_[i - 1];
    models_.push_back(&replica);
    parameters_.push_back(replica.parameters());
    for (size_t p = 0; p < parameters_[i].size(); ++p) {
      const at::Tensor& original = parameters_[0][p];
      // On a CPU, `to` returns the same memory.
      parameters_[i][p].set_data(original.detach().to(options.devices[i]));
    }
    for (at::Tensor& buffer : replica.buffers()) buffer.set_data(buffer.to(options.devices[i]));
  }
  threads_ = std::make_unique<Threads>(options.devices, options.cpu_threads);
}

DataParallelStrategy::~DataParallelStrategy() = default;

void DataParallelStrategy::Replicate() {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> buffers = models_[0]->buffers();
  for (size_t i = 1; i < models_.size(); ++i) {
    for (size_t p = 0; p < parameters_[i].size(); ++p) {
      if (!parameters_[i][p].is_alias_of(parameters_[0][p]))
        parameters_[i][p].copy_(parameters_[0][p], /*non_blocking=*/true);
    }
    const std::vector<at::Tensor> own = models_[i]->buffers();
    for (size_t b = 0; b < own.size(); ++b) own[b].copy_(buffers[b], /*non_blocking=*/true);
  }
}

// Gives each replica random numbers of its own for dropout. Replica 0 draws from the default generator of its
// device. On GPUs the other replicas do so too, but at::manual_seed has given all GPUs the same seed. On a CPU
// there is only one default generator.
void DataParallelStrategy::SeedReplicas() {
  if (!generators_.empty()) return;
  const uint64_t seed = at::globalContext().defaultGenerator(options_.devices[0]).current_seed();
  for (size_t i = 1; i < options_.devices.size(); ++i) {
    const at::Device device = options_.devices[i];
    at::Generator generator =
        device.is_cuda() ? at::globalContext().defaultGenerator(device) : at::detail::createCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed + i);
    const std::string name = NameOfGenerator(i, device);
    for (const auto& [saved, state] : saved_generators_) {
      if (saved == name) generator.set_state(state);
    }
    generators_.push_back(generator);
  }
  saved_generators_.clear();
}

NamedTensors DataParallelStrategy::State() {
  SeedReplicas();
  NamedTensors state;
  for (size_t i = 1; i < options_.devices.size(); ++i) {
    at::Generator& generator = generators_[i - 1];
    const std::lock_guard lock(generator.mutex());
    state.emplace_back(NameOfGenerator(i, options_.devices[i]), generator.get_state());
  }
  return state;
}

void DataParallelStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  saved_generators_ = of_ranks.at(0);
}

TrainingLogits DataParallelStrategy::Forward(Model&, const at::Tensor& images) {
  SeedReplicas();
  Replicate();
  const std::vector<at::Tensor> parts = images.chunk(static_cast<int64_t>(models_.size()));
  outputs_.assign(parts.size(), {});
  threads_->Run(parts.size(), [&](size_t i) {
    const at::Device device = options_.devices[i];
    const PrecisionScope scope(options_.precision, device.type());
    const DropoutScope dropout(i > 0 ? &generators_[i - 1] : nullptr);
    outputs_[i] = models_[i]->ForwardTraining(parts[i].to(device, /*non_blocking=*/true));
  });
  const auto gather = [&](at::Tensor TrainingLogits::*logits) {
    if (!(outputs_[0].*logits).defined()) return at::Tensor();
    std::vector<at::Tensor> all;
    for (const TrainingLogits& output : outputs_)
      all.push_back((output.*logits).detach().to(options_.devices[0]));
    return at::cat(all).requires_grad_(true);
  };
  gathered_ = {gather(&TrainingLogits::logits), gather(&TrainingLogits::auxiliary)};
  return gathered_;
}

void DataParallelStrategy::Backward() {
  // The numbers of rows of the gathered logits that belong to each replica. A sample of text
  // has several rows.
  std::vector<int64_t> rows;
  for (const TrainingLogits& output : outputs_) rows.push_back(output.logits.size(0));
  const auto scatter = [&](const at::Tensor& logits) {
    return logits.defined() ? logits.grad().split_with_sizes(rows) : std::vector<at::Tensor>();
  };
  const std::vector<at::Tensor> logits = scatter(gathered_.logits), auxiliary = scatter(gathered_.auxiliary);
  threads_->Run(outputs_.size(), [&](size_t i) {
    const at::Device device = options_.devices[i];
    std::vector<at::Tensor> outputs = {outputs_[i].logits}, gradients = {logits[i].to(device)};
    if (!auxiliary.empty()) {
      outputs.push_back(outputs_[i].auxiliary);
      gradients.push_back(auxiliary[i].to(device));
    }
    torch::autograd::backward(outputs, gradients);
  });
  outputs_.clear();
  gathered_ = {};
}

void DataParallelStrategy::AddGradients() {
  const at::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_[0].size(); ++p) {
    at::Tensor& sum = parameters_[0][p].mutable_grad();
    for (size_t i = 1; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i][p].grad();
      if (!gradient.defined()) continue;
      const at::Tensor here = gradient.to(options_.devices[0]);
      sum.defined() ? sum.add_(here) : sum = here;
    }
  }
}

ModelMemory DataParallelStrategy::Memory(const ModelMemory& found) const {
  std::vector<at::Tensor> parameters, gradients;
  for (const auto& of_replica : parameters_) {
    for (const at::Tensor& parameter : of_replica) {
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
    }
  }
  return {.parameters = BytesOf(parameters), .gradients = BytesOf(gradients), .optimizer = found.optimizer};
}

ModelMemory DataParallelStrategy::MemoryByFormula(double parameters) const {
  const auto replicas = static_cast<double>(models_.size());
  return {.parameters = options_.devices[0].is_cuda() ? replicas * parameters : parameters,
          .gradients = replicas * parameters,
          .optimizer = parameters};
}

void DataParallelStrategy::Step(StepTask& task) {
  for (const auto& parameters : parameters_) {
    for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
  }
  at::Tensor loss;
  for (int64_t part = 0; part < task.parts(); ++part) {
    if (part > 0) task.marks().Mark(&StepTimes::backward);
    loss = task.Forward(part);
    loss.backward();
    Backward();
  }
  AddGradients();
  BackwardCost cost;
  cost.computed = DeviceEvent(loss.device());
  task.Measured(std::move(cost));
  task.Update();
}

}  // namespace scalelab::trainer
