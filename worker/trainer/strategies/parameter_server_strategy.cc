#include "worker/trainer/strategies/parameter_server_strategy.h"

#include <algorithm>
#include <utility>

#include "worker/trainer/errors.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/strategies/gradient_squares.h"

namespace scalelab::trainer {
namespace {

constexpr char kStaleness[] = "staleness";

at::Tensor SquareOf(const at::Tensor& block) {
  GradientSquares squares;
  squares.Add(block);
  return squares.Take();
}

// A rank that trains.
class ServedStrategy : public ParameterServerStrategy {
 public:
  ServedStrategy(Model& model, Communicator& communicator, const ParameterServerOptions& options)
      : ParameterServerStrategy(model, communicator, options), gradients_(at::zeros_like(values_)) {
    hooks_.Attach(parameters_, [this](int parameter) { GradientReady(parameter); });
  }

  void Step(StepTask& task) override;
  // The servers update the parameters.
  std::vector<at::Tensor> Trained() override { return {}; }
  ModelMemory MemoryByFormula(double parameters) const override {
    return {.parameters = parameters, .gradients = parameters, .optimizer = 0};
  }

 private:
  at::Tensor ViewOf(int parameter) const {
    const at::Tensor& like = parameters_[parameter];
    return gradients_.as_strided(like.sizes(), like.strides(), layout_.offsets[parameter]);
  }
  void GradientReady(int parameter);  // called by autograd
  // Sends the gradients and receives the parameters. Returns the total number of bytes.
  int64_t Exchange();

  const at::Tensor gradients_;  // gradients in the layout of values_
  at::Tensor used_;             // by parameter: 1 if it has a gradient in this step
  GradientHooks hooks_;         // the last member, because the hooks use all others
};

void ServedStrategy::GradientReady(int parameter) {
  at::Tensor& gradient = parameters_[parameter].mutable_grad();
  // Copy the first gradient. Autograd adds later gradients in place.
  if (at::Tensor view = ViewOf(parameter); gradient.data_ptr() != view.data_ptr()) {
    view.copy_(gradient);
    gradient = view;
  }
  used_.data_ptr<uint8_t>()[parameter] = 1;
}

void ServedStrategy::Step(StepTask& task) {
  for (const at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  used_ = at::zeros({std::ssize(parameters_)}, at::kByte);
  at::Tensor loss;
  for (int64_t part = 0; part < task.parts(); ++part) {
    if (part > 0) task.marks().Mark(&StepTimes::backward);
    loss = task.Forward(part);
    loss.backward();
  }
  BackwardCost cost;
  cost.computed = DeviceEvent(loss.device());
  const auto begin = std::make_shared<const DeviceEvent>(loss.device());
  cost.bytes = Exchange();
  cost.spans.push_back({begin, std::make_shared<const DeviceEvent>(loss.device())});
  if (MeasuresSquares()) {
    const at::Tensor squares = SumSquares(kOfRank, SquareOf(gradients_));
    cost.rank_square = squares[kOfRank];
    cost.mean_square = squares[kOfMean];
  }
  task.Measured(std::move(cost));
}

int64_t ServedStrategy::Exchange() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].grad().defined()) ViewOf(static_cast<int>(i)).zero_();
  }
  std::vector<std::unique_ptr<Work>> works;
  for (int server = 0; server < options_.servers; ++server) {
    works.push_back(communicator_.StartReceive(RangeOf(values_, server), RankOf(server)));
    works.push_back(communicator_.StartSend(used_, RankOf(server)));
    works.push_back(communicator_.StartSend(RangeOf(gradients_, server), RankOf(server)));
  }
  for (const auto& work : works) work->Wait();
  return static_cast<int64_t>(gradients_.nbytes() + values_.nbytes()) +
         static_cast<int64_t>(used_.nbytes()) * options_.servers;
}

// A rank that holds a range of the parameters.
class ServerStrategy : public ParameterServerStrategy {
 public:
  ServerStrategy(Model& model, Communicator& communicator, const ParameterServerOptions& options);

  void Step(StepTask& task) override {
    const at::NoGradGuard no_grad;
    averages_gradients() ? UpdateTogether(task) : UpdateOneByOne(task);
  }
  std::vector<at::Tensor> Trained() override;
  void EndEpoch() override;
  std::vector<Shard> Shards() override;
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  double RateOfUpdate(double rate) const override { return averages_gradients() ? rate : rate / trainers_; }
  ModelMemory MemoryByFormula(double parameters) const override {
    const double range = parameters / options_.servers;
    return {.parameters = parameters, .gradients = range, .optimizer = range};
  }

 private:
  // The part of a parameter in the server's range.
  struct Piece {
    int64_t parameter;
    int64_t offset;    // position in the range
    at::Tensor value;  // the tensor that the optimizer updates
  };

