#include "worker/worker_state.h"

#include <map>
#include <set>

namespace scalelab::worker {
namespace {

constexpr absl::Duration kDefaultGrace = absl::Seconds(5);

}  // namespace

absl::Duration GraceOf(const v1::SynchronizeResponse::DesiredAttempt& desired) {
  return desired.grace_seconds() > 0 ? absl::Seconds(desired.grace_seconds()) : kDefaultGrace;
}

std::vector<Action> Decide(const std::vector<LocalAttempt>& local, const v1::SynchronizeResponse& desired,
                           bool leaving) {
  std::map<std::string, const LocalAttempt*> known;
  for (const LocalAttempt& attempt : local) known[attempt.token] = &attempt;
  std::vector<Action> actions;
  std::set<std::string> wanted;
  for (const auto& attempt : desired.attempts()) {
    if (!wanted.insert(attempt.token()).second) continue;
    auto it = known.find(attempt.token());
    if (it == known.end()) {
      if (!leaving)
        actions.push_back({Action::Kind::kBegin, attempt.token(), &attempt, absl::ZeroDuration()});
    } else if (attempt.stop() && !it->second->ended && !it->second->stopping) {
      actions.push_back(
          {Action::Kind::kStop, attempt.token(), nullptr, GraceOf(attempt), attempt.finished()});
    }
  }
  for (const LocalAttempt& attempt : local) {
    if (wanted.contains(attempt.token)) continue;
    if (attempt.ended) {
      actions.push_back({Action::Kind::kForget, attempt.token, nullptr, absl::ZeroDuration()});
    } else {
      actions.push_back({Action::Kind::kAbandon, attempt.token, nullptr, kDefaultGrace});
    }
  }
  return actions;
}

}  // namespace scalelab::worker
