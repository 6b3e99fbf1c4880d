#include "server/metrics/metrics.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "google/protobuf/descriptor.h"
#include "prometheus/text_serializer.h"

namespace scalelab::server {
namespace {

constexpr const char* kCodes[] = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
constexpr const char* kCalls[] = {"submit", "cancel", "poll", "view"};
// The checks of Watchdog.
constexpr const char* kChecks[] = {"core_thread", "database", "worker_calls"};

// Bounds of histograms of seconds. They reach from a commit without a sync to a call at its time limit.
const prometheus::Histogram::BucketBoundaries& Seconds() {
  static const auto* const bounds = new prometheus::Histogram::BucketBoundaries{
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120};
  return *bounds;
}

int64_t SizeOf(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? found.st_size : 0;
}

// Returns the start of this process in seconds since the Unix epoch.
double StartTime() {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // The second field is the name of the program in parentheses, which may contain spaces. The start time is
  // field 22, the 20th after the name.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double started = std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
  const double now_since_boot =
      static_cast<double>(since_boot.tv_sec) + 1e-9 * static_cast<double>(since_boot.tv_nsec);
  return absl::ToUnixMillis(absl::Now()) / 1000.0 - (now_since_boot - started);
}

int64_t OpenFiles() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int64_t count = -3;  // ".", ".." and the directory itself
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

std::string CauseText(const std::string& name) { return absl::AsciiStrToLower(name); }

// Returns whether the row is the first one of its attempt. An attempt that is still assigned gets another
// row when it reports a checkpoint and when its worker is lost.
bool IsNew(const db::AttemptRow& row) {
  return row.state == db::AttemptState::kAssigned && row.cause == db::Cause::kNone && row.resumed_step == 0 &&
         row.checkpoint_step == 0;
}

}  // namespace

Metrics::Metrics(const std::string& version) {
  AddCore();
  AddRpcs();
  for (const char* check : kChecks) {
    problems_[check] = &Gauges("scalelab_check_failed", "1 while this check of the service's health fails")
                            .Add({{"check", check}});
  }
  pools_ = &Gauges("scalelab_pool_queue_length", "Calls that wait for a thread of a pool");
  connections_ = AddGauge("scalelab_connections", "Open connections of clients and workers");
  database_ = AddGauge("scalelab_database_bytes", "Size of the database file");
  wal_ = AddGauge("scalelab_database_wal_bytes", "Size of the write-ahead log of the database");
  disk_ = AddGauge("scalelab_data_disk_size_bytes", "Size of the filesystem of the data directory");
  disk_free_ =
      AddGauge("scalelab_data_disk_free_bytes", "Free bytes of the filesystem of the data directory");
  notices_pending_ = AddGauge("scalelab_notifications_pending", "Notifications that are not sent yet");
  notices_given_up_ = AddGauge("scalelab_notifications_given_up", "Notifications that could not be sent");
  memory_ = AddGauge("process_resident_memory_bytes", "Resident memory of the process");
  files_ = AddGauge("process_open_fds", "Open file descriptors of the process");
  cpu_ = &Counters("process_cpu_seconds_total", "CPU time of the process").Add({});
  AddGauge("process_start_time_seconds", "Start of the process, in seconds since the Unix epoch")
      ->Set(StartTime());
  Gauges("scalelab_build_info", "1; the label has the version").Add({{"version", version}}).Set(1);
}

prometheus::Family<prometheus::Gauge>& Metrics::Gauges(const std::string& name, const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
}
prometheus::Family<prometheus::Counter>& Metrics::Counters(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
}
prometheus::Family<prometheus::Histogram>& Metrics::Histograms(const std::string& name,
                                                               const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
}
prometheus::Gauge* Metrics::AddGauge(const std::string& name, const std::string& help) {
  return &Gauges(name, help).Add({});
}

void Metrics::AddCore() {
  auto& commits = Counters("scalelab_commits_total", "Commits of the coordinator to the database");
  commits_ = {&commits.Add({{"result", "ok"}}), &commits.Add({{"result", "error"}})};
  commit_seconds_ =
      &Histograms("scalelab_commit_seconds", "Time of a commit of the coordinator").Add({}, Seconds());
  points_ = &Counters("scalelab_points_stored_total", "Points of metrics that were stored").Add({});
  auto& started = Counters("scalelab_attempts_started_total", "Attempts that were assigned to a worker");
  attempts_started_ = {&started.Add({{"kind", "first"}}), &started.Add({{"kind", "retry"}})};
  auto& ended = Counters("scalelab_attempts_ended_total",
                         "Attempts that have ended, by cause; none: success or cancelled");
  for (int cause = 0; cause <= static_cast<int>(LastOf(db::Cause{})); ++cause) {
    const std::string name =
        cause == 0 ? "none" : CauseText(v1::Attempt::Cause_Name(static_cast<v1::Attempt::Cause>(cause)));
    attempts_ended_.push_back(&ended.Add({{"cause", name}}));
  }
  auto& calls = Counters("scalelab_scheduler_calls_total", "Commands of the scheduler that were run");
  auto& seconds = Histograms("scalelab_scheduler_call_seconds", "Time of a command of the scheduler");
  for (size_t i = 0; i < std::size(kCalls); ++i) {
    scheduler_calls_[i] = {&calls.Add({{"call", kCalls[i]}, {"result", "ok"}}),
                           &calls.Add({{"call", kCalls[i]}, {"result", "error"}})};
    scheduler_seconds_[i] = &seconds.Add({{"call", kCalls[i]}}, Seconds());
  }
  last_poll_ = AddGauge("scalelab_scheduler_last_poll_timestamp_seconds",
                        "When the scheduler answered a poll for the last time; 0: not yet");
  scheduler_failing_ = AddGauge("scalelab_scheduler_failing_since_timestamp_seconds",
                                "Since when calls of the scheduler fail; 0: they succeed");
  const auto add = [](prometheus::Family<Gauge>& family, std::initializer_list<const char*> states) {
    std::map<std::string, Gauge*> gauges;
    for (const char* state : states) gauges[state] = &family.Add({{"state", state}});
    return gauges;
  };
  runs_ = add(Gauges("scalelab_runs", "Runs of studies that are not final, by state"), {"queued", "running"});
  studies_ = add(Gauges("scalelab_studies", "Studies that are not final, by state"),
                 {"queued", "running", "paused"});
  allocations_ = add(Gauges("scalelab_allocations", "Allocations that have not ended, by state"),
                     {"intended", "pending", "running", "releasing"});
  attempts_ = add(Gauges("scalelab_attempts", "Live attempts by state"), {"assigned", "running", "stopping"});
  workers_ = AddGauge("scalelab_workers", "Workers that have reported in an allocation that has not ended");
  waiting_ =
      AddGauge("scalelab_studies_waiting_for_allocation", "Studies in the queue for another allocation");
  sampled_ = AddGauge(
      "scalelab_sample_timestamp_seconds",
      "When the core thread reported the numbers of runs, studies, allocations, attempts and workers");
}

void Metrics::AddRpcs() {
  auto& ended = Counters("scalelab_rpcs_total", "Calls that have ended, by method and status code");
  auto& seconds = Histograms("scalelab_rpc_seconds", "Time of calls by method, without streams");
  const auto add = [&](const std::string& label, bool stream) {
    Rpc rpc;
    for (size_t code = 0; code < rpc.ended.size(); ++code)
      rpc.ended[code] = &ended.Add({{"method", label}, {"code", kCodes[code]}});
    if (!stream) rpc.seconds = &seconds.Add({{"method", label}}, Seconds());
    return rpc;
  };
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const absl::string_view name : absl::StrSplit(SCALELAB_API_FILES, ' ')) {
    const auto* file = pool->FindFileByName(std::string(name));
    for (int s = 0; file != nullptr && s < file->service_count(); ++s) {
      const auto* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        const auto* method = service->method(m);
        rpcs_[absl::StrCat("/", service->full_name(), "/", method->name())] =
            add(absl::StrCat(service->name(), "/", method->name()),
                method->server_streaming() || method->client_streaming());
      }
    }
  }
  other_rpcs_ = add("other", true);
}

