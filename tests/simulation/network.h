// The simulated network between the coordinator, workers and clients. Messages may be lost, delayed,
// duplicated and reordered; a node may be disconnected.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/simulation/process.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Network {
 public:
  template <typename T>
  using Done = std::function<void(absl::StatusOr<T>)>;

  Network(World& world, Process& process) : world_(world), process_(process) { Misbehave(); }

  // Makes a call from `node`. `send` passes the request to the coordinator, once or twice, at a time when the
  // process runs. `done` is called exactly once, at the latest when `deadline` has passed.
  template <typename T>
  void Call(const std::string& node, absl::Duration deadline, std::function<void(Process&, Done<T>)> send,
            Done<T> done) {
    auto finish = std::make_shared<Done<T>>(std::move(done));
    const auto once = [finish](absl::StatusOr<T> result) {
      if (*finish) std::exchange(*finish, nullptr)(std::move(result));
    };
    world_.queue.After(deadline, [once] { once(absl::DeadlineExceededError("deadline exceeded")); });
    const int copies = world_.faults.Occurs(Fault::kRequestDuplicated) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (Lost(node, Fault::kRequestLost)) continue;
      world_.queue.After(Delay(), [this, node, send, once, sent_to = process_.life()] {
        if (sent_to != process_.life()) return once(absl::UnavailableError("connection reset"));
        const bool taken = process_.Deliver([this, node, send, once] {
          send(process_, [this, node, once, life = process_.life()](absl::StatusOr<T> result) {
            if (life != process_.life()) result = absl::UnavailableError("connection reset");
            if (Lost(node, Fault::kReplyLost)) return;
            world_.queue.After(Delay(), [once, result = std::move(result)] { once(result); });
          });
        });
        if (!taken) once(absl::UnavailableError("connection refused"));
      });
    }
  }

 private:
  bool Lost(const std::string& node, Fault fault) {
    const auto cut = cut_until_.find(node);
    return (cut != cut_until_.end() && world_.queue.Steady() < cut->second) || world_.faults.Occurs(fault);
  }
  absl::Duration Delay() {
    if (world_.faults.Occurs(Fault::kMessageDelayed))
      return world_.random.Time(absl::Milliseconds(1), absl::Seconds(30));
    return world_.random.Time(absl::Microseconds(50), absl::Milliseconds(3));
  }
  void Misbehave() {
    const absl::Duration until = world_.faults.Until(Fault::kPartition);
    if (until == absl::InfiniteDuration()) return;
    world_.queue.After(until, [this] {
      if (world_.faults.Over()) return;
      world_.faults.Count(Fault::kPartition);
      const std::string node = absl::StrCat("node-", world_.random.Between(0, 7));
      cut_until_[node] =
          std::min(world_.faults.End(),
                   world_.queue.Steady() + world_.random.Time(absl::Seconds(5), absl::Minutes(25)));
      world_.Trace("network: ", node, " is cut off until ", absl::FormatDuration(cut_until_[node]));
      Misbehave();
    });
  }

  World& world_;
  Process& process_;
  std::map<std::string, absl::Duration> cut_until_;
};

}  // namespace scalelab::simulation
