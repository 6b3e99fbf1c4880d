#include "tests/simulation/clients.h"

#include <algorithm>
#include <utility>

#include "server/core/reload.h"
#include "server/core/submission.h"
#include "study/rules.h"

namespace scalelab::simulation {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);
// Longest delay of a request to a process that is stopped.
constexpr absl::Duration kLongestDelay = absl::Minutes(25);
constexpr char kNode[] = "login";  // this node is never disconnected

// Handles a CreateStudy like the service.
void Create(Process& process, const v1::StudySpec& spec, const std::string& owner,
            const std::string& request_id, const Network::Done<int64_t>& done) {
  auto expanded = ExpandStudy(spec);
  if (!expanded.ok()) return done(expanded.status());
  const auto earlier = process.store().FindRequest(owner, request_id);
  if (earlier.ok()) return done(earlier->id);
  process.coordinator().Submit(server::MakeNewStudy(spec, *std::move(expanded), owner, request_id), done);
}

// Handles a RetryStudy like the service.
void RetryStudy(Process& process, int64_t id, const Network::Done<int>& done) {
  process.coordinator().Read([&process, id, done, life = process.life()](const server::State* state) {
    if (state == nullptr || life != process.life()) return done(absl::UnavailableError("stopping"));
    // The database must not be read on the core thread.
    process.Deliver([&process, id, done, changes = state->final_changes] {
      auto study = server::LoadFinalStudy(process.store(), id);
      if (!study.ok()) return done(study.status());
      process.coordinator().Retry(id, 0, *std::move(study), changes,
                                  [done](absl::Status s) { s.ok() ? done(0) : done(s); });
    });
  });
}

server::Coordinator::DoneStatus Into(const Network::Done<int>& done) {
  return [done](absl::Status s) { s.ok() ? done(0) : done(s); };
}

}  // namespace

Clients::Clients(World& world, Network& network, Model& model, int largest)
    : world_(world), network_(network), model_(model) {
  const int64_t studies = world_.random.Between(1, 8);
  for (int64_t i = 0; i < studies; ++i) {
    auto study = std::make_shared<Study>();
    study->owner = absl::StrCat("user-", world_.random.Between(0, 2));
    study->request_id = absl::StrCat("request-", i);
    study->spec = RandomSpec(largest);
    const auto expanded = ExpandStudy(study->spec);
    if (!expanded.ok()) {
      world_.Violation("a study is malformed: ", expanded.status().ToString());
      continue;
    }
    study->runs = static_cast<int64_t>(expanded->runs.size());
    ++busy_;
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), world_.faults.End() / 2),
                       [this, study] { Submit(study); });
  }
  if (world_.random.Chance(0.3)) {
    ++busy_;
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), world_.faults.End()),
                       [this] { Drain(true); });
  }
}

v1::StudySpec Clients::RandomSpec(int largest) {
  Random& random = world_.random;
  v1::StudySpec spec;
  spec.set_study("test");
  (*spec.mutable_fixed()->mutable_fields())["model"].set_string_value("resnet20");
  (*spec.mutable_fixed()->mutable_fields())["dataset"].set_string_value("synthetic");
  spec.mutable_scaling()->set_global_batch(64);
  auto* axis = spec.add_matrix();
  axis->set_key("ranks");
  spec.mutable_resources()->set_ranks_per_node(2);
  const int most = std::min(8, 2 * largest);
  for (int ranks = 1; ranks <= most; ranks *= 2) {
    if (random.Chance(0.5) || ranks == 1) axis->add_values()->set_number_value(ranks);
  }
  spec.set_repeats(static_cast<int>(random.Between(1, 4)));
  if (random.Chance(0.3)) spec.set_allocation(v1::StudySpec::PER_RUN);
  spec.mutable_resources()->set_time_seconds(random.Chance(0.3) ? random.Between(120, 600) : 3600);
  spec.mutable_retry()->set_max(static_cast<int>(random.Between(0, 3)));
  // Only studies without retries have checkpoints, so that all further attempts are an effect of checkpoints.
  if (spec.retry().max() == 0)
    (*spec.mutable_fixed()->mutable_fields())["checkpoint_every_steps"].set_number_value(1);
  if (random.Chance(0.5))
    spec.mutable_limits()->set_concurrent_allocations(static_cast<int>(random.Between(1, 4)));
  spec.set_priority(static_cast<int>(random.Between(0, 2)));
  return spec;
}

