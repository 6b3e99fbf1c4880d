#include "worker/attempt.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "catalog/engines.h"
#include "events/software.h"
#include "planted/bug.h"
#include "proto/utf8.h"
#include "spdlog/spdlog.h"
#include "worker/exit_cause.h"
#include "worker/node_info.h"
#include "worker/own_parameters.h"
#include "worker/worker_state.h"

namespace scalelab::worker {
namespace {

using nlohmann::ordered_json;

std::string Tag(const Attempt::Desired& desired) { return absl::StrCat(kAttemptTag, "=", desired.token()); }

// Slurm sends SIGTERM to all steps of a job at once, in no fixed order. So the end of a rank by a signal may
// be the first sign that this worker must exit too. Wait this long for the worker's own SIGTERM.
constexpr absl::Duration kSettle = absl::Seconds(1);

// Time for writing a checkpoint before ranks are stopped. Together with the grace, it equals Slurm's default
// time between SIGTERM and SIGKILL (KillWait).
constexpr absl::Duration kCheckpointTime = absl::Seconds(25);

std::string Time(absl::Time time) { return absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone()); }

}  // namespace

Attempt::Attempt(const AttemptHost& host, Desired desired, std::function<void()> changed)
    : host_(host),
      desired_(std::move(desired)),
      changed_(std::move(changed)),
      output_limit_(host.loop, host.output_limit),
      ranks_here_(host.tagged ? host.tagged(Tag(desired_)) : NewTaggedProcesses(host.loop, Tag(desired_))) {}

Attempt::~Attempt() {
  host_.loop.Cancel(settle_timer_);
  host_.loop.Cancel(drain_timer_);
  host_.loop.Cancel(checkpoint_timer_);
}

void Attempt::Begin(const std::optional<v1::Calibration>& before) {
  begun_ = true;
  noise_.set_node(host_.node);
  if (before.has_value()) *noise_.mutable_before() = *before;
  stopping_ = stopping_ || desired_.stop();
  const auto& nodes = desired_.nodes();
  const auto own = std::find(nodes.begin(), nodes.end(), host_.node);
  if (own == nodes.end() && nodes.size() > 1) {
    return Fail(
        v1::Attempt::LAUNCH_ERROR, 126,
        absl::StrCat(
            "Node ", host_.node,
            " is not one of the attempt's nodes; start each worker with its node's own name in --node."));
  }
  const int place = own == nodes.end() ? 0 : static_cast<int>(own - nodes.begin());
  launches_ = place == 0;
  const RankRange ranks = RanksOn(desired_, place);
  const bool launched_before = LaunchedBefore();
  if (stopping_ && launches_ && !launched_before) {  // nothing was started
    phase_ = Phase::kEnded;
    return;
  }
  if (!stopping_ && !launched_before) {
    const bool early = prepared_.has_value();
    Prepare();
    if (!prepared_->ok()) return Fail(unprepared_, 126, std::string(prepared_->message()));
    // If the attempt was prepared earlier, the user may have changed the program since then.
    if (early && launches_ && TakeCode()) RecordProvenance();
  }
  EventFollower::Observe observe;
  if (!stopping_ && !launched_before) observe = MeasurePower(ranks.count);
  host_.follower.Follow(token(), desired_.directory(), ranks.first, ranks.count,
                        launches_ && !launched_before, std::move(observe));
  followed_ = true;
  std::vector<std::string> outputs{Path("launcher.out"), Path("launcher.err")};
  for (int rank = ranks.first; rank < ranks.first + ranks.count; ++rank) {
    for (const char* ending : {".out", ".err"}) outputs.push_back(Path(absl::StrCat("rank-", rank, ending)));
  }
  output_limit_.Watch(std::move(outputs), [this](const std::string& path, int64_t size) {
    if (output_metrics_ != nullptr) output_metrics_->BeforeCut(path, size);
  });
  if (!launches_) {
    spdlog::info("Attempt {} ({}): following ranks {} to {} on this node", token(), desired_.run(),
                 ranks.first, ranks.first + ranks.count - 1);
    phase_ = Phase::kRunning;
    if (desired_.calibration_seconds() > 0) meter_.Start(AllowedCpus(), nullptr);
    if (stopping_) EndRanksHere(GraceOf(desired_));
    return;
  }
  if (launched_before) {
    spdlog::warn("Attempt {} was launched by an earlier worker process; not launching it again", token());
    cause_ = v1::Attempt::WORKER_LOST;
    exit_status_ = 128 + SIGKILL;
    message_ = "The worker was restarted while the attempt ran.";
    return EndRanksHere(GraceOf(desired_));
  }

  if (absl::Status status = WriteLaunch(); !status.ok()) {
    return Fail(v1::Attempt::STORAGE_ERROR, 126, std::string(status.message()));
  }
  launcher_ = plan_.launcher;
  // The processes of srun are children of slurmstepd.
  const bool own_children = host_.launch.launcher != Launcher::kSrun;
  if (desired_.calibration_seconds() > 0) meter_.Start(AllowedCpus(), own_children ? host_.own_cpu : nullptr);
  started_at_ = host_.loop.Now();
  job_ = host_.processes.Start(
      {plan_.tag, std::move(plan_.commands), GraceOf(desired_)},
      [this](absl::StatusOr<int> pid) { OnStarted(std::move(pid)); },
      [this](const JobResult& result) { OnEnded(result); });
}

