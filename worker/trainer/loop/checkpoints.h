// Decides when a run writes checkpoints, and computes the time that the run has lost by interruptions.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/stop_signal.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/stopwatch.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

class Communicator;

// If neither checkpoint_every_steps nor checkpoint_every_minutes is set, no checkpoints are written, and a
// signal ends the process as usual.
class Checkpoints {
 public:
  // Throws TrainerError if checkpoints are requested and SCALELAB_CHECKPOINT_DIR is not set. All references
  // must outlive the object.
  Checkpoints(const TrainingSpec& spec, Communicator& communicator, EventWriter& events);

  // Returns the checkpoint to continue from, if there is one. Collective.
  std::optional<Checkpoint> LoadNewest();

  // Records the start of this attempt. `useful_seconds` is the time that earlier attempts took until the
  // checkpoint. Returns the seconds of earlier attempts after the checkpoint, whose work is lost, plus the
  // seconds that this attempt took to start if it is not the first. Returns 0 on ranks other than 0.
  double Begin(double useful_seconds);

  // Returns whether all ranks must write a checkpoint now, after `steps` steps of the run, because one is due
  // or a rank has received a signal. Collective. Call it after each step except the last one of the run.
  // After the last step of an epoch, call it when Strategy::EndEpoch and the evaluation have ended.
  bool Due(int64_t steps);
  // Writes a checkpoint and reports it. Collective.
  void Save(int64_t steps, const NamedTensors& shared, const NamedTensors& mine);
  // Ends the process if a rank has received a signal. Call it after Save.
  void EndIfSignalled() const;
  // Removes the checkpoints of the run, which has finished. Collective.
  void RemoveAll();

  // Seconds spent by this attempt in Save.
  double seconds() const { return seconds_; }
  bool on() const { return store_ != nullptr; }
  int64_t damaged() const { return store_ == nullptr ? 0 : store_->damaged(); }

 private:
  // The ranks exchange their signals and timers at about this interval. It is much shorter than the time that
  // a scheduler allows after a signal, and much longer than the all-reduce of three numbers that the exchange
  // takes.
  static constexpr double kAgreementSeconds = 0.25;

  bool Agree(int64_t steps);

  const TrainingSpec& spec_;
  Communicator& communicator_;
  EventWriter& events_;
  const double began_;  // Unix time
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<StopSignal> signal_;
  Stopwatch since_last_;       // since the last checkpoint
  Stopwatch since_agreement_;  // since the last call of Agree
  int64_t agreed_at_ = -1;     // number of steps before that call
  int64_t next_agreement_ = 0;
  double step_seconds_ = kAgreementSeconds;  // of a step on this rank, between the last two calls of Agree
  bool due_ = false;                         // because of a signal or checkpoint_every_minutes
  int signalled_ = 0;                        // the signal on which the ranks agreed; 0: none
  double seconds_ = 0;
};

// Returns the sum, over the attempts that a file lists, of the seconds from the begin of the attempt to the
// last event in its event file. The file has one JSON object {begin, events} a line. Attempts whose event
// file cannot be read count as 0.
double SecondsOfAttempts(const std::string& path);

}  // namespace scalelab::trainer
