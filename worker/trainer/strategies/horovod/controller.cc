#include "worker/trainer/strategies/horovod/controller.h"

#include <cstdio>
#include <cstring>

namespace scalelab::trainer::horovod {
namespace {

// Bits of the status word. A bit of the result is set only if all ranks have set it.
constexpr int64_t kNothingUnknown = 1;     // no request to negotiate
constexpr int64_t kNothingUnanswered = 2;  // no request waits on rank 0
constexpr int64_t kNotClosed = 4;
constexpr int64_t kClosed = 8;
constexpr int64_t kJoined = 16;

// Converts bytes to an int64 tensor, because communicators send tensors.
at::Tensor ToTensor(const std::string& bytes) {
  at::Tensor tensor = at::zeros({(std::ssize(bytes) + 7) / 8}, at::kLong);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string ToBytes(const at::Tensor& tensor, int64_t length) {
  return {static_cast<const char*>(tensor.data_ptr()), static_cast<size_t>(length)};
}

// Returns the messages of all ranks on rank 0, and an empty list on the other ranks.
std::vector<std::string> GatherAtZero(Communicator& communicator, const std::string& mine) {
  const int64_t length = std::ssize(mine);
  const std::vector<std::string> lengths =
      communicator.AllGather({reinterpret_cast<const char*>(&length), sizeof length});
  if (communicator.rank() != 0) {
    communicator.Send(ToTensor(mine), 0);
    return {};
  }
  std::vector<std::string> all = {mine};
  for (int r = 1; r < communicator.size(); ++r) {
    int64_t theirs = 0;
    std::memcpy(&theirs, lengths[r].data(), sizeof theirs);
    const at::Tensor words = at::zeros({(theirs + 7) / 8}, at::kLong);
    communicator.Receive(words, r);
    all.push_back(ToBytes(words, theirs));
  }
  return all;
}

std::string BroadcastFromZero(Communicator& communicator, const std::string& mine) {
  const at::Tensor length = at::full({1}, std::ssize(mine), at::kLong);
  communicator.Broadcast(length, 0);
  const int64_t bytes = length.item<int64_t>();
  const at::Tensor words =
      communicator.rank() == 0 ? ToTensor(mine) : at::zeros({(bytes + 7) / 8}, at::kLong);
  communicator.Broadcast(words, 0);
  return ToBytes(words, bytes);
}

}  // namespace

struct Controller::Agreement {
  int64_t status = 0;
  std::vector<int64_t> ready;   // slots to reduce now
  std::vector<int64_t> erased;  // slots that are outdated on any rank
};

Controller::Controller(Communicator& communicator, const Options& options, Counters& counters)
    : communicator_(communicator),
      options_(options),
      counters_(counters),
      cache_(options.cache_capacity),
      stalls_(options.stall_warning_seconds),
      negotiation_(communicator.size()),
      closed_ranks_(communicator.size()) {}

CycleResult Controller::Cycle(CycleInput input, int64_t fusion_bytes, Clock::time_point now) {
  ++counters_.cycles;
  Sort(std::move(input.fresh), now);
  const Agreement agreed = AgreeOnBits(input);
  CycleResult result;
  result.over = (agreed.status & kClosed) != 0;
  result.all_joined = (agreed.status & kJoined) != 0;

  for (int64_t slot : agreed.erased) {
    cache_.Erase(slot);
    if (auto pending = known_.extract(slot)) unknown_.push_back(std::move(pending.mapped().request));
  }
  for (int64_t slot : agreed.ready) {
    result.responses.push_back({{cache_.Use(slot)}, ""});
    known_.erase(slot);
    ++counters_.cache_hits;
  }
  // Requests that wait at rank 0 must be checked again when a rank closes its step without submitting them.
  const bool close_may_answer = !(agreed.status & kNothingUnanswered) && !(agreed.status & kNotClosed);
  if (!(agreed.status & kNothingUnknown) || close_may_answer) {
    for (Response& response : Negotiate(input.closed, now)) result.responses.push_back(std::move(response));
  }
  if (communicator_.rank() == 0) Inspect(now);
  result.responses = Fuse(std::move(result.responses), fusion_bytes);
  return result;
}

void Controller::Sort(std::vector<Request> fresh, Clock::time_point now) {
  changed_.assign(cache_.slots(), false);
  for (Request& request : fresh) {
    int64_t slot = -1;
    const ResponseCache::Match match = cache_.Find(request, &slot);
    if (match == ResponseCache::Match::kHit) {
      known_[slot] = {std::move(request), now};
      continue;
    }
    if (match == ResponseCache::Match::kChanged) changed_[slot] = true;
    unknown_.push_back(std::move(request));
  }
  // Negotiates a known tensor again if it has waited too long for other ranks, so that rank 0 can
  // report these ranks.
  for (const auto& [slot, pending] : known_) {
    if (stalls_.Stalled(std::chrono::duration<double>(now - pending.since).count())) changed_[slot] = true;
  }
}

Controller::Agreement Controller::AgreeOnBits(const CycleInput& input) {
  // The vector has the status word and three bit sets with one bit per slot of the cache: this rank agrees to
  // reduce the tensor; this rank has not submitted it; the cached request is still valid on this rank.
  const int64_t slots = cache_.slots(), words = (slots + 63) / 64;
  const at::Tensor vector = at::zeros({1 + 3 * words}, at::kLong);
  auto* bits = static_cast<int64_t*>(vector.data_ptr());
  int64_t *may = bits + 1, *absent = may + words, *valid = absent + words;
  bits[0] = (unknown_.empty() ? kNothingUnknown : 0) | (unanswered_.empty() ? kNothingUnanswered : 0) |
            (input.closed ? kClosed : kNotClosed) | (input.joined ? kJoined : 0);
  for (int64_t s = 0; s < slots; ++s) {
    const uint64_t bit = uint64_t{1} << (s % 64);
    const bool submitted = known_.contains(s);
    if (submitted || input.closed) may[s / 64] |= static_cast<int64_t>(bit);
    if (!submitted) absent[s / 64] |= static_cast<int64_t>(bit);
    if (!changed_[s]) valid[s / 64] |= static_cast<int64_t>(bit);
  }
  communicator_.AllReduce(vector, ReduceOp::kBitAnd);

  Agreement agreed;
  agreed.status = bits[0];
  for (int64_t s = 0; s < slots; ++s) {
    const uint64_t bit = uint64_t{1} << (s % 64);
    if (!cache_.holds(s)) continue;
    if (!(static_cast<uint64_t>(valid[s / 64]) & bit)) {
      agreed.erased.push_back(s);
    } else if ((static_cast<uint64_t>(may[s / 64]) & bit) && !(static_cast<uint64_t>(absent[s / 64]) & bit)) {
      agreed.ready.push_back(s);
    }
  }
  // A rank that erased a slot has to negotiate its tensor, even if no other request is unknown.
  if (!agreed.erased.empty()) agreed.status &= ~kNothingUnknown;
  return agreed;
}

std::vector<Response> Controller::Negotiate(bool closed, Clock::time_point now) {
  ++counters_.negotiations;
  for (const Request& request : unknown_) unanswered_.insert(request.name);
  const std::vector<std::string> gathered =
      GatherAtZero(communicator_, Encode(RequestList{closed, std::move(unknown_)}));
  unknown_.clear();
  std::string decision;
  if (communicator_.rank() == 0) {
    for (int r = 0; r < communicator_.size(); ++r) {
      const RequestList list = DecodeRequests(gathered[r]);
      closed_ranks_[r] = list.closed;
      for (const Request& request : list.requests) negotiation_.Add(r, request, now);
    }
    decision = Encode(negotiation_.TakeReady(closed_ranks_));
  }
  std::vector<Response> responses = DecodeResponses(BroadcastFromZero(communicator_, decision));
  for (const Response& response : responses) {
    unanswered_.erase(response.tensors[0].name);
    if (!response.error.empty()) continue;
    ++counters_.cache_misses;
    const int64_t slot = cache_.Put(response.tensors[0]);
    // The earlier tensor of this slot is unknown again.
    if (auto pending = known_.extract(slot)) unknown_.push_back(std::move(pending.mapped().request));
  }
  return responses;
}

void Controller::Inspect(Clock::time_point now) {
  for (const std::string& report : stalls_.Inspect(negotiation_.StillWaiting(closed_ranks_, now))) {
    ++counters_.stall_warnings;
    if (options_.warn) {
      options_.warn(report);
    } else {
      std::fprintf(stderr, "native/horovod: %s\n", report.c_str());
    }
  }
}

}  // namespace scalelab::trainer::horovod