// Starts to record the devices of `ranks` ranks. Returns the function that adds the results to the events of
// the first of these ranks.
EventFollower::Observe Attempt::MeasurePower(int ranks) {
  if (host_.power == nullptr) return {};
  const v1::RunSpec& spec = desired_.spec();
  PowerDevices devices;
  devices.gpus = ranks * (spec.device() == "cuda" ? std::max(1, spec.gpus_per_rank()) : spec.gpus_per_rank());
  if (spec.device() == "cpu") devices.gpus = 0;
  for (absl::string_view entry : host_.launch.environment) {
    if (absl::ConsumePrefix(&entry, "CUDA_VISIBLE_DEVICES=")) devices.visible = std::string(entry);
  }
  for (const auto& [name, value] : OwnVariables(spec)) {
    if (name == "CUDA_VISIBLE_DEVICES") devices.visible = value;
  }
  power_ = host_.power->Start(std::move(devices));
  return [meter = std::make_shared<RunPower>(spec, power_)](v1::EventBatch& batch) { meter->Observe(batch); };
}

// Returns whether an earlier worker of this node has launched the attempt. The file may also come from another node.
bool Attempt::LaunchedBefore() const { return launches_ && access(Path("launch.json").c_str(), F_OK) == 0; }

void Attempt::Prepare() {
  if (prepared_ || LaunchedBefore()) return;
  std::error_code error;
  std::filesystem::create_directories(desired_.directory(), error);
  unprepared_ = v1::Attempt::STORAGE_ERROR;
  if (error) {
    prepared_ = absl::UnavailableError(
        absl::StrCat("Cannot create directory '", desired_.directory(), "': ", error.message(),
                     "; check the coordinator's --runs and the permissions there."));
    return;
  }
  if (!launches_) {
    prepared_ = absl::OkStatus();
    return;
  }
  prepared_ = MakePlan();
  if (!prepared_->ok()) {
    unprepared_ = v1::Attempt::LAUNCH_ERROR;
    return;
  }
  prepared_ = WriteRecords();
}

