#include "worker/trainer/loop/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "nlohmann/json.hpp"
#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using nlohmann::json;

constexpr int64_t kMostSteps = 10'000;    // between two agreements
constexpr std::streamoff kTail = 65'536;  // bytes that contain the last event

double Now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string Variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::unique_ptr<CheckpointStore> MakeStore(const TrainingSpec& spec, Communicator& communicator) {
  if (spec.checkpoint_every_steps == 0 && spec.checkpoint_every_minutes == 0) return nullptr;
  std::string directory = Variable("SCALELAB_CHECKPOINT_DIR");
  if (directory.empty()) {
    throw TrainerError(
        "checkpoints need a directory: set SCALELAB_CHECKPOINT_DIR, or remove checkpoint_every_steps and "
        "checkpoint_every_minutes");
  }
  return std::make_unique<CheckpointStore>(std::move(directory), spec.checkpoint_keep, spec, communicator);
}

// Returns the time of the last complete event of a file; 0 if it cannot be read.
double LastEvent(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return 0;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string text(std::min(size, kTail), '\0');
  file.read(text.data(), std::ssize(text));
  double last = 0;
  for (size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const json line = json::parse(text.substr(begin, end - begin), nullptr, /*allow_exceptions=*/false);
    if (line.is_object() && line.contains("time") && line["time"].is_number()) last = line["time"];
  }
  return last;
}

}  // namespace

double SecondsOfAttempts(const std::string& path) {
  std::ifstream file(path);
  double seconds = 0;
  for (std::string text; std::getline(file, text);) {
    const json attempt = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!attempt.is_object() || !attempt.contains("begin") || !attempt.contains("events")) continue;
    seconds += std::max(0.0, LastEvent(attempt["events"]) - attempt["begin"].get<double>());
  }
  return seconds;
}

Checkpoints::Checkpoints(const TrainingSpec& spec, Communicator& communicator, EventWriter& events)
    : spec_(spec),
      communicator_(communicator),
      events_(events),
      began_(Now()),
      store_(MakeStore(spec, communicator)),
      signal_(store_ == nullptr ? nullptr : std::make_unique<StopSignal>()) {}

std::optional<Checkpoint> Checkpoints::LoadNewest() {
  if (!on()) return std::nullopt;
  return store_->LoadNewest();
}

double Checkpoints::Begin(double useful_seconds) {
  since_last_ = Stopwatch();
  if (!on() || communicator_.rank() != 0) return 0;
  const std::string path = store_->directory() + "/attempts.jsonl";
  const double before = SecondsOfAttempts(path);
  const bool first = !std::ifstream(path).good();
  const double now = Now(), begin = first ? now : began_;
  std::error_code error;
  std::filesystem::create_directories(store_->directory(), error);
  std::ofstream file(path, std::ios::app);
  file << json{{"begin", begin}, {"events", Variable("SCALELAB_EVENTS")}}.dump() << std::endl;
  return std::max(0.0, before - useful_seconds) + (now - begin);
}

// Exchanges between the ranks whether one has received a signal and whether checkpoint_every_minutes have
// passed. Returns whether one of them requires a checkpoint.
bool Checkpoints::Agree(int64_t steps) {
  const double minutes = spec_.checkpoint_every_minutes;
  const bool due = minutes > 0 && since_last_.Seconds() >= 60 * minutes;
  const at::Tensor shared =
      at::tensor({static_cast<double>(StopSignal::number()), due ? 1.0 : 0.0, step_seconds_}, at::kDouble);
  communicator_.AllReduce(shared, ReduceOp::kMax);
  signalled_ = static_cast<int>(shared[0].item<double>());
  const double slowest = std::max(shared[2].item<double>(), 1e-9);
  next_agreement_ =
      steps + std::clamp(static_cast<int64_t>(kAgreementSeconds / slowest), int64_t{1}, kMostSteps);
  // Only the all-reduce waits for a GPU, which the host is ahead of. So the time from one all-reduce to the next is that
  // of the steps between them.
  if (agreed_at_ >= 0) step_seconds_ = since_agreement_.Seconds() / static_cast<double>(steps - agreed_at_);
  agreed_at_ = steps;
  since_agreement_ = Stopwatch();
  return signalled_ != 0 || shared[1].item<double>() > 0;
}

bool Checkpoints::Due(int64_t steps) {
  if (!on()) return false;
  if (steps >= next_agreement_ || communicator_.size() == 1) due_ = Agree(steps) || due_;
  const bool by_steps = spec_.checkpoint_every_steps > 0 && steps % spec_.checkpoint_every_steps == 0;
  return due_ || by_steps;
}

void Checkpoints::Save(int64_t steps, const NamedTensors& shared, const NamedTensors& mine) {
  const Stopwatch watch;
  events_.Sync();  // the attempt that continues does not report these steps again
  const std::optional<int64_t> bytes = store_->Save(steps, shared, mine);
  const double seconds = watch.Seconds();
  seconds_ += seconds;
  since_last_ = Stopwatch();
  due_ = false;
  if (bytes && communicator_.rank() == 0) {
    events_.Checkpoint(
        steps, {{{"checkpoint/seconds", seconds}, {"checkpoint/bytes", static_cast<double>(*bytes)}}});
  }
}

void Checkpoints::EndIfSignalled() const {
  if (signalled_ == 0) return;
  events_.Flush();
  // The launcher ends all ranks when the first one ends.
  communicator_.Barrier();
  StopSignal::EndProcess(signalled_);
}

void Checkpoints::RemoveAll() {
  if (on()) store_->RemoveAll();
}

}  // namespace scalelab::trainer
