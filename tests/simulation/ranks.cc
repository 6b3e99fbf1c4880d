#include "tests/simulation/ranks.h"

#include <algorithm>

namespace scalelab::simulation {

namespace {

constexpr int64_t kLineBytes = 100;

}  // namespace

Ranks::Ranks(World& world, Model& model, const v1::SynchronizeResponse::DesiredAttempt& desired)
    : world_(world),
      model_(model),
      token_(desired.token()),
      run_(desired.run()),
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
  launched_ = live_ = true;
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
  if (fails && !error_event_) return End(128 + 9);
  for (int64_t& lines : lines_) ++lines;
  if (fails) return End(1);
  if (line == last_line_) {
    model_.AttemptFinished(token_);
    return End(0);
  }
  if (checkpoints_ && line > 0) model_.CheckpointWritten(run_, first_step_ + line);
  Changed();
  timers_.After(pause_, [this] { WriteLine(); });
}

void Ranks::Read(int rank, int64_t begin, int64_t end, v1::EventBatch& batch) const {
  batch.set_token(token_);
  batch.set_rank(rank);
  batch.set_begin_position(begin * kLineBytes);
  batch.set_end_position(end * kLineBytes);
  batch.set_begin_line(begin);
  batch.set_end_line(end);
  if (begin == end) return;
  v1::PointColumn& column = *batch.add_columns();
  column.set_key("train/loss");
  for (int64_t line = begin; line < end; ++line) {
    column.add_line(line);
    column.add_step(line - 1);
    column.add_time(static_cast<double>(line));
    column.add_value(ValueOf(token_, rank, line));
    const bool ends = line == last_line_ || line == fails_at_;
    if (!ends && !checkpoints_) continue;
    v1::Event& event = *batch.add_events();
    event.set_line(line);
    if (!ends) {
      event.set_kind(line == 0 ? v1::Event::START : v1::Event::CHECKPOINT);
      event.set_step(first_step_ + line);
      continue;
    }
    event.set_kind(line == fails_at_ ? v1::Event::ERROR : v1::Event::FINISH);
    event.set_message("loss is not finite");
    event.set_parameter_hash("hash");
    (*event.mutable_metrics())["run/throughput"] = 100;
  }
}

void Ranks::Stop() {
  if (!live_) return;
  const auto end = [this] {
    if (live_) End(128 + 15);
  };
  timers_.After(world_.random.Time(absl::ZeroDuration(), absl::Seconds(5)), end);
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
