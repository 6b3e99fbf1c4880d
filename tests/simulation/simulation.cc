#include "tests/simulation/simulation.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <memory>

#include "server/core/explain.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/event_files.h"
#include "tests/simulation/user_agent.h"
#include "tests/simulation/worker.h"

namespace scalelab::simulation {
namespace {

// After the last fault, all studies must become final within this time.
constexpr absl::Duration kSettleWithin = absl::Hours(24);
constexpr absl::Duration kExplainPeriod = absl::Minutes(3);
// Maximum number of calls of the scheduler in an hour.
constexpr double kMostCalls = 2000;

class Simulation {
 public:
  Simulation(uint64_t seed, const std::string& database, bool print_trace)
      : world_(seed, print_trace),
        model_(world_),
        process_(world_, model_, database),
        network_(world_, process_),
        events_(world_, process_, directories_),
        site_{world_, network_, model_, directories_},
        slurm_(world_, {[this](const auto& request, auto nodes, auto ended) {
                          return LaunchWorkers(site_, request, std::move(nodes), std::move(ended));
                        },
                        [this] { process_.MaybeCrash(Fault::kCrashInCall); },
                        [this](absl::Duration time) { process_.Block(time); },
                        [this](const auto& request) { model_.JobAccepted(request); }}),
        clients_(world_, network_, model_, slurm_.nodes()) {
    process_.set_scheduler([this] { return slurm_.NewScheduler(); });
    process_.set_events(events_);
    if (world_.faults.HasAgent()) {
      agent_ = std::make_unique<UserAgent>(world_, process_, slurm_);
      slurm_.set_agent(agent_.get());
    }
  }

  Result Run() {
    world_.Trace("faults until ", absl::FormatDuration(world_.faults.End()), ": ",
                 world_.faults.EnabledNames());
    if (agent_ != nullptr) world_.Trace("jobs run through the agent of a user");
    process_.Start();
    CheckSometimes();
    world_.queue.RunUntil(world_.faults.End());
    const absl::Duration limit = world_.faults.End() + kSettleWithin;
    while (!Settled() && world_.queue.Steady() < limit)
      world_.queue.RunUntil(world_.queue.Steady() + absl::Minutes(1));
    CheckEnd();
    Result result;
    result.hash = world_.hash;
    result.hours = absl::ToDoubleHours(world_.queue.Steady());
    result.violations = world_.violations;
    result.enabled_faults = world_.faults.EnabledNames();
    result.faults = world_.faults.counts();
    result.studies = model_.studies();
    result.attempts = model_.attempts();
    result.submits = slurm_.submits();
    result.polls = slurm_.polls();
    result.cancels = slurm_.cancels();
    result.calls_per_hour = CallsPerHour();
    return result;
  }

 private:
  bool Settled() const {
    return process_.running() && clients_.Idle() && model_.Settled() &&
           slurm_.LiveJobs(/*late=*/true).empty();
  }

  // Checks that `explain` has a reason for every study that is not final, and that every job
  // has an allocation.
  void CheckSometimes() {
    world_.queue.After(kExplainPeriod, [this] { CheckSometimes(); });
    CheckJobs();
    process_.Deliver([this] {
      process_.coordinator().Read([this](const server::State* state) {
        if (state == nullptr) return;
        const db::Micros now = absl::ToUnixMicros(world_.queue.Wall());
        model_.CheckUsage(*state, now);
        for (const auto& [id, study] : state->studies) {
          const auto reasons = server::ExplainStudy(*state, *study, now);
          if (reasons.empty() || reasons[0].message().empty())
            world_.Violation("study ", id, " has no reason");
          for (const auto& run : study->runs) {
            const auto why = server::ExplainRun(*state, *study, run.position, now);
            if (why.empty() || why[0].message().empty()) world_.Violation("run ", run.id, " has no reason");
          }
          if (!reasons.empty()) world_.Trace("study ", id, ": ", reasons[0].message());
        }
      });
    });
  }

  // A job without a durable allocation would stay in the scheduler for ever.
  void CheckJobs() {
    model_.CheckPending(slurm_.PendingJobs());
    for (const std::string& token : slurm_.LiveJobs(/*late=*/false)) {
      if (!model_.HasAllocation(token))
        world_.Violation("job ", token, " is live, and its allocation is not");
    }
  }

  double CallsPerHour() const {
    return static_cast<double>(slurm_.calls()) / std::max(1.0, absl::ToDoubleHours(world_.queue.Steady()));
  }

  void CheckEnd() {
    if (!process_.running()) return world_.Violation("the process is not running at the end");
    model_.CheckEnd(process_.store());
    events_.ForEachReadable([this](const std::string& token, const std::vector<int64_t>& lines, bool read) {
      model_.CheckLines(process_.store(), token, lines, read);
    });
    for (const std::string& token : slurm_.LiveJobs(/*late=*/true))
      world_.Violation("job ", token, " is left in Slurm");
    if (CallsPerHour() > kMostCalls) world_.Violation(CallsPerHour(), " calls of the scheduler in an hour");
  }

  World world_;
  Model model_;
  Process process_;
  Network network_;
  Directories directories_;
  EventFiles events_;
  Site site_;
  Slurm slurm_;
  std::unique_ptr<UserAgent> agent_;  // null: the process of the coordinator runs Slurm's programs itself
  Clients clients_;
};

}  // namespace

Result Simulate(uint64_t seed, const std::string& database, bool print_trace) {
  std::filesystem::current_path(std::filesystem::path(database).parent_path());
  std::filesystem::remove_all(kRunsDirectory);
  try {
    return Simulation(seed, database, print_trace).Run();
  } catch (const std::exception& error) {  // the exception would end the real process
    Result result;
    result.violations.push_back(absl::StrCat("exception: ", error.what()));
    return result;
  }
}

}  // namespace scalelab::simulation
