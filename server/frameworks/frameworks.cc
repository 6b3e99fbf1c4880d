#include "server/frameworks/frameworks.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {
namespace {

constexpr size_t kThreads = 2;  // looks at once: each imports a framework, which takes a core and a gigabyte

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

v1::FrameworkEnvironment Frameworks::Configured(const Engine& engine) const {
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
    environment.set_venv(absl::StrCat(options_.directory, "/", engine.environment));
  }
  return environment;
}

std::optional<v1::FrameworkEnvironment> Frameworks::EnvironmentOf(const std::string& name) const {
  const Engine* engine = FindEngine(name);
  if (engine == nullptr || engine->program != Engine::Program::kAdapter) return std::nullopt;
  v1::FrameworkEnvironment environment = Configured(*engine);
  std::lock_guard lock(mutex_);
  if (const auto it = known_.find(name); it != known_.end())
    *environment.mutable_versions() = it->second.state.versions();
  return environment;
}

// The engine that is looked at in place of this one: with nodes elsewhere, one of the same environment that
// needs no GPU.
const Engine& Frameworks::Stand(const Engine& engine) const {
  if (options_.nodes_are_here || engine.gpus != Engine::Gpus::kRequired) return engine;
  for (const Engine& other : Engines()) {
    if (other.environment == engine.environment && other.gpus != Engine::Gpus::kRequired) return other;
  }
  return engine;
}

void Frameworks::Ask(const std::vector<std::string>& engines, Done done) {
  Question question;
  std::map<const Engine*, std::string> stamps;  // looks at files: before the lock
  for (const std::string& name : engines) {
    if (const Engine* engine = FindEngine(name))
      stamps[engine] = ProbeStamp(*engine, Configured(*engine), options_.probe);
  }
  bool stopping = false;
  {
    std::lock_guard lock(mutex_);
    stopping = stopping_;
    for (const auto& [engine, stamp] : stamps) {
      const std::string name(engine->name);
      const auto known = known_.find(name);
      if (known != known_.end() && known->second.stamp == stamp && known->second.state.usable()) {
        question.states[name] = known->second.state;
      } else if (!stopping) {
        question.missing.insert(name);
        if (under_way_.insert(engine).second) waiting_.push_back(engine);
      }
    }
    if (!question.missing.empty()) {
      question.done = std::move(done);
      questions_.push_back(std::move(question));
      while (threads_.size() < std::min(kThreads, under_way_.size()))
        threads_.emplace_back([this] { Serve(); });
      arrived_.notify_all();
      return;
    }
  }
  stopping ? done(Stopping()) : done(std::move(question.states));
}

// Gives the answer to whoever waits for it. Those that need no other are moved to `answered`.
void Frameworks::Settle(const v1::Framework& state, std::vector<Question>* answered) {
  for (auto it = questions_.begin(); it != questions_.end();) {
    if (it->missing.erase(state.engine()) > 0) it->states[state.engine()] = state;
    if (it->missing.empty()) {
      answered->push_back(std::move(*it));
      it = questions_.erase(it);
    } else {
      ++it;
    }
  }
}

void Frameworks::Serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    arrived_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    const Engine* engine = waiting_.front();
    waiting_.pop_front();
    lock.unlock();

    const Engine& stand = Stand(*engine);
    const v1::FrameworkEnvironment environment = Configured(*engine);
    Known known{ProbeStamp(*engine, environment, options_.probe),
                ProbeEngine(stand, environment, options_.probe)};
    known.state.set_engine(std::string(engine->name));
    std::vector<Question> answered;
    lock.lock();
    if (stopping_) return;  // it was cut short and says nothing
    under_way_.erase(engine);
    known_[std::string(engine->name)] = known;
    Settle(known.state, &answered);
    lock.unlock();
    if (known.state.usable()) {
      spdlog::info("engine {} can run here: {}", known.state.engine(), known.state.version());
    } else {
      spdlog::info("engine {} cannot run here: {}", known.state.engine(), known.state.reason());
    }
    for (Question& question : answered) question.done(std::move(question.states));
    lock.lock();
  }
}

void Frameworks::Stop() {
  std::vector<std::thread> threads;
  std::vector<Question> answered;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    under_way_.clear();
    threads.swap(threads_);
  }
  eventfd_write(options_.probe.cancel, 1);
  arrived_.notify_all();
  for (std::thread& thread : threads) thread.join();
  {
    std::lock_guard lock(mutex_);
    answered.swap(questions_);
  }
  for (Question& question : answered) question.done(Stopping());
}

}  // namespace scalelab::server
