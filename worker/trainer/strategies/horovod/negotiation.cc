#include "worker/trainer/strategies/horovod/negotiation.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <sstream>

namespace scalelab::trainer::horovod {
namespace {

std::string Describe(const Request& request) {
  std::ostringstream text;
  text << c10::toString(request.type) << " [";
  for (size_t i = 0; i < request.sizes.size(); ++i) text << (i == 0 ? "" : ", ") << request.sizes[i];
  text << "]";
  return text.str();
}

}  // namespace

void Negotiation::Add(int rank, const Request& request, Clock::time_point now) {
  auto entry = std::ranges::find_if(entries_, [&](const Entry& e) { return e.request.name == request.name; });
  if (entry == entries_.end()) {
    entry = entries_.insert(entry, {request, rank, std::vector<bool>(ranks_), "", now});
  }
  entry->submitted[rank] = true;
  if (!(entry->request == request) && entry->error.empty()) {
    entry->error = "tensor \"" + request.name + "\" is " + Describe(entry->request) + " on rank " +
                   std::to_string(entry->first_rank) + " and " + Describe(request) + " on rank " +
                   std::to_string(rank) + ": all ranks must train the same model in the same precision";
  }
}

std::vector<Response> Negotiation::TakeReady(const std::vector<bool>& closed) {
  std::vector<Response> ready;
  std::erase_if(entries_, [&](Entry& entry) {
    for (int r = 0; r < ranks_; ++r) {
      if (!entry.submitted[r] && !closed[r]) return false;
    }
    ready.push_back({{std::move(entry.request)}, std::move(entry.error)});
    return true;
  });
  return ready;
}

std::vector<Waiting> Negotiation::StillWaiting(const std::vector<bool>& closed, Clock::time_point now) const {
  std::vector<Waiting> waiting;
  for (const Entry& entry : entries_) {
    Waiting& one = waiting.emplace_back(
        Waiting{entry.request.name, {}, std::chrono::duration<double>(now - entry.since).count()});
    for (int r = 0; r < ranks_; ++r) {
      if (!entry.submitted[r] && !closed[r]) one.missing.push_back(r);
    }
  }
  return waiting;
}

std::vector<Response> Fuse(std::vector<Response> responses, int64_t threshold) {
  std::vector<Response> fused;
  std::deque<Response> rest(std::make_move_iterator(responses.begin()),
                            std::make_move_iterator(responses.end()));
  while (!rest.empty()) {
    Response group = std::move(rest.front());
    rest.pop_front();
    if (group.error.empty()) {
      const at::ScalarType type = group.tensors[0].type;
      int64_t bytes = group.tensors[0].bytes(), passed = 0;
      for (auto next = rest.begin(); next != rest.end() && bytes + passed <= threshold;) {
        const int64_t more = next->error.empty() ? next->tensors[0].bytes() : 0;
        if (next->error.empty() && next->tensors[0].type == type && bytes + more <= threshold) {
          bytes += more;
          group.tensors.push_back(std::move(next->tensors[0]));
          next = rest.erase(next);
        } else {
          passed += more;
          ++next;
        }
      }
    }
    fused.push_back(std::move(group));
  }
  return fused;
}

}  // namespace scalelab::trainer::horovod