absl::Status Attempt::MakePlan() {
  absl::StatusOr<const Framework*> framework = FrameworkOf(host_.frameworks, desired_.spec().engine());
  if (!framework.ok()) return framework.status();
  absl::StatusOr<RankProgram> program = (*framework)->ProgramOf(desired_);
  if (!program.ok()) return program.status();
  absl::StatusOr<LaunchPlan> planned = PlanLaunch(desired_, *program, host_.launch);
  if (!planned.ok()) return planned.status();
  plan_ = *std::move(planned);
  if (desired_.spec().extract().fields().empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<OutputMetrics>> metrics =
      OutputMetrics::New(host_.loop, desired_.spec().extract(), {Path("rank-0.out"), Path("rank-0.err")},
                         Path("events-0.jsonl"));
  if (!metrics.ok()) return metrics.status();
  output_metrics_ = *std::move(metrics);
  return absl::OkStatus();
}

// Writes spec.json, hosts and provenance.json.
absl::Status Attempt::WriteRecords() {
  // The values of `env` may be secret. Ranks and srun, which read these files, have the account of this worker.
  const std::string spec = SpecJson(desired_.spec());
  for (const auto& [name, text] : {std::pair("spec.json", &spec), {"hosts", &plan_.hosts}}) {
    if (text->empty()) continue;
    if (!WriteFileWhole(Path(name), *text, kOwnerOnly)) {
      return absl::ErrnoToStatus(errno, absl::StrCat("Cannot write '", Path(name), "'"));
    }
  }
  TakeCode();
  RecordProvenance();
  return absl::OkStatus();
}

// Reads the code of a user's program. Returns whether it or the file of its difference differs from what was read before.
bool Attempt::TakeCode() {
  if (!RunsOwnProgram(desired_.spec().engine())) return false;
  const auto command = ExpandedCommand(desired_.spec());
  if (!command.ok()) return false;
  Code code = host_.provenance.CodeOf(host_.processes, *command, desired_.directory());
  const bool differs =
      code.snapshot.SerializeAsString() != code_.snapshot.SerializeAsString() || code.diff != code_.diff;
  code_ = std::move(code);
  return differs;
}

void Attempt::RecordProvenance() {
  ordered_json attempt = {
      {"attempt", token()},
      {"run", desired_.run()},
      {"allocation", host_.allocation},
      {"nodes", std::vector<std::string>(desired_.nodes().begin(), desired_.nodes().end())},
      {"node", host_.node},
      {"time", Time(absl::Now())},
      {"spec_sha256", Sha256(SpecJson(desired_.spec()))}};
  if (desired_.has_environment()) attempt["framework"] = EnvironmentJson(desired_.environment());
  if (code_.snapshot.files_size() > 0)
    attempt["code"] = CodeJson(code_.snapshot, code_.diff == nullptr ? "" : code_.diff->path);
  host_.provenance.Record(desired_.directory(), std::move(attempt));
}

// Writes launch.json. Its existence also marks the attempt as launched.
absl::Status Attempt::WriteLaunch() {
  ordered_json launch;
  launch["attempt"] = token();
  launch["node"] = host_.node;
  launch["time"] = Time(absl::Now());
  launch["commands"] = ordered_json::array();
  for (const Command& command : plan_.commands) {
    launch["commands"].push_back(
        {{"argv", command.argv}, {"environment", RedactedEnvironment(command.environment)}});
  }
  const std::string text = launch.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  // Redaction by the names of variables does not find all secrets, and a command may contain values of `env`.
  if (WriteFileWhole(Path("launch.json"), text, kOwnerOnly)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("Cannot write '", Path("launch.json"), "'"));
}

void Attempt::OnStarted(absl::StatusOr<int> pid) {
  if (!pid.ok()) {
    job_ = 0;
    Fail(absl::IsUnavailable(pid.status()) ? v1::Attempt::STORAGE_ERROR : v1::Attempt::LAUNCH_ERROR, 127,
         std::string(pid.status().message()));
  } else {
    spdlog::info("Attempt {} ({}) started, process {}", token(), desired_.run(), *pid);
    phase_ = Phase::kRunning;
    if (output_metrics_ != nullptr) output_metrics_->Start();
  }
  changed_();
}

void Attempt::OnEnded(const JobResult& result) {
  job_ = 0;
  host_.loop.Cancel(std::exchange(checkpoint_timer_, 0));
  run_time_ = host_.loop.Now() - started_at_;
  ran_ = true;
  meter_.Finish(&noise_);
  const bool by_signal = result.exit_status > 128;
  if (launcher_ != "srun" || !by_signal || stopping_ || abandoned_) return Conclude(result);
  settle_timer_ = host_.loop.After(kSettle, [this, result] {
    settle_timer_ = 0;
    Conclude(result);
  });
}

void Attempt::Conclude(const JobResult& result) {
  exit_status_ = result.exit_status;
  if (result.exit_status != 0 && !stopping_) {
    const v1::RunSpec& spec = desired_.spec();
    const ExitCause judged =
        JudgeExit(result, launcher_, spec.ranks(), desired_.directory(), spec.launcher() == "torchrun");
    cause_ = judged.cause;
    message_ = judged.message;
    spdlog::info("Attempt {} ended with status {}: {}", token(), exit_status_, message_);
  } else if (stopping_) {
    message_ = "Stopped.";
  }
  if (output_metrics_ != nullptr && !abandoned_) return FinishOutputMetrics();
  EndRanksHere(GraceOf(desired_));
  changed_();
}

// Reads the rest of the output, and then continues with the end of the attempt.
void Attempt::FinishOutputMetrics() {
  const bool succeeded = exit_status_ == 0 && !stopping_;
  output_metrics_->Finish(succeeded, [this, succeeded](const std::string& problem) {
    if (succeeded && !problem.empty()) {
      cause_ = v1::Attempt::NO_FINISH;
      message_ = problem;
    }
    EndRanksHere(GraceOf(desired_));
    changed_();
  });
}

// Ends the ranks that slurmstepd started on this node and that outlived srun.
void Attempt::EndRanksHere(absl::Duration grace) {
  const auto gone = [this] {
    ending_ranks_ = false;
    meter_.Finish(&noise_);
    if (abandoned_) return End();
    phase_ = Phase::kDraining;
    // Do this later, so that the next attempt begins first.
    drain_timer_ = host_.loop.After(absl::ZeroDuration(), [this] {
      drain_timer_ = 0;
      if (launches_) WriteExit();
      Drain();
    });
  };
  if (host_.launch.launcher != Launcher::kSrun) return gone();
  ending_ranks_ = true;
  ranks_here_->End(grace, [this, gone] {
    gone();
    changed_();
  });
}

void Attempt::Drain() {
  output_limit_.Finish();
  if (launches_) {
    const bool framework = desired_.has_environment();
    software_ = SoftwareOf(framework ? &desired_.environment() : nullptr, Path("events-0.jsonl"));
  }
  if (Planted(Bug::kEndBeforeEvents)) return End();
  host_.follower.Finish(token(), [this] {
    AddProblem(host_.follower.Problem(token()));
    End();
    changed_();
  });
}

// Adds to the report that events may be missing. If there is no other cause, the attempt fails
// for this reason.
void Attempt::AddProblem(const std::string& problem) {
  if (problem.empty()) return;
  absl::StrAppend(&message_, message_.empty() ? "" : " ", "Events may be missing: ", problem, ".");
  if (cause_ == v1::Attempt::CAUSE_UNSPECIFIED && exit_status_ == 0) cause_ = v1::Attempt::NO_FINISH;
  spdlog::warn("Attempt {}: events may be missing: {}", token(), problem);
  if (launches_) WriteExit();
}

void Attempt::End() {
  phase_ = Phase::kEnded;
  if (drain_timer_ != 0) {
    host_.loop.Cancel(std::exchange(drain_timer_, 0));
    if (launches_) WriteExit();
  }
  output_limit_.Finish();
  if (std::exchange(followed_, false)) host_.follower.Forget(token());
  if (power_ != nullptr) host_.power->Stop(std::exchange(power_, nullptr));
  output_metrics_.reset();
}

void Attempt::Fail(v1::Attempt::Cause cause, int exit_status, std::string message) {
  spdlog::warn("Attempt {} failed: {}", token(), message);
  cause_ = cause;
  exit_status_ = exit_status;
  message_ = std::move(message);
  End();
  WriteExit();
}

void Attempt::WriteExit() {
  const ordered_json exit = {{"attempt", token()},
                             {"time", Time(absl::Now())},
                             {"exit_status", exit_status_},
                             {"stopped", stopping_},
                             {"cause", v1::Attempt::Cause_Name(cause_)},
                             {"message", message_}};
  const std::string text = exit.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (!WriteFileWhole(Path("exit.json"), text))
    spdlog::warn("Cannot write '{}': {}", Path("exit.json"), strerror(errno));
}

void Attempt::Stop(absl::Duration grace) {
  if (phase_ == Phase::kEnded) return;
  host_.loop.Cancel(std::exchange(checkpoint_timer_, 0));
  stopping_ = true;
  if (job_ != 0) host_.processes.Stop(job_, grace);
  if (launches_ || phase_ != Phase::kRunning) return;
  ran_ = ranks_finished_;
  EndRanksHere(grace);
}

void Attempt::StopAfterCheckpoint(absl::Duration grace) {
  // torchrun ends at SIGUSR1; at SIGTERM it waits for its processes.
  const bool writes = !desired_.checkpoint_directory().empty() && desired_.spec().launcher() != "torchrun";
  if (!writes || stopping_ || !busy()) return Stop(grace);
  if (launches_) {
    if (job_ == 0) return Stop(grace);
    stopping_ = true;
    host_.processes.Notify(job_);
  }
  // On other nodes the attempt continues until the coordinator stops it, which it does when the ranks have ended.
  checkpoint_timer_ = host_.loop.After(kCheckpointTime, [this, grace] {
    checkpoint_timer_ = 0;
    Stop(grace);
  });
}

void Attempt::Abandon(absl::Duration grace) {
  if (std::exchange(abandoned_, true)) return;
  Stop(grace);
  if (job_ != 0 || settle_timer_ != 0 || ending_ranks_) return;
  if (!launches_ || phase_ != Phase::kRunning) return End();
  // The rest of the output was being read. Ranks that outlived srun may be left.
  output_metrics_.reset();
  EndRanksHere(grace);
}

bool Attempt::TakeProcessesGone() {
  if (phase_ == Phase::kPreparing || phase_ == Phase::kRunning) return false;
  return std::exchange(ran_, false);
}

void Attempt::AddCalibration(const v1::Calibration& after) {
  awaits_calibration_ = false;
  *noise_.mutable_after() = after;
}

// The coordinator compares only runs with the same software, so the report of the end must
// contain the versions.
bool Attempt::AwaitsVersions() const {
  return host_.provenance.asking() && cause_ == v1::Attempt::CAUSE_UNSPECIFIED && exit_status_ == 0 &&
         RunsTrainer(desired_.spec().engine());
}

bool Attempt::AwaitsDiff() const {
  return code_.awaits_diff() && cause_ == v1::Attempt::CAUSE_UNSPECIFIED && exit_status_ == 0 && !stopping_;
}

v1::SynchronizeRequest::AttemptStatus Attempt::Status() const {
  using AttemptStatus = v1::SynchronizeRequest::AttemptStatus;
  AttemptStatus status;
  status.set_token(token());
  status.set_stopped(stopping_);
  if (phase_ != Phase::kPreparing && code_.snapshot.files_size() > 0)
    *status.mutable_code() = code_.Complete();
  switch (phase_) {
    case Phase::kPreparing:
      status.set_state(AttemptStatus::PREPARING);
      break;
    case Phase::kRunning:
    case Phase::kDraining:
      status.set_state(AttemptStatus::RUNNING);
      break;
    case Phase::kEnded:
      if (!reports_end()) {
        status.set_state(AttemptStatus::RUNNING);
        break;
      }
      status.set_state(AttemptStatus::ENDED);
      status.set_exit_status(exit_status_);
      status.set_cause(cause_);
      status.set_message(ValidUtf8(message_));
      status.set_run_seconds(absl::ToDoubleSeconds(run_time_));
      status.mutable_software()->insert(software_.begin(), software_.end());
      if (desired_.calibration_seconds() > 0) *status.mutable_noise() = noise_;
      break;
  }
  return status;
}

}  // namespace scalelab::worker
