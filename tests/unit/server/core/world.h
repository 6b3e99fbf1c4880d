// A small language for tests of the lifecycle: studies, a scheduler and workers.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/lifecycle.h"
#include "server/core/submission.h"

namespace scalelab::server {

// Expects that the allocations of each study are those of the state, with correct counts.
inline void ExpectCounted(const State& state) {
  for (const auto& [id, study] : state.studies) {
    std::set<int64_t> ids, runs;
    std::map<int64_t, std::pair<std::optional<BlockPart>, int>> unoccupied;
    std::map<BlockPart, std::set<int64_t>> holders;
    size_t serving = 0, holding = 0;
    for (const auto& [allocation_id, allocation] : state.allocations) {
      if (allocation->row.study_id != id) continue;
      ids.insert(allocation_id);
      runs.insert(allocation->row.run_id);
      if (Serves(*allocation)) ++serving;
      if (Holds(*allocation)) ++holding;
      if (Holds(*allocation) && allocation->part) holders[*allocation->part].insert(allocation_id);
      if (Serves(*allocation) && allocation->attempt_id == 0)
        unoccupied[allocation_id] = {allocation->part, allocation->row.nodes};
    }
    std::map<int64_t, std::pair<std::optional<BlockPart>, int>> known;
    for (const auto& [allocation_id, one] : study->allocations.unoccupied())
      known[allocation_id] = {one.part, one.nodes};
    EXPECT_TRUE(known == unoccupied);
    for (const db::RunRow& run : study->runs) {
      for (int shape = 0; shape < static_cast<int>(study->shapes.size()); ++shape) {
        const std::set<int64_t>& of_part = holders[{run.repeat, shape}];
        EXPECT_EQ(study->allocations.HolderOf({run.repeat, shape}), of_part.empty() ? 0 : *of_part.begin());
      }
    }
    EXPECT_EQ(std::set<int64_t>(study->allocations.begin(), study->allocations.end()), ids);
    EXPECT_EQ(study->allocations.serving(), serving);
    EXPECT_EQ(study->allocations.holding(), holding);
    std::set<int> unallocated;
    for (const db::RunRow& run : study->runs) {
      const bool own = study->spec.allocation() == v1::StudySpec::PER_RUN;
      if (own && run.state == db::RunState::kQueued && !runs.contains(run.id))
        unallocated.insert(run.position);
    }
    EXPECT_EQ(study->unallocated, unallocated);
  }
}

// Takes all allocations but one out of the state. Code that looks at one of the others then reads a null pointer.
inline decltype(State::allocations) TakeOthers(State& state, const std::string& token) {
  decltype(State::allocations) others;
  const int64_t kept = state.allocation_by_token.at(token);
  for (auto it = state.allocations.begin(); it != state.allocations.end();) {
    const auto entry = it++;
    if (entry->first != kept) others.insert(state.allocations.extract(entry));
  }
  return others;
}

class World {
 public:
  ~World() { ExpectCounted(state); }
  explicit World(bool read_events = false, bool runs_by_owner = false, bool assess = false)
      : read_events_(read_events), runs_by_owner_(runs_by_owner), assess_(assess) {}

