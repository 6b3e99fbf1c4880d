#include "tests/simulation/ranks.h"

#include <signal.h>

#include <algorithm>
#include <fstream>

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kEndsWithin = absl::Seconds(5);  // after SIGTERM or SIGUSR1

}  // namespace

Ranks::Ranks(World& world, Model& model, const v1::SynchronizeResponse::DesiredAttempt& desired)
    : world_(world),
      model_(model),
      token_(desired.token()),
      run_(desired.run()),
      directory_(desired.directory()),
      checkpoints_(!desired.checkpoint_directory().empty()),
      timers_(world.queue) {
  lines_.resize(std::max(1, desired.spec().ranks()));
  last_line_ = world_.random.Between(1, 8);
  pause_ = world_.random.Time(absl::Milliseconds(20), absl::Seconds(world_.random.Chance(0.2) ? 120 : 15));
  if (world_.faults.Occurs(Fault::kRankFails)) {
    fails_at_ = world_.random.Between(0, last_line_);
    error_event_ = world_.random.Chance(0.5);
  }
}

void Ranks::Launch() {
  live_ = true;
  std::ofstream(directory_ + "/rank-0.err") << "last words\n";
  if (checkpoints_) {
    first_step_ = model_.CheckpointOf(run_);
    last_line_ = std::max<int64_t>(1, model_.LengthOf(run_, last_line_) - first_step_);
  }
  model_.RanksStart(run_, token_);
  timers_.After(pause_, [this] { WriteLine(); });
}

void Ranks::WriteLine() {
  if (!live_) return;
  const int64_t line = lines_[0];
  const bool fails = line == fails_at_;
  if (fails && !error_event_) return End(128 + SIGKILL);
  Append();
  if (fails) return End(1);
  if (line == last_line_) {
    model_.AttemptFinished(token_);
    return End(0);
  }
  if (checkpoints_ && line > 0) model_.CheckpointWritten(run_, first_step_ + line);
  Changed();
  timers_.After(pause_, [this] { WriteLine(); });
}

// Each rank writes a line.
void Ranks::Append() {
  for (int rank = 0; rank < size(); ++rank) {
    std::ofstream file(absl::StrCat(directory_, "/events-", rank, ".jsonl"), std::ios::app);
    file << Line(rank);
    file.close();
    if (!file) world_.Violation("rank ", rank, " of ", token_, " cannot write a line");
    ++lines_[rank];
  }
}

// Returns the next line of a rank. Each line has a value.
std::string Ranks::Line(int rank) const {
  const int64_t line = lines_[rank];
  std::string fields, throughput;
  if (last_words_) {
    fields = absl::StrCat(R"("checkpoint","step":)", first_step_ + line);
  } else if (line == fails_at_) {
    fields = R"("error","message":"loss is not finite")";
  } else if (line == last_line_) {
    fields = R"("finish","parameter_hash":"hash")";
    throughput = R"(,"run/throughput":100)";
  } else if (line == 0) {
    fields = absl::StrCat(R"("start","resumed_step":)", first_step_);
  } else if (checkpoints_) {
    fields = absl::StrCat(R"("checkpoint","step":)", first_step_ + line);
  } else {
    fields = absl::StrCat(R"("step","step":)", line - 1);
  }
  return absl::StrFormat("{\"time\":%d,\"event\":%s,\"metrics\":{\"train/loss\":%.17g%s}}\n", line, fields,
                         ValueOf(token_, rank, line), throughput);
}

void Ranks::Stop(absl::Duration grace) {
  if (!live_) return;
  const absl::Duration ends = world_.random.Time(absl::ZeroDuration(), kEndsWithin);
  timers_.After(std::min(ends, grace), [this, status = 128 + (ends <= grace ? SIGTERM : SIGKILL)] {
    if (live_) End(status);
  });
}

void Ranks::Notify() {
  if (!live_) return;
  timers_.After(world_.random.Time(absl::ZeroDuration(), kEndsWithin), [this] {
    if (!live_) return;
    if (checkpoints_ && lines_[0] > 0) {
      last_words_ = true;
      model_.CheckpointWritten(run_, first_step_ + lines_[0]);
      Append();
      Changed();
    }
    if (live_) End(128 + SIGUSR1);
  });
}

void Ranks::End(int status) {
  if (!live_) return;
  live_ = false;
  exit_status_ = status;
  model_.RanksEnd(run_, token_);
  Changed();
}

void Ranks::Suspend(bool suspend) {
  if (suspend == suspended_) return;
  suspended_ = suspend;
  if (suspend) {
    timers_.Stop();
  } else {
    timers_.Continue();
  }
}

void Ranks::Changed() {
  for (const auto& changed : std::vector(followers_)) changed();
}

}  // namespace scalelab::simulation