  // Makes one update with the mean of the gradients of all ranks.
  void UpdateTogether(StepTask& task);
  // Makes one update for each arriving gradient. The number of updates is the number of ranks that train.
  void UpdateOneByOne(StepTask& task);
  // Updates the pieces of the parameters that are marked in `used`, with `gradients`.
  void Update(StepTask& task, const at::Tensor& used, const at::Tensor& gradients);
  // Sends the updated range to the ranks that may continue.
  void Answer();

  const at::Tensor range_;
  std::vector<Piece> pieces_;
  int64_t updates_ = 0;
  std::vector<int64_t> steps_;     // by rank: number of gradients that it has sent
  std::vector<int64_t> answered_;  // by rank: value of updates_ when the range was last sent to it
  std::vector<int>
      waiting_;  // ranks that have sent a gradient and wait for the range, in the order of arrival
};

ServerStrategy::ServerStrategy(Model& model, Communicator& communicator,
                               const ParameterServerOptions& options)
    : ParameterServerStrategy(model, communicator, options),
      range_(RangeOf(values_, communicator.rank() - trainers_)),
      steps_(trainers_),
      answered_(trainers_) {
  const int64_t begin = range_.numel() * (communicator.rank() - trainers_), end = begin + range_.numel();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t first = std::max(layout_.offsets[i], begin),
                  last = std::min(layout_.offsets[i] + parameters_[i].numel(), end);
    if (first >= last) continue;
    at::Tensor value = range_.narrow(0, first - begin, last - first);
    if (parameters_[i].dim() >= 2) value = value.view({1, -1});
    pieces_.push_back({static_cast<int64_t>(i), first - begin, value.detach().requires_grad_(true)});
  }
}

std::vector<at::Tensor> ServerStrategy::Trained() {
  std::vector<at::Tensor> values;
  for (const Piece& piece : pieces_) values.push_back(piece.value);
  return values;
}

void ServerStrategy::EndEpoch() {
  ParameterServerStrategy::EndEpoch();
  std::ranges::fill(answered_, updates_);  // all ranks have the current parameters
}

std::vector<Shard> ServerStrategy::Shards() {
  const int64_t begin = range_.numel() * (communicator_.rank() - trainers_);
  std::vector<Shard> shards;
  for (const Piece& piece : pieces_) {
    shards.push_back({.parameter = static_cast<int>(piece.parameter),
                      .value = piece.value.detach().view(-1),
                      .first = begin + piece.offset - layout_.offsets[piece.parameter]});
  }
  return shards;
}

NamedTensors ServerStrategy::State() { return {{kStaleness, staleness_.State()}}; }

// If the number of ranks has changed, the first server takes the sums of the counters of all earlier servers.
void ServerStrategy::LoadState(const std::vector<NamedTensors>& of_ranks) {
  if (of_ranks.size() == 1 || communicator_.rank() == trainers_) {
    for (const NamedTensors& of_rank : of_ranks) {
      for (const auto& [name, numbers] : of_rank) {
        if (name == kStaleness) staleness_.AddState(numbers);
      }
    }
  }
  ParameterServerStrategy::LoadState(of_ranks);
}

void ServerStrategy::Update(StepTask& task, const at::Tensor& used, const at::Tensor& gradients) {
  for (Piece& piece : pieces_) {
    at::Tensor& gradient = piece.value.mutable_grad();
    if (used.data_ptr<uint8_t>()[piece.parameter] == 0) {
      gradient.reset();
    } else {
      gradient = gradients.narrow(0, piece.offset, piece.value.numel()).view_as(piece.value);
    }
  }
  task.Update();
  ++updates_;
}

void ServerStrategy::UpdateTogether(StepTask& task) {
  // With two buffers, the next gradient is received while the previous one is added.
  const at::Tensor sum = at::empty_like(range_), others[] = {at::empty_like(range_), at::empty_like(range_)};
  std::vector<at::Tensor> used;
  std::vector<std::unique_ptr<Work>> flags, gradients;
  const auto receive = [&](int rank) {
    used.push_back(at::empty({std::ssize(parameters_)}, at::kByte));
    flags.push_back(communicator_.StartReceive(used.back(), rank));
    gradients.push_back(communicator_.StartReceive(rank == 0 ? sum : others[rank % 2], rank));
  };
  receive(0);
  for (int rank = 0; rank < trainers_; ++rank) {
    if (rank + 1 < trainers_) receive(rank + 1);
    flags[rank]->Wait();
    gradients[rank]->Wait();
    if (rank == 0) continue;
    sum.add_(others[rank % 2]);
    used[0].bitwise_or_(used[rank]);
  }
  sum.div_(trainers_);
  const at::Tensor square = MeasuresSquares() ? SquareOf(sum) : at::Tensor();  // the update may change `sum`
  Update(task, used[0], sum);
  std::vector<std::unique_ptr<Work>> answers;
  for (int rank = 0; rank < trainers_; ++rank) answers.push_back(communicator_.StartSend(range_, rank));
  for (const auto& answer : answers) answer->Wait();
  if (square.defined()) SumSquares(kOfMean, square);
}