void Metrics::Committed(const db::WriteBatch& batch, absl::Duration took, const absl::Status& status) {
  commits_[status.ok() ? 0 : 1]->Increment();
  commit_seconds_->Observe(absl::ToDoubleSeconds(took));
  if (!status.ok()) return;
  size_t points = 0;
  for (const db::StreamAppend& append : batch.appends) {
    for (const db::PointColumn& column : append.columns) points += column.line.size();
  }
  points_->Increment(static_cast<double>(points));
  for (const db::AttemptRow& row : batch.attempts) {
    if (IsNew(row)) attempts_started_[row.number > 1 ? 1 : 0]->Increment();
    if (IsFinal(row.state)) attempts_ended_[static_cast<size_t>(row.cause)]->Increment();
  }
}

void Metrics::SchedulerCalled(SchedulerCall call, absl::Duration took, const absl::Status& status) {
  const auto i = static_cast<size_t>(call);
  scheduler_calls_[i][status.ok() ? 0 : 1]->Increment();
  scheduler_seconds_[i]->Observe(absl::ToDoubleSeconds(took));
  if (call == SchedulerCall::kPoll && status.ok()) last_poll_->SetToCurrentTime();
}

void Metrics::RpcEnded(const std::string& method, int code, absl::Duration took) {
  const auto found = rpcs_.find(method);
  const Rpc& rpc = found == rpcs_.end() ? other_rpcs_ : found->second;
  const bool known = code >= 0 && code < static_cast<int>(rpc.ended.size());
  rpc.ended[known ? code : 2]->Increment();  // 2: UNKNOWN
  if (rpc.seconds != nullptr) rpc.seconds->Observe(absl::ToDoubleSeconds(took));
}

