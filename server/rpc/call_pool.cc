#include "server/rpc/call_pool.h"

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "planted/bug.h"
#include "proto/status.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {
namespace {

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "STOPPING",
                   "scalelabd is stopping; try again when it is back");
}

// Parts of the queue that works on one subject, works on one filesystem and works of one client may take.
constexpr size_t kShareOfSubject = 8;
constexpr size_t kShareOfFilesystem = 2;
constexpr size_t kShareOfClient = 4;

}  // namespace

struct CallPool::Shared {
  struct Entry {
    Subject subject;
    Work work;
  };
  struct Client {
    std::string name;
    std::deque<Entry> queue;  // not empty
  };
  // Adds the work. If a limit is reached, does not change `work` and returns the name of the limit.
  std::string Add(Work& work, Subject subject, const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if ((waiting >= queue_limit && !Planted(Bug::kCallQueueUnbounded)) ||
        (!subject.name.empty() && Waiting(&Subject::name, subject) >= queue_limit / kShareOfSubject) ||
        (!subject.filesystem.empty() &&
         Waiting(&Subject::filesystem, subject) >= queue_limit / kShareOfFilesystem))
      return absl::StrCat("scalelabd has too many ", kind, " in flight");
    auto client = std::ranges::find(clients, name, &Client::name);
    if (client == clients.end()) {
      client = clients.insert(clients.end(), Client{name, {}});
    } else if (!name.empty() && client->queue.size() >= std::max<size_t>(1, queue_limit / kShareOfClient)) {
      return absl::StrCat(name, " has ", client->queue.size(), " ", kind,
                          " in the queue, the maximum for one user or address");
    }
    client->queue.push_back({std::move(subject), std::move(work)});
    ++waiting;
    return "";
  }
  // Returns the number of waiting works whose subject has the same `part`.
  size_t Waiting(std::string Subject::*part, const Subject& subject) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    size_t count = 0;
    for (const Client& client : clients) {
      for (const Entry& entry : client.queue) count += entry.subject.*part == subject.*part ? 1 : 0;
    }
    return count;
  }
  // Returns whether the limits of the subject allow one more work in progress.
  bool MayBegin(const Subject& subject) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (busy.contains(subject.name)) return false;
    const auto here = on_filesystem.find(subject.filesystem);
    return here == on_filesystem.end() || here->second < most_on_filesystem ||
           Planted(Bug::kFilesystemTakesAllThreads);
  }
  void NoteBegin(const Subject& subject) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!subject.name.empty()) busy.insert(subject.name);
    if (!subject.filesystem.empty()) ++on_filesystem[subject.filesystem];
  }
  void NoteEnd(const Subject& subject) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    busy.erase(subject.name);
    const auto here = on_filesystem.find(subject.filesystem);
    if (here != on_filesystem.end() && --here->second == 0) on_filesystem.erase(here);
  }
  // Moves the next work to `entry`: the first one of the client whose turn it is that may begin. Returns false if no
  // work may begin.
  bool Take(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (auto client = clients.begin(); client != clients.end(); ++client) {
      const auto next = std::ranges::find_if(
          client->queue,
          [this](const Subject& subject) {
            mutex.AssertHeld();  // the thread safety analysis does not look through lambdas
            return MayBegin(subject);
          },
          &Entry::subject);
      if (next == client->queue.end()) continue;
      entry = std::move(*next);
      client->queue.erase(next);
      --waiting;
      if (client->queue.empty())
        clients.erase(client);
      else
        clients.splice(clients.end(), clients, client);
      return true;
    }
    return false;
  }

  std::string kind;
  size_t queue_limit = 0;
  int most_on_filesystem = 0;
  // The threads wait for work until `stopping`. After that, only Stop waits, for the end of the threads.
  SteadyMutex mutex;
  std::list<Client> clients ABSL_GUARDED_BY(mutex);   // those with waiting works, in the order of their turns
  size_t waiting ABSL_GUARDED_BY(mutex) = 0;          // number of entries of all clients
  std::set<std::string> busy ABSL_GUARDED_BY(mutex);  // names of the subjects of works in progress
  std::map<std::string, int> on_filesystem ABSL_GUARDED_BY(mutex);  // number of works in progress
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  int alive ABSL_GUARDED_BY(mutex) = 0;  // threads that have not ended
};

CallPool::CallPool(std::string kind, int threads, size_t queue_limit) : shared_(std::make_shared<Shared>()) {
  shared_->kind = std::move(kind);
  shared_->queue_limit = queue_limit;
  shared_->most_on_filesystem = std::max(1, threads / 2);
  {
    SteadyMutexLock lock(&shared_->mutex);
    shared_->alive = threads;
  }
  threads_.reserve(threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([shared = shared_] { Serve(shared); });
}

CallPool::~CallPool() { Stop(absl::InfiniteDuration()); }

void CallPool::Run(Work work, Subject subject, const std::string& client) {
  absl::Status refused;
  {
    SteadyMutexLock lock(&shared_->mutex);
    if (shared_->stopping) {
      refused = Stopping();
    } else {
      const std::string too_many = shared_->Add(work, std::move(subject), client);
      if (too_many.empty()) return shared_->mutex.Signal();
      refused = MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_CALLS",
                          absl::StrCat(too_many, "; try again in 5 seconds"));
    }
  }
  work(refused);
}

size_t CallPool::waiting() const {
  SteadyMutexLock lock(&shared_->mutex);
  return shared_->waiting;
}

bool CallPool::Stop(absl::Duration grace) {
  if (threads_.empty()) return true;
  std::list<Shared::Client> left;
  bool ended = false;
  {
    SteadyMutexLock lock(&shared_->mutex);
    shared_->stopping = true;
    shared_->mutex.SignalAll();
    const auto over = [this] {
      shared_->mutex.AssertHeld();
      return shared_->alive == 0;
    };
    ended = shared_->mutex.AwaitWithTimeout(over, grace);
    left.swap(shared_->clients);
    shared_->waiting = 0;
  }
  for (Shared::Client& client : left) {
    for (Shared::Entry& entry : client.queue) entry.work(Stopping());
  }
  for (std::thread& thread : threads_) {
    if (ended)
      thread.join();
    else
      thread.detach();
  }
  threads_.clear();
  return ended;
}

void CallPool::Serve(const std::shared_ptr<Shared>& shared) {
  while (true) {
    Shared::Entry entry;
    {
      SteadyMutexLock lock(&shared->mutex);
      while (!shared->Take(entry)) {
        if (shared->stopping) {
          --shared->alive;
          shared->mutex.SignalAll();
          return;
        }
        shared->mutex.WaitFor(absl::InfiniteDuration());
      }
      shared->NoteBegin(entry.subject);
    }
    entry.work(absl::OkStatus());
    if (entry.subject.name.empty() && entry.subject.filesystem.empty()) continue;
    entry.work = nullptr;
    SteadyMutexLock lock(&shared->mutex);
    shared->NoteEnd(entry.subject);
    shared->mutex.Signal();
  }
}

}  // namespace scalelab::server
