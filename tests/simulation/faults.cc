#include "tests/simulation/faults.h"

#include "absl/strings/str_cat.h"

namespace scalelab::simulation {
namespace {

struct Kind {
  const char* name;
  // The largest probability of an enabled fault, for each message or call, or for each minute. A seed draws
  // a smaller one.
  double highest;
};

constexpr Kind kKinds[] = {{"request lost", 0.2},
                           {"reply lost", 0.2},
                           {"message delayed", 0.3},
                           {"request duplicated", 0.3},
                           {"partition of a node", 0.3},
                           {"crash", 0.3},
                           {"crash in a commit", 0.02},
                           {"crash in a call of the scheduler", 0.05},
                           {"power cut", 0.2},
                           {"power cut in a commit", 0.02},
                           {"process stopped", 0.2},
                           {"disk full", 0.2},
                           {"database locked", 0.05},
                           {"slow disk", 0.05},
                           {"clock jump", 0.2},
                           {"worker crash", 0.3},
                           {"worker hangs", 0.2},
                           {"event loop of a worker blocked", 0.2},
                           {"rank fails", 0.3},
                           {"storage error", 0.2},
                           {"node fails", 0.3},
                           {"calls stuck", 0.2},
                           {"read of event files hangs", 0.1},
                           {"read of event files fails", 0.3},
                           {"read of event files slow", 0.3},
                           {"scheduler away", 0.2},
                           {"scheduler slow", 0.3},
                           {"submit unanswered", 0.3},
                           {"submit arrives late", 0.3},
                           {"submit refused for a limit", 0.3},
                           {"submit refused permanently", 0.1},
                           {"cancel fails", 0.3},
                           {"job forgotten", 0.1},
                           {"job preempted", 0.3},
                           {"job requeued", 0.2},
                           {"job suspended", 0.2},
                           {"long completing", 0.3},
                           {"job cancelled from outside", 0.2},
                           {"agent crashes", 0.2},
                           {"agent suspended", 0.2},
                           {"agent cut off", 0.2},
                           {"agent replaced", 0.2},
                           {"message of an agent late", 0.2}};
static_assert(std::size(kKinds) == static_cast<size_t>(Fault::kCount));
constexpr size_t kFirstOfAgent = static_cast<size_t>(Fault::kAgentCrash);

}  // namespace

const char* Name(Fault fault) { return kKinds[static_cast<size_t>(fault)].name; }

Faults::Faults(Random& random, const EventQueue& queue) : random_(random), queue_(queue) {
  end_ = random.Time(absl::Minutes(5), absl::Minutes(40));
  const double share = random.Chance(0.1) ? 0 : random.Unit() * 0.7;
  const auto draw = [&](Random& from, size_t i) {
    if (from.Chance(share)) probability_[i] = kKinds[i].highest * (0.02 + 0.98 * from.Unit());
  };
  for (size_t i = 0; i < kFirstOfAgent; ++i) draw(random, i);
  Random other = random;  // a copy, so that the agent does not change the other numbers of the seed
  has_agent_ = other.Chance(0.3);
  for (size_t i = kFirstOfAgent; has_agent_ && i < probability_.size(); ++i) draw(other, i);
}

bool Faults::Occurs(Fault fault) {
  const double probability = probability_[static_cast<size_t>(fault)];
  if (probability == 0 || Over() || !random_.Chance(probability)) return false;
  Count(fault);
  return true;
}

absl::Duration Faults::Until(Fault fault) {
  const double per_minute = probability_[static_cast<size_t>(fault)];
  return per_minute == 0 ? absl::InfiniteDuration() : absl::Minutes(2 * random_.Unit() / per_minute);
}

std::string Faults::EnabledNames() const {
  std::string names;
  for (size_t i = 0; i < probability_.size(); ++i) {
    if (probability_[i] > 0) absl::StrAppend(&names, names.empty() ? "" : ", ", kKinds[i].name);
  }
  return names.empty() ? "none" : names;
}

}  // namespace scalelab::simulation
