#include "worker/trainer/strategies/gradient_reducer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "worker/trainer/strategies/compressors.h"
#include "worker/trainer/strategies/gradient_squares.h"

namespace scalelab::trainer {
namespace {

class ExactReducer : public GradientReducer {
 public:
  using GradientReducer::GradientReducer;
  std::unique_ptr<Work> Start(const GradientBucket& bucket) override { return StartAverage(bucket.flat); }
  bool only_rounds() const override { return true; }
};

class CastReducer : public GradientReducer {
 public:
  CastReducer(Communicator& communicator, at::ScalarType type) : GradientReducer(communicator), type_(type) {}
  std::unique_ptr<Work> Start(const GradientBucket& bucket) override {
    const at::NoGradGuard no_grad;
    const at::Tensor rounded = bucket.flat.to(type_);
    auto work = StartAverage(rounded);
    return std::make_unique<CastWork>(bucket.flat, rounded, std::move(work));
  }
  bool only_rounds() const override { return true; }

 private:
  class CastWork : public Work {
   public:
    CastWork(at::Tensor flat, at::Tensor rounded, std::unique_ptr<Work> work)
        : flat_(std::move(flat)), rounded_(std::move(rounded)), work_(std::move(work)) {}
    void Wait() override {
      work_->Wait();
      const at::NoGradGuard no_grad;
      flat_.copy_(rounded_);
    }
    bool Done() override { return work_->Done(); }
    Span span() const override { return work_->span(); }

   private:
    at::Tensor flat_, rounded_;
    std::unique_ptr<Work> work_;
  };

  const at::ScalarType type_;
};

// Returns the memory of a dense tensor as a matrix, with a row for each index of the first dimension. Returns
// an undefined tensor if `tensor` has less than two dimensions, or if its first dimension is not the
// outermost one in memory.
at::Tensor MatrixOf(const at::Tensor& tensor) {
  if (tensor.dim() < 2 || tensor.numel() == 0) return {};
  const int64_t rows = tensor.size(0), columns = tensor.numel() / rows;
  if (rows > 1 && tensor.stride(0) != columns) return {};
  return tensor.as_strided({rows, columns}, {columns, 1});
}

// Prefixes of names in the state. The number of a parameter follows.
constexpr char kError[] = "error/", kKept[] = "kept/";

int NumberAfter(const std::string& name, std::string_view prefix) {
  return std::stoi(name.substr(prefix.size()));
}

// Returns the mean of tensor `name` over the ranks.
at::Tensor MeanOf(const std::vector<NamedTensors>& of_ranks, const std::string& name) {
  at::Tensor sum;
  for (const NamedTensors& of_rank : of_ranks) {
    const auto found = std::ranges::find(of_rank, name, &NamedTensors::value_type::first);
    if (found != of_rank.end()) sum = sum.defined() ? sum + found->second : found->second;
  }
  return of_ranks.size() == 1 ? sum : sum / static_cast<double>(of_ranks.size());
}

class CompressingReducer : public GradientReducer {
 public:
  CompressingReducer(Communicator& communicator, std::unique_ptr<Compressor> compressor, int64_t start_step)
      : GradientReducer(communicator), compressor_(std::move(compressor)), start_step_(start_step) {}

  void BeginStep() override {
    EndStep();
    bucket_bytes_ = 0;
    ++step_;
    GradientReducer::BeginStep();
  }

  NamedTensors State() override {
    EndStep();
    NamedTensors state = {{"counts", at::tensor({step_, measured_, uncompressed_, compressed_}, at::kLong)}};
    if (error_sum_.defined()) state.emplace_back("error_sum", error_sum_.view(1));
    for (const auto& [parameter, error] : errors_) {
      state.emplace_back(kError + std::to_string(parameter), error);
    }
    if (const auto* kept = compressor_->state(); kept != nullptr) {
      for (const auto& [parameter, tensor] : *kept) {
        state.emplace_back(kKept + std::to_string(parameter), tensor);
      }
    }
    return state;
  }

  void LoadState(const std::vector<NamedTensors>& of_ranks, at::Device device) override {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : of_ranks.at(0)) {
      if (name == "counts") {
        const auto* counts = static_cast<const int64_t*>(tensor.data_ptr());
        step_ = counts[0], measured_ = counts[1], uncompressed_ = counts[2], compressed_ = counts[3];
      } else if (name == "error_sum") {
        error_sum_ = MeanOf(of_ranks, name).to(device)[0];
      } else if (name.starts_with(kError)) {
        errors_[NumberAfter(name, kError)] = MeanOf(of_ranks, name).to(device);
      } else if (name.starts_with(kKept) && compressor_->state() != nullptr) {
        (*compressor_->state())[NumberAfter(name, kKept)] = tensor.to(device);
      }
    }
  }

  // Adds the norms of the last step to the sums for the metrics.
  void EndStep() {
    if (at::Tensor total = total_squares_.Take(), left = left_squares_.Take(); total.defined()) {
      const at::NoGradGuard no_grad;
      const at::Tensor share = (left / total.clamp_min(1e-300)).sqrt();
      error_sum_ = error_sum_.defined() ? error_sum_ + share : share;
      ++measured_;
      uncompressed_ += bucket_bytes_;
      compressed_ += bytes_;
    }
  }