void Metrics::SetState(const State& state) {
  int64_t queued = 0, running = 0, studies[3] = {};
  for (const auto& [id, study] : state.studies) {
    queued += study->counts[static_cast<size_t>(db::RunState::kQueued)];
    running += study->counts[static_cast<size_t>(db::RunState::kRunning)];
    ++studies[!study->row.pause_reason.empty() ? 2 : study->row.state == db::StudyState::kRunning ? 1 : 0];
  }
  runs_["queued"]->Set(static_cast<double>(queued));
  runs_["running"]->Set(static_cast<double>(running));
  studies_["queued"]->Set(static_cast<double>(studies[0]));
  studies_["running"]->Set(static_cast<double>(studies[1]));
  studies_["paused"]->Set(static_cast<double>(studies[2]));

  std::array<int, 6> allocations{};  // by db::AllocationState
  size_t workers = 0;
  for (const auto& [id, allocation] : state.allocations) {
    ++allocations[static_cast<size_t>(allocation->row.state)];
    workers += allocation->workers.size();
  }
  allocations_["intended"]->Set(allocations[1]);
  allocations_["pending"]->Set(allocations[2]);
  allocations_["running"]->Set(allocations[3]);
  allocations_["releasing"]->Set(allocations[4]);
  workers_->Set(static_cast<double>(workers));

  std::array<int, 7> attempts{};  // by db::AttemptState
  for (const auto& [id, attempt] : state.attempts) ++attempts[static_cast<size_t>(attempt->row.state)];
  attempts_["assigned"]->Set(attempts[1]);
  attempts_["running"]->Set(attempts[2]);
  attempts_["stopping"]->Set(attempts[3]);
  waiting_->Set(static_cast<double>(state.waiting.size()));
  scheduler_failing_->Set(static_cast<double>(state.scheduler.since) / 1e6);
  sampled_->SetToCurrentTime();
}

void Metrics::SetDatabase(const std::string& path) {
  database_->Set(static_cast<double>(SizeOf(path)));
  wal_->Set(static_cast<double>(SizeOf(path + "-wal")));
  struct statvfs disk {};
  if (statvfs(path.c_str(), &disk) != 0) return;
  disk_->Set(static_cast<double>(disk.f_blocks) * static_cast<double>(disk.f_frsize));
  disk_free_->Set(static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize));
}

void Metrics::SetPools(const std::vector<std::pair<std::string, size_t>>& queued) {
  for (const auto& [pool, length] : queued) pools_->Add({{"pool", pool}}).Set(static_cast<double>(length));
}

void Metrics::SetNotices(int64_t pending, int64_t given_up) {
  notices_pending_->Set(static_cast<double>(pending));
  notices_given_up_->Set(static_cast<double>(given_up));
}

void Metrics::SetProblem(const std::string& problem) {
  for (auto& [check, gauge] : problems_) gauge->Set(check == problem ? 1 : 0);
}

void Metrics::SetProcess() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (statm >> size >> resident) memory_->Set(static_cast<double>(resident * sysconf(_SC_PAGESIZE)));
  files_->Set(static_cast<double>(OpenFiles()));
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  const double seconds = static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  cpu_->Increment(std::max(0.0, seconds - cpu_->Value()));
}

std::string Metrics::Text() {
  SetProcess();
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry_.Collect());
  return out.str();
}

}  // namespace scalelab::server
