#include "worker/trainer/comm/ring_all_reduce.h"

#include <algorithm>

#include "worker/trainer/comm/ring_schedule.h"
#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {
namespace {

// A block is sent in parts, so that one part can be added while the next part is in transit. The number of
// parts is small, because each part needs an operation of the communicator.
constexpr int64_t kPartBytes = 256 << 10, kMostParts = 8;

std::vector<at::Tensor> Parts(const at::Tensor& block) {
  const auto bytes = static_cast<int64_t>(block.nbytes());
  if (bytes == 0) return {};
  const int64_t parts = std::clamp<int64_t>(bytes / kPartBytes, 1, kMostParts);
  return block.chunk(parts);
}

void Add(const at::Tensor& to, const at::Tensor& values) {
  if (to.is_cpu()) {
    const ReduceFunction add = ReduceFunctionFor(to.scalar_type(), ReduceOp::kSum);
    add(to.data_ptr(), to.data_ptr(), values.data_ptr(), static_cast<size_t>(to.numel()));
  } else {
    const at::NoGradGuard no_grad;
    at::Tensor(to).add_(values);
  }
}

// This rank's position in a ring, and its hops.
class RingMember {
 public:
  RingMember(Communicator& communicator, const at::Tensor& flat, const Ring& ring)
      : communicator_(communicator),
        flat_(flat),
        ring_(ring),
        size_(ring.size()),
        place_(PlaceIn(ring, communicator.rank())) {}

  int size() const { return static_cast<int>(size_); }
  int place() const { return static_cast<int>(place_); }
  at::Tensor Block(int place) const { return RingBlock(flat_, static_cast<size_t>(place), size_); }

  // Sends `outgoing` to the next rank and receives `incoming` from the previous one. Calls `arrived(i)` when
  // part i of `incoming` has arrived.
  template <typename Arrived>
  void Hop(const at::Tensor& outgoing, const at::Tensor& incoming, const Arrived& arrived) {
    std::vector<std::unique_ptr<Work>> receiving, sending;
    for (const at::Tensor& part : Parts(incoming)) {
      receiving.push_back(communicator_.StartReceive(part, ring_[(place_ + size_ - 1) % size_]));
    }
    for (const at::Tensor& part : Parts(outgoing)) {
      sending.push_back(communicator_.StartSend(part, ring_[(place_ + 1) % size_]));
    }
    for (size_t i = 0; i < receiving.size(); ++i) {
      receiving[i]->Wait();
      arrived(i);
    }
    for (auto& work : sending) work->Wait();
  }

 private:
  Communicator& communicator_;
  const at::Tensor& flat_;
  const Ring& ring_;
  const size_t size_, place_;
};

}  // namespace

at::Tensor RingBlock(const at::Tensor& flat, size_t place, size_t places) {
  const int64_t elements = flat.numel(), n = static_cast<int64_t>(places), i = static_cast<int64_t>(place);
  const int64_t begin = elements / n * i + std::min(i, elements % n);
  return flat.narrow(0, begin, elements / n + (i < elements % n ? 1 : 0));
}

size_t PlaceIn(const Ring& ring, int rank) {
  const auto place = std::ranges::find(ring, rank);
  TORCH_CHECK(place != ring.end(), "rank ", rank, " is not in the ring");
  return static_cast<size_t>(place - ring.begin());
}

void RingReduceScatter(Communicator& communicator, const at::Tensor& flat, const Ring& ring) {
  RingMember member(communicator, flat, ring);
  const at::Tensor received = at::empty({RingBlock(flat, 0, ring.size()).numel()}, flat.options());
  ForEachReduceScatterHop(member.place(), member.size(), [&](int outgoing, int incoming) {
    const at::Tensor sum = member.Block(incoming);
    const at::Tensor values = received.narrow(0, 0, sum.numel());
    const std::vector<at::Tensor> value_parts = Parts(values), sum_parts = Parts(sum);
    member.Hop(member.Block(outgoing), values, [&](size_t part) { Add(sum_parts[part], value_parts[part]); });
  });
}

void RingAllGather(Communicator& communicator, const at::Tensor& flat, const Ring& ring) {
  RingMember member(communicator, flat, ring);
  ForEachAllGatherHop(member.place(), member.size(), [&](int outgoing, int incoming) {
    member.Hop(member.Block(outgoing), member.Block(incoming), [](size_t) {});
  });
}

void RingAllReduce(Communicator& communicator, const at::Tensor& flat, ReduceOp op, const Ring& ring) {
  CheckReduction(flat, op);
  TORCH_CHECK(op == ReduceOp::kSum || op == ReduceOp::kAverage, "a ring adds or averages");
  RingReduceScatter(communicator, flat, ring);
  if (op == ReduceOp::kAverage) {
    const size_t place = PlaceIn(ring, communicator.rank());
    DivideInPlace(RingBlock(flat, place, ring.size()), static_cast<double>(ring.size()));
  }
  RingAllGather(communicator, flat, ring);
}

void DivideInPlace(const at::Tensor& tensor, double divisor) {
  if (tensor.is_cpu()) return Divide(tensor, divisor);
  const at::NoGradGuard no_grad;
  at::Tensor(tensor).div_(divisor);
}

}  // namespace scalelab::trainer