void Clients::Submit(const StudyPointer& study) {
  world_.Trace(study->owner, " submits ", study->request_id);
  network_.Call<int64_t>(
      kNode, kDeadline,
      [study](Process& process, Network::Done<int64_t> done) {
        Create(process, study->spec, study->owner, study->request_id, done);
      },
      [this, study](absl::StatusOr<int64_t> id) {
        if (id.ok()) return Accepted(study, *id);
        if (!absl::IsUnavailable(id.status()) && !absl::IsDeadlineExceeded(id.status()) &&
            !absl::IsResourceExhausted(id.status())) {
          world_.Violation("a submit failed: ", id.status().ToString());
          --busy_;
          return;
        }
        world_.queue.After(world_.random.Time(absl::Milliseconds(200), absl::Seconds(20)),
                           [this, study] { Submit(study); });
      });
}

void Clients::Accepted(const StudyPointer& study, int64_t id) {
  study->id = id;
  world_.Trace(study->request_id, " is study ", id);
  model_.StudyAcknowledged(study->owner, study->request_id, id, study->runs);
  if (world_.random.Chance(0.1)) return Submit(study);  // submit again: the answer must be the same
  if (world_.random.Chance(0.3)) Watch(study);
  if (world_.random.Chance(0.3)) {
    // Act soon, while the first calls of the scheduler are in flight.
    const absl::Duration latest = world_.random.Chance(0.5) ? absl::Seconds(5) : absl::Minutes(10);
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), latest), [this, study] { Cancel(study); });
  }
  if (world_.random.Chance(0.2)) {
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), absl::Minutes(10)),
                       [this, study] { CancelRun(study); });
  }
  if (world_.random.Chance(0.2)) {
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), absl::Minutes(10)),
                       [this, study] { Hold(study); });
  }
  if (world_.random.Chance(0.2)) {
    world_.queue.After(world_.random.Time(absl::ZeroDuration(), absl::Minutes(10)),
                       [this, study] { SetPriority(study); });
  }
  LookAgain(study);
}

void Clients::LookAgain(const StudyPointer& study) {
  world_.queue.After(world_.random.Time(absl::Seconds(20), absl::Minutes(3)), [this, study] { Look(study); });
}

void Clients::Look(const StudyPointer& study) {
  network_.Call<db::StudyRow>(
      kNode, kDeadline,
      [id = study->id](Process& process, Network::Done<db::StudyRow> done) {
        done(process.store().GetStudy(id));
      },
      [this, study](absl::StatusOr<db::StudyRow> row) { Act(study, row); });
}

void Clients::Act(const StudyPointer& study, const absl::StatusOr<db::StudyRow>& row) {
  if (absl::IsNotFound(row.status())) {
    --busy_;  // it was deleted
    return;
  }
  if (!row.ok()) return LookAgain(study);
  if (row->held && world_.random.Chance(0.3)) return Release(study);
  if (!row->pause_reason.empty() && !IsFinal(row->state)) {
    if (++study->looks > 8) {
      --busy_;  // it stays paused
      return;
    }
    if (world_.random.Chance(0.5)) return Resume(study);
  } else if (IsFinal(row->state)) {
    const double choice = world_.random.Unit();
    if (choice < 0.2) return Delete(study);
    if (choice < 0.5 && row->state != db::StudyState::kSucceeded && study->retries < 2) return Retry(study);
    --busy_;
    return;
  }
  LookAgain(study);
}

void Clients::Call(const StudyPointer& study, const char* what,
                   std::function<void(Process&, Network::Done<int>)> send,
                   std::function<void(absl::Status)> then) {
  world_.Trace(study->owner, ": ", what, " study ", study->id);
  network_.Call<int>(kNode, kDeadline, std::move(send),
                     [this, study, what, then](absl::StatusOr<int> answer) {
                       world_.Trace(study->owner, ": ", what, " study ", study->id, ": ",
                                    absl::StatusCodeToString(answer.status().code()));
                       then(answer.status());
                     });
}