  static v1::StudySpec Spec(std::vector<int> ranks, int repeats = 1) {
    v1::StudySpec spec;
    spec.set_study("test");
    (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet20");
    (*spec.mutable_fixed()->mutable_fields())["dataset"].set_string_value("synthetic");
    auto* axis = spec.add_matrix();
    axis->set_key("ranks");
    for (const int r : ranks) axis->add_values()->set_number_value(r);
    spec.set_repeats(repeats);
    spec.set_order(v1::StudySpec::LISTED);
    spec.mutable_scaling()->set_global_batch(64);
    return spec;
  }

  int64_t Submit(const v1::StudySpec& spec, const std::string& request_id = "",
                 const std::string& owner = "ann") {
    const auto id = TrySubmit(spec, request_id, owner);
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  absl::StatusOr<int64_t> TrySubmit(const v1::StudySpec& spec, const std::string& request_id,
                                    const std::string& owner = "ann") {
    auto expanded = ExpandStudy(spec);
    if (!expanded.ok()) return expanded.status();
    return lifecycle.Submit(MakeNewStudy(spec, *std::move(expanded), owner, request_id), now, fx);
  }

  // Advances the clock and handles timeouts.
  void After(double seconds) {
    now += static_cast<db::Micros>(seconds * 1e6);
    lifecycle.Tick(now, fx);
  }
  // Returns the token of the last job submitted since the last call, or an empty text.
  std::string AskedFor() {
    lifecycle.Plan(now, fx);
    if (fx.submit.empty()) return "";
    const std::string token = fx.submit.back().token;
    fx.submit.clear();
    return token;
  }
  void Job(const std::string& token, JobStatus::State state, const std::string& reason = "") {
    JobStatus status{token, "job-1", state, reason};
    status.ends_at = ends_at;
    lifecycle.JobsPolled({status}, now, now, fx);
  }
  bool Asked(const std::string& token) const {
    for (const JobRequest& request : fx.submit) {
      if (request.token == token) return true;
    }
    return false;
  }
  bool Cancelled(const std::string& token) const {
    return std::find(fx.cancel.begin(), fx.cancel.end(), token) != fx.cancel.end();
  }

  using Status = v1::SynchronizeRequest::AttemptStatus;
  // Sends a worker report and returns the desired state.
  v1::SynchronizeResponse Sync(const std::string& allocation, std::vector<Status> attempts = {},
                               const std::string& instance = "life-1", bool leaving = false, int node = 0) {
    v1::SynchronizeRequest request;
    request.set_node(absl::StrCat(node_prefix, node));
    request.set_node_index(node);
    request.set_instance(instance);
    int64_t& generation = received[{allocation, instance, node}];
    request.set_generation(generation);
    request.set_leaving(leaving);
    request.set_queue_limit(queue_limit);
    *request.mutable_info() = info;
    for (Status& status : attempts) *request.add_attempts() = std::move(status);
    const absl::Status seen = lifecycle.Observe(allocation, request, now, fx);
    EXPECT_TRUE(seen.ok()) << seen;
    const auto it = state.allocation_by_token.find(allocation);
    if (it == state.allocation_by_token.end()) return {};
    const v1::SynchronizeResponse desired = lifecycle.Desired(*state.allocation(it->second), node);
    generation = desired.generation();
    return desired;
  }
  static Status Running(const std::string& token) { return Make(token, Status::RUNNING); }
  static Status Ended(const std::string& token, int exit_status = 0,
                      v1::Attempt::Cause cause = v1::Attempt::CAUSE_UNSPECIFIED) {
    Status status = Make(token, Status::ENDED);
    status.set_exit_status(exit_status);
    status.set_cause(cause);
    if (exit_status != 0) status.set_message("last words");
    return status;
  }

  // A part of a rank's event file, sent by a worker of the attempt's allocation.
  v1::ReportEventsResponse::Stream Report(const std::string& token, int rank, int64_t begin, int64_t end,
                                          bool finish = false, const std::string& hash = "h") {
    const auto attempt = state.attempt_by_token.find(token);
    const bool live = attempt != state.attempt_by_token.end();
    return ReportFrom(live ? AllocationOf(attempt->second) : "", token, rank, begin, end, finish, hash);
  }
  std::string AllocationOf(int64_t attempt_id) const {
    return state.allocation(state.attempt(attempt_id)->row.allocation_id)->row.token;
  }
  // Like the function above, but a worker of any allocation sends the part.
  v1::ReportEventsResponse::Stream ReportFrom(const std::string& allocation, const std::string& token,
                                              int rank, int64_t begin, int64_t end, bool finish = false,
                                              const std::string& hash = "h") {
    ParsedBatch batch;
    batch.token = token;
    batch.append.rank = rank;
    batch.append.begin_position = begin;
    batch.append.end_position = end;
    batch.append.begin_line = begin / 10;
    batch.append.end_line = end / 10;
    if (finish) {
      batch.append.finished = true;
      batch.append.parameter_hash = hash;
      batch.finish_metrics = {{"run/throughput", 100.0 + rank}, {"run/peak_memory_bytes", 10.0 + rank}};
    }
    std::vector<ParsedBatch> batches;
    batches.push_back(std::move(batch));
    return lifecycle.Ingest(allocation, std::move(batches), fx).front();
  }
  // Finishes all ranks and reports the end of the attempt.
  v1::SynchronizeResponse Finish(const std::string& allocation, const v1::SynchronizeResponse& desired) {
    const auto& attempt = desired.attempts(0);
    for (int r = 0; r < attempt.spec().ranks(); ++r) Report(attempt.token(), r, 0, 10, true);
    return Sync(allocation, {Ended(attempt.token())});
  }

  const LiveStudy& study(int64_t id) const { return *state.study(id); }
  db::RunState run_state(int64_t study_id, int position) const {
    return study(study_id).runs[position].state;
  }

  // The generation of the last desired state that each worker received, by allocation, instance and node.
  std::map<std::tuple<std::string, std::string, int>, int64_t> received;
  State state;
  Effects fx;
  db::Micros now = 1'000'000'000;
  absl::Time ends_at = absl::InfiniteFuture();  // end of the time limit in reports of Job()
  int queue_limit = 0;                          // of the workers
  std::string node_prefix = "node-";            // the part of node names before the index
  v1::NodeInfo info;                            // facts about the workers' nodes

 private:
  static Status Make(const std::string& token, Status::State state) {
    Status status;
    status.set_token(token);
    status.set_state(state);
    return status;
  }
  LifecycleOptions Options() {
    LifecycleOptions options;
    options.runs_dir = "/runs";
    options.runs_by_owner = runs_by_owner_;
    options.worker_timeout = 30'000'000;
    options.read_events = read_events_;
    options.assess = assess_;
    options.avoid_nodes = true;
    options.recovery_bytes = int64_t{1} << 20;
    options.new_token = [this] { return absl::StrCat("token-", ++tokens_); };
    options.environment_of = [](const std::string& name) -> std::optional<v1::FrameworkEnvironment> {
      const Engine* engine = FindEngine(name);
      if (engine == nullptr || engine->program != Engine::Program::kAdapter) return std::nullopt;
      v1::FrameworkEnvironment environment;
      environment.set_venv(absl::StrCat("/frameworks/", engine->environment));
      return environment;
    };
    return options;
  }
  const bool read_events_;
  const bool runs_by_owner_;
  const bool assess_;
  int tokens_ = 0;

 public:
  Lifecycle lifecycle{Options(), state};
};

// A study of one cell whose only run is being executed.
struct OneRun : World {
  explicit OneRun(int ranks = 1, bool read_events = false) : World(read_events) {
    id = Submit(Spec({ranks}));
    job = AskedFor();
    Job(job, JobStatus::State::kRunning);
    desired = Sync(job);
    token = desired.attempts(0).token();
    Sync(job, {Running(token)});
  }
  int64_t id;
  std::string job, token;
  v1::SynchronizeResponse desired;
};

}  // namespace scalelab::server
