#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/bench_server.h"
#include "tests/bench/service_bench.h"

namespace scalelab::bench {
namespace {

constexpr double kTarget = 15'000;  // submits per second

// A client that submits the next study when the previous one is durable.
class SubmitLoop {
 public:
  SubmitLoop(std::shared_ptr<grpc::Channel> channel, int count, std::function<void(bool)> done)
      : stub_(v1::StudyService::NewStub(channel)), left_(count), done_(std::move(done)) {
    *request_.mutable_spec() = BenchStudy(1);
    request_.set_owner("bench");
  }
  void Next() {
    if (left_-- == 0) return done_(true);
    context_ = std::make_unique<grpc::ClientContext>();
    response_.Clear();
    stub_->async()->CreateStudy(context_.get(), &request_, &response_, [this](grpc::Status status) {
      if (!status.ok()) return done_(false);
      Next();
    });
  }

 private:
  std::unique_ptr<v1::StudyService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  v1::CreateStudyRequest request_;
  v1::CreateStudyResponse response_;
  int left_;
  std::function<void(bool)> done_;
};

double SubmitsPerSecond(BenchServer& server, int clients, int each) {
  std::mutex mutex;
  std::condition_variable changed;
  int running = clients;
  bool failed = false;
  std::vector<std::unique_ptr<SubmitLoop>> loops;
  for (int c = 0; c < clients; ++c) {
    loops.push_back(std::make_unique<SubmitLoop>(server.Connect(), each, [&](bool ok) {
      std::lock_guard lock(mutex);
      failed = failed || !ok;
      --running;
      changed.notify_one();
    }));
  }
  const absl::Time start = absl::Now();
  for (auto& loop : loops) loop->Next();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return running == 0; });
  return failed ? 0 : clients * each / absl::ToDoubleSeconds(absl::Now() - start);
}

double SubmitSeconds(BenchServer& server, int runs) {
  auto stub = v1::StudyService::NewStub(server.Connect());
  v1::CreateStudyRequest request;
  *request.mutable_spec() = BenchStudy(runs);
  v1::CreateStudyResponse response;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const absl::Time start = absl::Now();
  const bool ok = stub->CreateStudy(&context, request, &response).ok();
  return ok ? absl::ToDoubleSeconds(absl::Now() - start) : -1;
}

}  // namespace

std::vector<Figure> RunSubmitBench(const BenchOptions& options) {
  std::vector<Figure> figures;
  {
    BenchServer server(options.directory, false);
    SubmitSeconds(server, 1);  // warms up connections and caches
    const double seconds = SubmitSeconds(server, 10'000);
    figures.push_back({"submit/study_of_10000_runs", seconds, "s", "target", 1.0, seconds / 1.0});
  }
  {
    BenchServer server(options.directory, false);
    SubmitsPerSecond(server, 64, 20);
    const double rate = SubmitsPerSecond(server, 64, std::max(1, static_cast<int>(400 * options.scale)));
    figures.push_back({"submit/durable_single_64_clients", rate, "1/s", "target", kTarget, rate / kTarget});
  }
  return figures;
}

}  // namespace scalelab::bench