void Clients::Cancel(const StudyPointer& study) {
  Call(
      study, "cancel",
      [id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().CancelStudy(id, Into(done));
      },
      [this, study](const absl::Status& status) {
        if (status.ok()) model_.CancelAcknowledged(study->id);
      });
}

void Clients::CancelRun(const StudyPointer& study) {
  Call(
      study, "cancel a run of",
      [id = study->id](Process& process, Network::Done<int> done) {
        db::RunFilter filter;
        filter.study_id = id;
        const auto runs = process.store().ListRuns(filter);
        if (!runs.ok() || runs->empty()) return done(absl::NotFoundError("no run"));
        process.coordinator().CancelRun(id, runs->back().id, Into(done));
      },
      [](const absl::Status&) {});
}

void Clients::Retry(const StudyPointer& study) {
  ++study->retries;
  model_.RetryAsked(study->id);
  Call(
      study, "retry",
      [id = study->id](Process& process, Network::Done<int> done) { RetryStudy(process, id, done); },
      [this, study](const absl::Status&) { LookAgain(study); });
}

void Clients::Resume(const StudyPointer& study) {
  Call(
      study, "resume",
      [id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().ResumeStudy(id, Into(done));
      },
      [this, study](const absl::Status&) { LookAgain(study); });
}

void Clients::Hold(const StudyPointer& study) {
  Call(
      study, "hold",
      [id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().HoldStudy(id, Into(done));
      },
      [](const absl::Status&) {});
}

void Clients::Release(const StudyPointer& study) {
  Call(
      study, "release",
      [id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().ReleaseStudy(id, Into(done));
      },
      [this, study](const absl::Status&) { LookAgain(study); });
}

void Clients::SetPriority(const StudyPointer& study) {
  const int priority = static_cast<int>(world_.random.Between(-2, 3));
  Call(
      study, "change the priority of",
      [id = study->id, priority](Process& process, Network::Done<int> done) {
        process.coordinator().SetPriority(id, priority, Into(done));
      },
      [](const absl::Status&) {});
}

void Clients::Drain(bool on) {
  world_.Trace("admin: drain ", on);
  network_.Call<int>(
      kNode, kDeadline,
      [on](Process& process, Network::Done<int> done) {
        process.coordinator().SetDrain(on, "maintenance", done);
      },
      [this, on](const absl::StatusOr<int>& live) {
        world_.Trace("admin: drain ", on, ": ", absl::StatusCodeToString(live.status().code()));
        const absl::Duration over = world_.faults.End() + kLongestDelay;
        if (!on && live.ok() && world_.queue.Steady() > over) {
          --busy_;
          return;
        }
        absl::Duration next =
            world_.random.Time(absl::Seconds(1), on ? absl::Minutes(15) : absl::Seconds(30));
        // End drain mode again at the end, because an earlier request to begin it may arrive late.
        if (!on && live.ok()) next = over + absl::Seconds(1) - world_.queue.Steady();
        world_.queue.After(next, [this] { Drain(false); });
      });
}

void Clients::Delete(const StudyPointer& study) {
  model_.DeleteAsked(study->id);
  Call(
      study, "delete",
      [id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().DeleteStudy(id, Into(done));
      },
      [this, study](const absl::Status& status) {
        if (status.ok()) model_.DeleteAcknowledged(study->id);
        LookAgain(study);
      });
}

void Clients::Watch(const StudyPointer& study) {
  Call(
      study, "watch",
      [this, id = study->id](Process& process, Network::Done<int> done) {
        process.coordinator().Watch(
            id,
            [this, id, over = false](const server::LiveStudy& live, const server::State&,
                                     bool final) mutable {
              if (over) world_.Violation("a watcher of study ", id, " is called after the final state");
              if (live.row.id != id) world_.Violation("a watcher of study ", id, " gets study ", live.row.id);
              if (final != IsFinal(live.row.state))
                world_.Violation("a watcher of study ", id, " gets a wrong final state");
              over = final;
              return true;
            },
            Into(done));
      },
      [](const absl::Status&) {});
}

}  // namespace scalelab::simulation
