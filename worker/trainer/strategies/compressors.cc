#include "worker/trainer/strategies/compressors.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace scalelab::trainer {
namespace {

int64_t BytesOf(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Makes the columns orthonormal by the modified Gram-Schmidt process. A column that is almost a linear
// combination of earlier columns becomes zero, because only rounding errors would remain.
void Orthonormalise(const at::Tensor& matrix) {
  constexpr double kLeastShare = 1e-3, kSmall = 1e-30;
  const at::Tensor before = matrix.norm(2, {0}, /*keepdim=*/true);
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    const at::Tensor column = matrix.narrow(1, i, 1);
    const at::Tensor norm = column.norm(), independent = norm.gt(before.narrow(1, i, 1) * kLeastShare);
    column.mul_(independent / norm.clamp_min(kSmall));
    if (i + 1 == matrix.size(1)) break;
    const at::Tensor rest = matrix.narrow(1, i + 1, matrix.size(1) - i - 1);
    rest.sub_(column.mm(column.t().mm(rest)));
  }
}

class PowerSgd : public Compressor {
 public:
  PowerSgd(Communicator& communicator, int64_t rank) : communicator_(communicator), rank_(rank) {}

  bool Takes(int64_t rows, int64_t columns) const override {
    return 2 * RankOf(rows, columns) * (rows + columns) <= rows * columns;
  }

  std::unique_ptr<Exchange> Start(const std::vector<CompressedPart>& parts) override {
    auto exchange = std::make_unique<FactorExchange>(*this, parts);
    exchange->Start();
    return exchange;
  }

  std::map<int, at::Tensor>* state() override { return &factors_; }

 private:
  // An exchange averages P, computes Q from the average, and then averages Q.
  class FactorExchange : public Exchange {
   public:
    FactorExchange(PowerSgd& owner, const std::vector<CompressedPart>& parts)
        : owner_(owner), parts_(parts) {}

    void Start() {
      std::vector<at::Tensor> factors;
      for (const CompressedPart& part : parts_) {
        factors.push_back(part.matrix.mm(owner_.FactorOf(part)).view(-1));
      }
      p_ = at::cat(factors);
      work_ = owner_.communicator_.StartAllReduce(p_, ReduceOp::kAverage);
    }

    int64_t Finish() override {
      work_->Wait();
      std::vector<at::Tensor> left, right;
      int64_t at = 0;
      for (const CompressedPart& part : parts_) {
        const int64_t rows = part.matrix.size(0), rank = owner_.RankOf(rows, part.matrix.size(1));
        left.push_back(p_.narrow(0, at, rows * rank).view({rows, rank}));
        at += rows * rank;
        Orthonormalise(left.back());
        right.push_back(part.matrix.t().mm(left.back()).view(-1));
      }
      const at::Tensor q = at::cat(right);
      owner_.communicator_.StartAllReduce(q, ReduceOp::kAverage)->Wait();
      at = 0;
      for (size_t i = 0; i < parts_.size(); ++i) {
        const CompressedPart& part = parts_[i];
        const int64_t columns = part.matrix.size(1), rank = left[i].size(1);
        const at::Tensor factor = q.narrow(0, at, columns * rank).view({columns, rank});
        at += columns * rank;
        const at::Tensor approximation = left[i].mm(factor.t());
        part.error.copy_(part.matrix).sub_(approximation);
        part.matrix.copy_(approximation);
        // Keep the old column if the new one is zero, because subspace iteration cannot start from a
        // column of zeros.
        at::Tensor& start = owner_.factors_[part.parameter];
        start = at::where(factor.norm(2, {0}, /*keepdim=*/true).gt(0), factor, start);
      }
      return BytesOf(p_) + BytesOf(q);
    }

   private:
    PowerSgd& owner_;
    const std::vector<CompressedPart> parts_;
    at::Tensor p_;
    std::unique_ptr<Work> work_;
  };

  int64_t RankOf(int64_t rows, int64_t columns) const { return std::min({rank_, rows, columns}); }

  // Returns Q of the previous step. In the first step, returns random numbers that are the same on all ranks.
  const at::Tensor& FactorOf(const CompressedPart& part) {
    at::Tensor& factor = factors_[part.parameter];
    if (!factor.defined() || factor.size(1) != RankOf(part.matrix.size(0), part.matrix.size(1))) {
      const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(part.parameter) + 1);
      const int64_t columns = part.matrix.size(1);
      factor = at::randn({columns, RankOf(part.matrix.size(0), columns)}, generator, at::kFloat)
                   .to(part.matrix.options());
    }
    return factor;
  }

  Communicator& communicator_;
  const int64_t rank_;
  std::map<int, at::Tensor> factors_;  // Q by parameter
};

// Gathers a one-dimensional tensor from all ranks. Row r of `all` is the tensor of rank r.
struct Gathering {
  Gathering(Communicator& communicator, const at::Tensor& mine)
      : own(mine),
        all(at::empty({communicator.size(), mine.numel()}, mine.options())),
        work(communicator.StartAllGather(all, own)) {}
  void Wait() const { work->Wait(); }
  int64_t bytes() const { return BytesOf(own); }

  at::Tensor own, all;
  std::unique_ptr<Work> work;
};

class TopK : public Compressor {
 public:
  TopK(Communicator& communicator, double ratio) : communicator_(communicator), ratio_(ratio) {}

  bool Takes(int64_t rows, int64_t columns) const override {
    // An element takes twice its size, because its index is sent too.
    return 2 * Count(rows * columns) < rows * columns;
  }

