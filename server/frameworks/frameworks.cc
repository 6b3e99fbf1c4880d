#include "server/frameworks/frameworks.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/device.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr size_t kThreads = 2;  // a probe imports a framework, which takes a core and a gigabyte of memory

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

}  // namespace

Frameworks::Frameworks(FrameworksOptions options)
    : options_([&] {
        options.probe.cancel = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        return std::move(options);
      }()) {}

Frameworks::~Frameworks() {
  Stop();
  close(options_.probe.cancel);
}

Frameworks::Use Frameworks::UseOf(absl::string_view name) {
  const absl::string_view engine = EngineOf(name);
  return {FindEngine(engine), engine.size() != name.size()};
}

v1::FrameworkEnvironment Frameworks::Configured(const Use& use) const {
  const Engine& engine = *use.engine;
  const EnvironmentConfig* config = nullptr;
  for (const EnvironmentConfig& candidate : options_.environments) {
    const bool own = candidate.engine == engine.name;
    const bool of_framework =
        absl::EndsWith(candidate.engine, "/*") &&
        absl::StartsWith(engine.name,
                         absl::string_view(candidate.engine).substr(0, candidate.engine.size() - 1));
    if (own || (of_framework && config == nullptr)) config = &candidate;
    if (own) break;
  }
  v1::FrameworkEnvironment environment;
  if (config != nullptr) {
    environment.mutable_modules()->Assign(config->modules.begin(), config->modules.end());
    environment.set_container(config->container);
  }
  if (config != nullptr && config->venv.has_value()) {
    environment.set_venv(*config->venv);
  } else if (environment.container().empty()) {
    environment.set_venv(absl::StrCat(options_.directory, "/", engine.environment, use.gpus ? "-cuda" : ""));
  }
  return environment;
}

std::optional<v1::FrameworkEnvironment> Frameworks::EnvironmentOf(const std::string& name) const {
  const Use use = UseOf(name);
  if (use.engine == nullptr || use.engine->program != Engine::Program::kAdapter) return std::nullopt;
  v1::FrameworkEnvironment environment = Configured(use);
  absl::MutexLock lock(&mutex_);
  if (const auto it = results_.find(name); it != results_.end())
    *environment.mutable_versions() = it->second.state.versions();
  return environment;
}

std::vector<std::string> Frameworks::Listed() const {
  std::vector<std::string> names;
  for (const Engine& engine : Engines()) {
    names.push_back(EngineOn(engine.name, false));
    if (engine.program != Engine::Program::kAdapter || engine.gpus == Engine::Gpus::kNever) continue;
    const std::string on_gpus = Configured({&engine, true}).venv();
    if (on_gpus != Configured({&engine, false}).venv() && access(on_gpus.c_str(), F_OK) == 0)
      names.push_back(EngineOn(engine.name, true));
  }
  return names;
}

std::string Frameworks::PathFor(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    const Use use = UseOf(name);
    if (use.engine == nullptr || use.engine->program != Engine::Program::kAdapter) continue;
    const v1::FrameworkEnvironment environment = Configured(use);
    for (const std::string& path : {environment.venv(), environment.container()}) {
      if (absl::StartsWith(path, "/")) return path;
    }
  }
  return options_.directory;
}

// Returns the engine to probe in place of `engine`. If ranks run on other machines, this is an engine with
// the same environment that needs no GPU.
const Engine& Frameworks::ProbedEngine(const Engine& engine) const {
  if (options_.nodes_are_here || engine.gpus != Engine::Gpus::kRequired) return engine;
  for (const Engine& other : Engines()) {
    if (other.environment == engine.environment && other.gpus != Engine::Gpus::kRequired) return other;
  }
  return engine;
}

