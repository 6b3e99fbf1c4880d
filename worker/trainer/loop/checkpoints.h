// When a run writes checkpoints, and what it has lost by interruptions.
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

// Without checkpoint_every_steps and checkpoint_every_minutes, nothing is written and signals keep their effect.
class Checkpoints {
 public:
  // Throws TrainerError if checkpoints are requested and SCALELAB_CHECKPOINT_DIR is not set. All references must outlive the
  // object.
  Checkpoints(const TrainingSpec& spec, Communicator& communicator, EventWriter& events);

  // Returns the checkpoint to continue from, if there is one. Collective.
  std::optional<Checkpoint> LoadNewest();

  // Records the start of this attempt. `useful_seconds`: time of earlier attempts until the checkpoint. Returns the seconds of
  // earlier attempts whose work is lost, and of the start of this attempt if it is not the first; 0 on ranks other than 0.
  double Begin(double useful_seconds);

  // Returns whether all ranks write a checkpoint now, after `steps` steps of the run: one is due, or a rank has got a signal.
  // Collective: to be called after each step but the last, except where nothing can be written.
  bool Due(int64_t steps);
  // Writes a checkpoint and reports it. Collective.
  void Save(int64_t steps, const NamedTensors& shared, const NamedTensors& mine);
  // Ends the process if a rank has got a signal. Call it after Save.
  void EndIfSignalled() const;
  // Removes the checkpoints of the run, which has finished. Collective.
  void RemoveAll();

  // Seconds spent by this attempt in Save.
  double seconds() const { return seconds_; }
  bool on() const { return store_ != nullptr; }
  int64_t damaged() const { return store_ == nullptr ? 0 : store_->damaged(); }

 private:
  bool Agree(int64_t steps);

  const TrainingSpec& spec_;
  Communicator& communicator_;
  EventWriter& events_;
  const double began_;  // Unix time
  std::unique_ptr<CheckpointStore> store_;
  std::unique_ptr<StopSignal> signal_;
  Stopwatch since_last_;  // checkpoint
  Stopwatch since_agreement_;
  int64_t agreed_at_ = -1;  // number of steps
  int64_t next_agreement_ = 0;
  bool due_ = false;   // by time
  int signalled_ = 0;  // the signal on which the ranks agreed; 0: none
  double seconds_ = 0;
};

// Adds up, over the attempts that a file lists (one JSON object a line: begin, events), the seconds from their begin to the
// last event in their event files. Attempts whose event file cannot be read count as 0.
double SecondsOfAttempts(const std::string& path);

}  // namespace scalelab::trainer