void ServerStrategy::UpdateOneByOne(StepTask& task) {
  const at::Tensor used = at::empty({std::ssize(parameters_)}, at::kByte), gradients = at::empty_like(range_);
  for (int i = 0; i < trainers_; ++i) {
    const int rank = communicator_.ReceiveFromAny(used);
    communicator_.Receive(gradients, rank);
    staleness_.Add(updates_ - answered_[rank]);
    Update(task, used, gradients);
    ++steps_[rank];
    waiting_.push_back(rank);
    Answer();
  }
}

void ServerStrategy::Answer() {
  const int64_t slowest = *std::ranges::min_element(steps_);
  std::vector<int> still;
  for (const int rank : waiting_) {
    if (options_.consistency == Consistency::kSsp && steps_[rank] - slowest > options_.staleness) {
      still.push_back(rank);
      continue;
    }
    communicator_.Send(range_, rank);
    answered_[rank] = updates_;
  }
  waiting_ = std::move(still);
}

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(Model& model, Communicator& communicator,
                                                 const ParameterServerOptions& options)
    : model_(model),
      communicator_(communicator),
      options_(options),
      trainers_(communicator.size() - options.servers) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    communicator.Broadcast(parameter.detach(), 0);
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  SyncBuffers();
  std::vector<int> all = ReverseOrder(parameters_.size());
  std::ranges::reverse(all);
  layout_ = LayOut(parameters_, all);
  const int64_t unit = options.servers * layout_.align;
  values_ = at::zeros({(layout_.elements + unit - 1) / unit * unit},
                      parameters_.front().options().requires_grad(false));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    const at::Tensor view = values_.as_strided(parameter.sizes(), parameter.strides(), layout_.offsets[i]);
    view.copy_(parameter);
    parameter.set_data(view);
  }
}

std::unique_ptr<Strategy> ParameterServerStrategy::Make(Model& model, Communicator& communicator,
                                                        const ParameterServerOptions& options) {
  const int ranks = communicator.size();
  if (options.servers >= ranks) {
    throw TrainerError("server_ranks " + std::to_string(options.servers) + " leaves none of the " +
                       std::to_string(ranks) + " ranks to train: use at most " + std::to_string(ranks - 1));
  }
  if (options.consistency != Consistency::kSync && communicator.name() == "nccl") {
    throw TrainerError(
        "consistency async and ssp need a backend that receives from any rank, and nccl cannot: use backend "
        "mpi or gloo, or consistency sync");
  }
  if (communicator.rank() < ranks - options.servers)
    return std::make_unique<ServedStrategy>(model, communicator, options);
  return std::make_unique<ServerStrategy>(model, communicator, options);
}

at::Tensor ParameterServerStrategy::RangeOf(const at::Tensor& block, int server) const {
  const int64_t length = block.numel() / options_.servers;
  return block.narrow(0, length * server, length);
}

at::Tensor ParameterServerStrategy::SumSquares(Square which, const at::Tensor& square) {
  const at::NoGradGuard no_grad;
  const at::Tensor squares = at::zeros({2}, square.options());
  squares[which].copy_(square);
  communicator_.AllReduce(squares, ReduceOp::kSum);
  squares[kOfRank].div_(trainers_);
  return squares;
}

void ParameterServerStrategy::ShareParameters() {
  for (int server = 0; server < options_.servers; ++server)
    communicator_.Broadcast(RangeOf(values_, server), RankOf(server));
}

void ParameterServerStrategy::LoadState(const std::vector<NamedTensors>&) { ShareParameters(); }

void ParameterServerStrategy::EndEpoch() {
  ShareParameters();
  if (averages_gradients()) return;
  const at::Tensor all = staleness_.State(), most = all.narrow(0, Histogram::kMost, 1).clone();
  communicator_.AllReduce(all, ReduceOp::kSum);
  communicator_.AllReduce(most, ReduceOp::kMax);
  all.narrow(0, Histogram::kMost, 1).copy_(most);
  of_all_ = {};
  of_all_.AddState(all);
}

void ParameterServerStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

void ParameterServerStrategy::AppendMetrics(std::vector<Metric>& metrics) const {
  if (of_all_.count() == 0) return;
  metrics.insert(metrics.end(), {{"run/staleness_mean", of_all_.Mean()},
                                 {"run/staleness_p50", static_cast<double>(of_all_.Percentile(50))},
                                 {"run/staleness_p90", static_cast<double>(of_all_.Percentile(90))},
                                 {"run/staleness_p99", static_cast<double>(of_all_.Percentile(99))},
                                 {"run/staleness_max", static_cast<double>(of_all_.most())}});
}

}  // namespace scalelab::trainer