void Frameworks::Ask(const std::vector<std::string>& names, Done done) {
  Question question;
  std::map<Use, std::string> stamps;  // made before taking the lock, because ProbeStamp reads files
  for (const std::string& name : names) {
    if (const Use use = UseOf(name); use.engine != nullptr)
      stamps[use] = ProbeStamp(*use.engine, Configured(use), options_.probe);
  }
  bool stopping = false;
  {
    absl::MutexLock lock(&mutex_);
    stopping = stopping_;
    for (const auto& [use, stamp] : stamps) {
      const std::string name = EngineOn(use.engine->name, use.gpus);
      const auto result = results_.find(name);
      if (result != results_.end() && result->second.stamp == stamp && result->second.state.usable()) {
        question.states[name] = result->second.state;
      } else if (!stopping) {
        question.missing.insert(name);
        if (in_flight_.insert(use).second) queue_.push_back(use);
      }
    }
    if (!question.missing.empty()) {
      question.done = std::move(done);
      questions_.push_back(std::move(question));
      while (threads_.size() < std::min(kThreads, in_flight_.size()))
        threads_.emplace_back([this] { Work(); });
      return;
    }
  }
  stopping ? done(Stopping()) : done(std::move(question.states));
}

// Adds the state of engine `name` to the pending calls that wait for it. Removes and returns the calls that
// are then complete.
std::vector<Frameworks::Question> Frameworks::TakeAnswered(const std::string& name,
                                                           const v1::Framework& state) {
  std::vector<Question> answered;
  for (auto it = questions_.begin(); it != questions_.end();) {
    if (it->missing.erase(name) > 0) it->states[name] = state;
    if (it->missing.empty()) {
      answered.push_back(std::move(*it));
      it = questions_.erase(it);
    } else {
      ++it;
    }
  }
  return answered;
}

// Removes and returns the pending engines that have the result of a probe of `use`: all native engines run the same program.
std::vector<Frameworks::Use> Frameworks::TakeProbed(const Use& use) {
  const bool trainer = use.engine->program == Engine::Program::kTrainer;
  std::vector<Use> probed;
  for (const Use& other : in_flight_) {
    if (other == use || (trainer && other.engine->program == use.engine->program)) probed.push_back(other);
  }
  for (const Use& other : probed) {
    in_flight_.erase(other);
    std::erase(queue_, other);
  }
  return probed;
}

// Blocks until there is an engine to probe. Returns nothing when stopping.
std::optional<Frameworks::Use> Frameworks::NextUse() {
  absl::MutexLock lock(&mutex_);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
  mutex_.Await(absl::Condition(&ready));
  if (stopping_) return std::nullopt;
  const Use use = queue_.front();
  queue_.pop_front();
  return use;
}

// Body of a thread.
void Frameworks::Work() {
  while (const std::optional<Use> use = NextUse()) {
    const v1::FrameworkEnvironment environment = Configured(*use);
    const Result result{ProbeStamp(*use->engine, environment, options_.probe),
                        ProbeEngine(ProbedEngine(*use->engine), environment, options_.probe)};
    std::vector<std::string> names;
    std::vector<Question> answered;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;  // the probe was interrupted, so its result is meaningless
      for (const Use& probed : TakeProbed(*use)) {
        const std::string& name = names.emplace_back(EngineOn(probed.engine->name, probed.gpus));
        Result& own = results_[name] = result;
        own.state.set_engine(std::string(probed.engine->name));
        for (Question& question : TakeAnswered(name, own.state)) answered.push_back(std::move(question));
      }
    }
    for (const std::string& name : names) {
      if (result.state.usable()) {
        spdlog::info("engine {} is usable: {}", name, result.state.version());
      } else {
        spdlog::info("engine {} is not usable: {}", name, result.state.reason());
      }
    }
    for (Question& question : answered) question.done(std::move(question.states));
  }
}

void Frameworks::Stop() {
  std::vector<std::thread> threads;
  std::vector<Question> answered;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    queue_.clear();
    in_flight_.clear();
    threads.swap(threads_);
  }
  eventfd_write(options_.probe.cancel, 1);
  for (std::thread& thread : threads) thread.join();
  {
    absl::MutexLock lock(&mutex_);
    answered.swap(questions_);
  }
  for (Question& question : answered) question.done(Stopping());
}

}  // namespace scalelab::server
