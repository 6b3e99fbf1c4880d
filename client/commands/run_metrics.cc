// `scalelab run metrics RUN`: prints points of metrics. Tables have a line for each series; CSV and JSON
// contain every point.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/output/json_printer.h"
#include "client/output/text.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ReadPointsRequest;
using scalelab::v1::ReadPointsResponse;
using In = Column::In;

struct RunMetricsOptions {
  std::string run;
  std::string key;
  std::optional<int> rank;
  int attempt = 0;
  int max_points = 0;
};

// The summary of one metric of one rank for tables.
struct SeriesSummary {
  int64_t points = 0;
  double first = 0, last = 0;
  double min = std::numeric_limits<double>::infinity(), max = -std::numeric_limits<double>::infinity();
  int64_t last_step = 0;

  void Add(int64_t step, double value) {
    if (points++ == 0) first = value;
    last = value;
    last_step = step;
    if (std::isnan(value)) return;
    min = std::min(min, value);
    max = std::max(max, value);
  }
};

// A stream of points. The constructor reads the first message, so that an error is detected before anything
// is printed.
class PointStream {
 public:
  PointStream(const Connection& server, const ReadPointsRequest& request, absl::Time deadline,
              const std::ostream& out)
      : out_(out),
        context_(server.MakeContext(deadline)),
        reader_(server.results().ReadPoints(context_.get(), request)),
        more_(reader_->Read(&part_)) {}
  bool empty() const { return !more_; }
  // Stops when a write to `out` has failed.
  template <class Visit>
  void Each(const Visit& visit) {
    for (; more_ && out_.good(); more_ = reader_->Read(&part_)) visit(part_);
  }
  void Cancel() { context_->TryCancel(); }
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  const std::ostream& out_;
  const std::unique_ptr<grpc::ClientContext> context_;  // outlives the reader
  const std::unique_ptr<grpc::ClientReader<ReadPointsResponse>> reader_;
  ReadPointsResponse part_;
  bool more_;
};

// Prints points as they arrive, one message at a time, because the points of a
// run may not fit in memory twice.
class PointRows {
 public:
  explicit PointRows(PointStream& stream) : stream_(stream) {}

  Section Points() {
    Section section;
    section.columns = {{"rank"}, {"step"}, {"time"}, {"key"}, {"value"}};
    section.rows = [this](const RowSink& sink) {
      Each([&sink](const ReadPointsResponse& part, int i) {
        sink({absl::StrCat(part.rank()), absl::StrCat(part.step(i)), Exact(part.time(i)), part.key(),
              Exact(part.value(i))});
      });
    };
    return section;
  }

  Section Summaries() {
    Section section;
    section.columns = {{"key", In::kAll, false, true},    {"rank", In::kAll, true},
                       {"points", In::kAll, true},        {"last step", In::kAll, true},
                       {"first", In::kAll, true},         {"last", In::kAll, true},
                       {"min", In::kAll, true, false, 1}, {"max", In::kAll, true, false, 1}};
    section.empty = "no points";
    section.rows = [this](const RowSink& sink) {
      std::map<std::pair<std::string, int>, SeriesSummary> series;
      Each([&series](const ReadPointsResponse& part, int i) {
        series[{part.key(), part.rank()}].Add(part.step(i), part.value(i));
      });
      for (const auto& [key, s] : series) {
        const bool any = s.max >= s.min;
        sink({key.first, absl::StrCat(key.second), absl::StrCat(s.points), absl::StrCat(s.last_step),
              Short(s.first), Short(s.last), any ? Short(s.min) : "", any ? Short(s.max) : ""});
      }
    };
    return section;
  }

 private:
  template <class Visit>
  void Each(const Visit& visit) {
    stream_.Each([&visit](const ReadPointsResponse& part) {
      const int size = std::min({part.step_size(), part.time_size(), part.value_size()});
      for (int i = 0; i < size; ++i) visit(part, i);
    });
  }
  PointStream& stream_;
};

// Prints {"points":[...]} with one entry per message of the server.
absl::Status PrintJson(PointStream& stream, std::ostream& out) {
  out << "{\"points\":[";
  bool first = true;
  stream.Each([&](const ReadPointsResponse& part) {
    out << (first ? "" : ",\n") << ToJson(part, false);
    first = false;
  });
  out << "]}\n";
  return Flush(out);
}

absl::StatusOr<ExitCode> ExecuteRunMetrics(const RunMetricsOptions& options, Session& session) {
  const auto name = RunName(options.run);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ReadPointsRequest request;
  request.set_run(*name);
  request.set_key(options.key);
  request.set_attempt(options.attempt);
  request.set_max_points(options.max_points);
  if (options.rank) request.set_rank(*options.rank);

  const absl::Time deadline = absl::Now() + session.options().timeout.value_or(absl::InfiniteDuration());
  std::optional<PointStream> stream;
  for (bool renewed = false;; renewed = true) {
    stream.emplace(**server, request, deadline, session.io().out);
    if (!stream->empty()) break;
    const grpc::Status status = stream->Finish();
    if (status.ok()) break;
    if (renewed || !(*server)->Renew(status, deadline)) return (*server)->Explain(status);
  }
  const bool finished = stream->empty();
  absl::Status printed;
  if (session.options().output == OutputFormat::kJson) {
    printed = PrintJson(*stream, session.io().out);
  } else {
    PointRows rows(*stream);
    const ReadPointsResponse unused;  // JSON is handled above
    printed = session.Print({unused, {session.tables() ? rows.Summaries() : rows.Points()}});
  }
  if (!printed.ok()) stream->Cancel();
  if (!finished) {
    const grpc::Status status = stream->Finish();
    if (printed.ok() && !status.ok()) return (*server)->Explain(status);
  }
  if (!printed.ok()) return printed;
  return ExitCode::kOk;
}

}  // namespace

void AddRunMetrics(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunMetricsOptions>();
  CLI::App* command =
      run.add_subcommand("metrics", "Show metrics of a run; -o csv has the columns rank,step,time,key,value");
  command->add_option("RUN", options->run, "Number, runs/NUMBER, or studies/NUMBER/runs/NUMBER")->required();
  command->add_option("--key", options->key, "Only this metric, for example train/loss");
  command->add_option("--rank", options->rank, "Only this rank")->check(CLI::NonNegativeNumber);
  command->add_option("--attempt", options->attempt, "Attempt, from 1; the last one if not given")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--max-points", options->max_points,
                   "Maximum number of points per series, chosen to keep its shape")
      ->check(CLI::PositiveNumber);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunMetrics(*options, s); }; });
}

}  // namespace scalelab::client
