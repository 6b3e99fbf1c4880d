#include "tests/simulation/event_files.h"

#include <memory>
#include <utility>

#include "server/readers/file_event_reader.h"
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

// Reads the files of some ranks.
absl::StatusOr<server::EventPart> EventFiles::PartOf(server::EventRequest request) {
  const size_t ranks = request.places.size();
  if (ranks > 1 && world_.random.Chance(0.3))
    request.places.resize(world_.random.Between(1, static_cast<int64_t>(ranks)));
  absl::StatusOr<server::EventPart> part = server::ReadEventPart(request);
  if (!part.ok()) world_.Violation("event files cannot be read: ", part.status().ToString());
  if (part.ok() && !part->problem.empty()) world_.Violation("event files are malformed: ", part->problem);
  if (part.ok() && request.places.size() < ranks) {  // this is not the last part
    part->end.reset();
    part->software.clear();
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