  std::unique_ptr<Work> Start(const GradientBucket& bucket) override {
    const at::NoGradGuard no_grad;
    bucket_bytes_ += static_cast<int64_t>(bucket.flat.nbytes());
    std::vector<CompressedPart> parts;
    std::vector<at::Tensor> exact;  // views of the bucket: gradients that are averaged exactly
    for (size_t k = 0; k < bucket.parameters.size(); ++k) {
      const at::Tensor matrix = CompressedMatrixOf(bucket.views[k]);
      if (!matrix.defined()) {
        exact.push_back(bucket.views[k].as_strided({bucket.views[k].numel()}, {1}));
        continue;
      }
      at::Tensor& error = errors_[bucket.parameters[k]];
      if (error.defined()) {
        matrix.add_(error);
      } else {
        error = at::empty_like(matrix);
      }
      total_squares_.Add(matrix.view(-1));
      parts.push_back({bucket.parameters[k], matrix, error});
    }
    if (parts.empty()) return StartAverage(bucket.flat);
    if (bucket.tail.numel() > 0) exact.push_back(bucket.tail);
    const at::Tensor packed = exact.empty() ? at::Tensor() : at::cat(exact);
    auto exact_work = exact.empty() ? nullptr : StartAverage(packed);
    auto work = compressor_->Start(parts);
    return std::make_unique<Pending>(*this, std::move(parts), std::move(exact), packed, std::move(exact_work),
                                     std::move(work));
  }

  std::string WhyNotRecorded() const override {
    return "gradient_compression keeps errors from step to step; use none, fp16 or bf16";
  }

  double ErrorBytes() const override {
    double bytes = 0;
    for (const auto& [parameter, error] : errors_) bytes += static_cast<double>(error.nbytes());
    return bytes;
  }

  double ErrorBytesByFormula(const std::vector<at::Tensor>& parameters) const override {
    double bytes = 0;
    for (const at::Tensor& parameter : parameters) {
      if (CompressedMatrixOf(parameter.detach()).defined()) bytes += static_cast<double>(parameter.nbytes());
    }
    return bytes;
  }

  void AppendMetrics(std::vector<Metric>& metrics) const override {
    if (measured_ == 0) return;
    metrics.emplace_back("compression/error", error_sum_.item<double>() / static_cast<double>(measured_));
    metrics.emplace_back("compression/ratio",
                         static_cast<double>(uncompressed_) / static_cast<double>(compressed_));
  }

 private:
  class Pending : public Work {
   public:
    Pending(CompressingReducer& owner, std::vector<CompressedPart> parts, std::vector<at::Tensor> exact,
            at::Tensor packed, std::unique_ptr<Work> exact_work, std::unique_ptr<Compressor::Exchange> work)
        : owner_(owner),
          parts_(std::move(parts)),
          exact_(std::move(exact)),
          packed_(std::move(packed)),
          exact_work_(std::move(exact_work)),
          work_(std::move(work)) {}

    void Wait() override {
      const at::NoGradGuard no_grad;
      if (exact_work_) {
        exact_work_->Wait();
        int64_t at = 0;
        for (at::Tensor& view : exact_) {
          view.copy_(packed_.narrow(0, at, view.numel()));
          at += view.numel();
        }
      }
      owner_.bytes_ += work_->Finish();
      for (const CompressedPart& part : parts_) owner_.left_squares_.Add(part.error.view(-1));
      done_ = true;
    }
    // Wait executes the rest of the exchange, so the exchange is not complete before.
    bool Done() override { return done_; }

   private:
    CompressingReducer& owner_;
    std::vector<CompressedPart> parts_;
    std::vector<at::Tensor> exact_;
    at::Tensor packed_;
    std::unique_ptr<Work> exact_work_;
    std::unique_ptr<Compressor::Exchange> work_;
    bool done_ = false;
  };

  // Returns the gradient, or a tensor with the shape and strides of the gradient, as a matrix. Returns an undefined tensor if
  // it is averaged exactly in this step.
  at::Tensor CompressedMatrixOf(const at::Tensor& gradient) const {
    const at::Tensor matrix = step_ <= start_step_ ? at::Tensor() : MatrixOf(gradient);
    return matrix.defined() && compressor_->Takes(matrix.size(0), matrix.size(1)) ? matrix : at::Tensor();
  }

  const std::unique_ptr<Compressor> compressor_;
  const int64_t start_step_;
  int64_t step_ = 0;
  std::map<int, at::Tensor> errors_;  // by parameter: the part of the gradient that the last step left out
  GradientSquares total_squares_, left_squares_;
  int64_t bucket_bytes_ = 0;  // bytes of the buckets of this step
  // Sums over earlier steps: the norm of the parts that were left out, relative to the norm of the whole
  // gradient; the number of steps; bytes without and with compression.
  at::Tensor error_sum_;
  int64_t measured_ = 0, uncompressed_ = 0, compressed_ = 0;
};

std::unique_ptr<Compressor> MakeCompressor(Communicator& communicator, const CompressionOptions& options) {
  using enum CompressionOptions::Form;
  switch (options.form) {
    case kTopK:
      return MakeTopK(communicator, options.ratio);
    case kOneBit:
      return MakeOneBit(communicator);
    default:
      return MakePowerSgd(communicator, options.rank);
  }
}

}  // namespace

std::unique_ptr<GradientReducer> MakeExactReducer(Communicator& communicator) {
  return std::make_unique<ExactReducer>(communicator);
}

std::unique_ptr<GradientReducer> MakeCastReducer(Communicator& communicator, at::ScalarType type) {
  return std::make_unique<CastReducer>(communicator, type);
}

std::unique_ptr<GradientReducer> MakeCompressingReducer(Communicator& communicator,
                                                        const CompressionOptions& options) {
  return std::make_unique<CompressingReducer>(communicator, MakeCompressor(communicator, options),
                                              options.start_step);
}

}  // namespace scalelab::trainer
