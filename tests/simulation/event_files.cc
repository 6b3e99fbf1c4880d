#include "tests/simulation/event_files.h"

#include <memory>
#include <utility>

#include "tests/simulation/process.h"

namespace scalelab::simulation {
namespace {

std::vector<int64_t> LinesOf(const Ranks& ranks) {
  std::vector<int64_t> lines;
  for (int rank = 0; rank < ranks.size(); ++rank) lines.push_back(ranks.lines(rank));
  return lines;
}

}  // namespace

void EventFiles::Read(server::EventRequest request, Done done) {
  if (const auto it = directories_.find(request.token); it != directories_.end())
    lines_at_first_read_.emplace(request.token, LinesOf(*it->second));
  if (world_.faults.Occurs(Fault::kReadHangs)) {
    unreadable_.insert(request.token);
    world_.Trace("event files of ", request.token, " hang");
    return;
  }
  const bool fails = world_.faults.Occurs(Fault::kReadFails);
  if (fails) unreadable_.insert(request.token);
  const bool slow = world_.faults.Occurs(Fault::kReadSlow);
  const absl::Duration time =
      world_.random.Time(absl::ZeroDuration(), slow ? absl::Seconds(20) : absl::Milliseconds(30));
  auto shared = std::make_shared<Done>(std::move(done));
  world_.queue.After(time, [this, request = std::move(request), shared, fails, life = process_.life()] {
    if (life != process_.life()) return;
    absl::StatusOr<server::EventPart> part = absl::UnavailableError("Input/output error");
    if (!fails) part = PartOf(request);
    process_.Continue([shared, part = std::move(part)] { (*shared)(part); });
  });
}

// Reads some lines of some ranks.
server::EventPart EventFiles::PartOf(const server::EventRequest& request) {
  server::EventPart part;
  part.next_rank = request.first_rank;
  const auto directory = directories_.find(request.token);
  for (const server::EventPlace& place : request.places) {
    const int64_t written = directory == directories_.end() ? 0 : directory->second->lines(part.next_rank);
    const int64_t end =
        world_.random.Chance(0.3) ? world_.random.Between(std::min(place.line, written), written) : written;
    if (end > place.line) {
      v1::EventBatch batch;
      directory->second->Read(part.next_rank, place.line, end, batch);
      auto parsed = server::ParseBatch(batch);
      if (!parsed.ok()) world_.Violation("a batch is malformed: ", parsed.status().ToString());
      part.batches.push_back(*std::move(parsed));
    }
    if (end < written) break;
    ++part.next_rank;
    if (world_.random.Chance(0.2)) break;
  }
  return part;
}

void EventFiles::ForEachReadable(
    const std::function<void(const std::string&, const std::vector<int64_t>&, bool)>& check) const {
  for (const auto& [token, ranks] : directories_) {
    if (ranks == nullptr || unreadable_.contains(token)) continue;
    const auto first = lines_at_first_read_.find(token);
    const bool read = first != lines_at_first_read_.end();
    check(token, read ? first->second : LinesOf(*ranks), read);
  }
}

}  // namespace scalelab::simulation