  std::unique_ptr<Exchange> Start(const std::vector<CompressedPart>& parts) override {
    std::vector<at::Tensor> values, places;
    for (const CompressedPart& part : parts) {
      const at::Tensor flat = part.matrix.view(-1);
      const at::Tensor place =
          std::get<1>(flat.abs().topk(Count(flat.numel()), 0, /*largest=*/true, /*sorted=*/false));
      values.push_back(flat.index_select(0, place));
      places.push_back(place.to(at::kInt));
      part.error.copy_(part.matrix);
      part.error.view(-1).index_fill_(0, place, 0);
    }
    return std::make_unique<ElementExchange>(*this, parts, at::cat(values), at::cat(places));
  }

 private:
  class ElementExchange : public Exchange {
   public:
    ElementExchange(TopK& owner, const std::vector<CompressedPart>& parts, const at::Tensor& values,
                    const at::Tensor& places)
        : owner_(owner),
          parts_(parts),
          values_(owner.communicator_, values),
          places_(owner.communicator_, places) {}

    int64_t Finish() override {
      values_.Wait();
      places_.Wait();
      const int ranks = owner_.communicator_.size();
      values_.all.div_(ranks);
      int64_t at = 0;
      for (const CompressedPart& part : parts_) {
        const int64_t count = owner_.Count(part.matrix.numel());
        const at::Tensor flat = part.matrix.view(-1).zero_();
        for (int r = 0; r < ranks; ++r) {
          flat.index_add_(0, places_.all[r].narrow(0, at, count).to(at::kLong),
                          values_.all[r].narrow(0, at, count));
        }
        at += count;
      }
      return values_.bytes() + places_.bytes();
    }

   private:
    TopK& owner_;
    const std::vector<CompressedPart> parts_;
    Gathering values_, places_;
  };

  int64_t Count(int64_t elements) const {
    return std::max<int64_t>(1, std::llround(ratio_ * static_cast<double>(elements)));
  }

  Communicator& communicator_;
  const double ratio_;
};

// Packs a vector of booleans into bytes, eight to a byte.
at::Tensor Pack(const at::Tensor& bits, const at::Tensor& weights) {
  const at::Tensor padded = at::constant_pad_nd(bits.to(at::kByte), {0, (8 - bits.numel() % 8) % 8});
  return padded.view({-1, 8}).mul(weights).sum(1, /*keepdim=*/false, at::kByte);
}

at::Tensor Unpack(const at::Tensor& bytes, int64_t count, const at::Tensor& weights) {
  return bytes.unsqueeze(1).bitwise_and(weights).ne(0).view(-1).narrow(0, 0, count);
}

class OneBit : public Compressor {
 public:
  explicit OneBit(Communicator& communicator) : communicator_(communicator) {}

  bool Takes(int64_t rows, int64_t columns) const override { return rows * columns > 256 && columns >= 8; }

  std::unique_ptr<Exchange> Start(const std::vector<CompressedPart>& parts) override {
    if (!weights_.defined()) {
      weights_ = at::tensor({1, 2, 4, 8, 16, 32, 64, 128}, at::kByte).to(parts.front().matrix.device());
    }
    std::vector<at::Tensor> bits, means;
    for (const CompressedPart& part : parts) {
      const at::Tensor positive = part.matrix.ge(0);
      const at::Tensor count = positive.sum(1, /*keepdim=*/true), others = part.matrix.size(1) - count;
      const at::Tensor above = part.matrix.clamp_min(0).sum(1, true) / count.clamp_min(1);
      const at::Tensor below = part.matrix.clamp_max(0).sum(1, true) / others.clamp_min(1);
      part.error.copy_(part.matrix).sub_(at::where(positive, above, below));
      bits.push_back(Pack(positive.view(-1), weights_));
      means.push_back(at::cat({above, below}, 1).view(-1));
    }
    return std::make_unique<SignExchange>(*this, parts, at::cat(bits), at::cat(means));
  }

 private:
  class SignExchange : public Exchange {
   public:
    SignExchange(OneBit& owner, const std::vector<CompressedPart>& parts, const at::Tensor& bits,
                 const at::Tensor& means)
        : owner_(owner),
          parts_(parts),
          bits_(owner.communicator_, bits),
          means_(owner.communicator_, means) {}

    int64_t Finish() override {
      bits_.Wait();
      means_.Wait();
      const int ranks = owner_.communicator_.size();
      means_.all.div_(ranks);
      int64_t byte = 0, mean = 0;
      for (const CompressedPart& part : parts_) {
        const int64_t rows = part.matrix.size(0), count = part.matrix.numel(), bytes = (count + 7) / 8;
        part.matrix.zero_();
        for (int r = 0; r < ranks; ++r) {
          const at::Tensor positive =
              Unpack(bits_.all[r].narrow(0, byte, bytes), count, owner_.weights_).view_as(part.matrix);
          const at::Tensor pair = means_.all[r].narrow(0, mean, 2 * rows).view({rows, 2});
          part.matrix.add_(at::where(positive, pair.narrow(1, 0, 1), pair.narrow(1, 1, 1)));
        }
        byte += bytes;
        mean += 2 * rows;
      }
      return bits_.bytes() + means_.bytes();
    }

   private:
    OneBit& owner_;
    const std::vector<CompressedPart> parts_;
    Gathering bits_, means_;
  };

  Communicator& communicator_;
  at::Tensor weights_;  // values of the bits of a byte
};

}  // namespace

std::unique_ptr<Compressor> MakePowerSgd(Communicator& communicator, int64_t rank) {
  return std::make_unique<PowerSgd>(communicator, rank);
}

std::unique_ptr<Compressor> MakeTopK(Communicator& communicator, double ratio) {
  return std::make_unique<TopK>(communicator, ratio);
}

std::unique_ptr<Compressor> MakeOneBit(Communicator& communicator) {
  return std::make_unique<OneBit>(communicator);
}

}  // namespace scalelab::trainer
