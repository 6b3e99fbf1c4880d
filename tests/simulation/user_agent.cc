#include "tests/simulation/user_agent.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/scheduler/agent/agent_hub.h"
#include "server/services/agent_messages.h"

namespace scalelab::simulation {
namespace {

using server::CommandResult;

// As in agent_hub.cc: the time for sending a request and its answer.
constexpr absl::Duration kMargin = absl::Seconds(5);
// As in serve.cc: an agent that was suspended for longer executes no request that it received before.
constexpr absl::Duration kSuspended = absl::Seconds(10);
// A message is lost if the connection is interrupted for longer.
constexpr absl::Duration kRetransmitted = absl::Minutes(5);

}  // namespace

UserAgent::UserAgent(World& world, Process& process, Slurm& slurm)
    : world_(world),
      process_(process),
      slurm_(slurm),
      programs_(slurm),
      executor_(agent::User{geteuid(), kRunsDirectory}, programs_),
      private_jobs_(world.random.Chance(0.5)) {
  for (const Fault fault : {Fault::kAgentCrash, Fault::kAgentAway, Fault::kAgentCut, Fault::kAgentReplaced}) {
    Misbehave(fault);
  }
  ConnectSoon();
}

// --- The coordinator's side

absl::StatusOr<CommandResult> UserAgent::Run(const std::vector<std::string>& argv, const std::string& input,
                                             const std::vector<std::string>& variables,
                                             absl::Duration timeout) {
  const bool here = argv[0] == "sinfo" || argv[0] == "scontrol" || (argv[0] == "squeue" && !private_jobs_);
  if (here) return slurm_.Run(argv, input, variables, timeout);
  process_.MaybeCrash(Fault::kCrashInCall);
  if (!Connected()) return absl::FailedPreconditionError("the agent is not connected");
  server::AgentRequest request;
  request.argv = argv;
  request.input = input;
  request.variables = variables;
  request.timeout = timeout;
  v1::ServeResponse message;
  message.set_id(++last_id_);
  server::FillRequest(request, &message);
  const CallPointer call = std::make_shared<Call>();
  call->connection = connection_;
  call->agent_life = agent_life_;
  waiting_ = call;
  world_.queue.After(Delay(), [this, call, message] { Receive(call, message); });
  // Other events run while this thread of the coordinator waits. One of them may let the coordinator crash: it throws.
  const absl::Duration deadline = world_.queue.Steady() + timeout + kMargin;
  while (!call->over && world_.queue.RunNext(deadline)) {
  }
  if (!call->over) Disconnect("the agent has not answered in time");
  process_.MaybeCrash(Fault::kCrashInCall);
  return call->result;
}

bool UserAgent::Connected() const {
  return connection_ != 0 && process_.running() && coordinator_life_ == process_.life();
}

bool UserAgent::Waits(const Call& call) const {
  return !call.over && call.connection == connection_ && Connected();
}

void UserAgent::Disconnect(const std::string& why) {
  if (connection_ == 0) return;
  world_.Trace("agent: disconnected: ", why);
  if (waiting_ != nullptr && Waits(*waiting_)) {
    waiting_->over = true;
    waiting_->result->lost = why;
  }
  connection_ = 0;
}

// --- The agent's process

// The program of the agent connects again until it is ended.
void UserAgent::ConnectSoon() {
  world_.queue.After(world_.random.Time(absl::Milliseconds(500), absl::Seconds(5)),
                     [this, life = agent_life_] {
                       if (life != agent_life_) return;
                       if (!Connected()) Connect();
                       ConnectSoon();
                     });
}

void UserAgent::Connect() {
  const absl::Duration now = world_.queue.Steady();
  if (!running_ || now < away_until_ || now < cut_until_) return;
  process_.Deliver([this, life = agent_life_] {
    if (life != agent_life_) return;
    Disconnect("its agent was replaced by a newer one before it answered");
    connection_ = ++connections_;
    coordinator_life_ = process_.life();
    world_.Trace("agent: connection ", connection_);
    // One agent runs the jobs of all users (clients.cc).
    for (int user = 0; user < 3; ++user) process_.coordinator().AgentConnected(absl::StrCat("user-", user));
  });
}

void UserAgent::Receive(const CallPointer& call, const v1::ServeResponse& request) {
  if (call->agent_life != agent_life_) return;  // the process that was to receive it has crashed
  const absl::Duration now = world_.queue.Steady();
  const auto later = [&](absl::Duration time) {
    world_.queue.After(time - now + Delay(), [this, call, request] { Receive(call, request); });
  };
  if (now < cut_until_) {
    if (cut_until_ - now < kRetransmitted) later(cut_until_);
    return;
  }
  if (now < away_until_) {
    if (!long_away_) later(away_until_);
    return;
  }
  Execute(call, request);
}

// A request that the coordinator has given up is executed too: the agent cannot know that.
void UserAgent::Execute(const CallPointer& call, const v1::ServeResponse& request) {
  programs_.late = !Waits(*call);
  if (programs_.late) world_.Trace("agent: late: ", agent::Describe(request));
  const bool query = request.execute().program() == v1::ServeResponse::Execute::SQUEUE;
  if (programs_.late && query) return;  // without an effect
  v1::ServeRequest::Answer answer = executor_.Answer(request);
  if (!answer.error().empty())
    world_.Violation("the agent refused ", agent::Describe(request), ": ", answer.error());
  world_.queue.After(Delay(), [this, call, result = server::ResultOf(answer)] { Answer(call, result); });
}

void UserAgent::Answer(const CallPointer& call, const absl::StatusOr<CommandResult>& result) {
  if (call->agent_life != agent_life_ || !Waits(*call)) return;
  const absl::Duration blocked = std::max(cut_until_, away_until_) - world_.queue.Steady();
  if (blocked > absl::ZeroDuration()) {
    world_.queue.After(blocked, [this, call, result] { Answer(call, result); });
    return;
  }
  call->result = result;
  call->over = true;
}

absl::Duration UserAgent::Delay() {
  if (world_.faults.Occurs(Fault::kAgentSlow)) return world_.random.Time(absl::Seconds(1), absl::Seconds(60));
  return world_.random.Time(absl::Microseconds(100), absl::Milliseconds(20));
}

// --- Faults that begin at random times

void UserAgent::Misbehave(Fault fault) {
  const absl::Duration until = world_.faults.Until(fault);
  if (until == absl::InfiniteDuration()) return;
  world_.queue.After(until, [this, fault] {
    if (world_.faults.Over()) return;
    Strike(fault);
    Misbehave(fault);
  });
}

void UserAgent::Strike(Fault fault) {
  if (!running_) return;
  world_.faults.Count(fault);
  const absl::Duration now = world_.queue.Steady();
  const absl::Duration lasts =
      world_.random.Time(absl::Seconds(1), absl::Minutes(world_.random.Chance(0.2) ? 20 : 2));
  const absl::Duration until = std::min(world_.faults.End(), now + lasts);
  world_.Trace("agent: ", Name(fault), ", ", absl::FormatDuration(lasts));
  switch (fault) {
    case Fault::kAgentCrash:
      ++agent_life_;
      running_ = false;
      Disconnect("its agent ended before it answered");
      world_.queue.After(until - now, [this] {
        running_ = true;
        ConnectSoon();
      });
      return;
    case Fault::kAgentAway:
      if (now < away_until_) return;
      away_until_ = until;
      long_away_ = until - now > kSuspended;
      if (!long_away_) return;
      world_.queue.After(until - now, [this, life = agent_life_] {
        if (life == agent_life_) Disconnect("its agent was suspended");
      });
      return;
    case Fault::kAgentCut:
      cut_until_ = std::max(cut_until_, until);
      return;
    default:
      return Connect();  // a second agent of the user
  }
}

}  // namespace scalelab::simulation
