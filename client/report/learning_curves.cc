#include "client/report/learning_curves.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using google::protobuf::RepeatedPtrField;
using scalelab::v1::ListRunsRequest;
using scalelab::v1::ReadPointsRequest;
using scalelab::v1::ReadPointsResponse;
using scalelab::v1::Run;
using scalelab::v1::RunService;

bool OfEpochs(absl::string_view key) {
  return absl::StartsWith(key, "epoch/") || absl::StartsWith(key, "eval/");
}

std::string AxisValue(const Run& run, const std::string& axis) {
  return AxisText(run.key(), axis, axis == "engine" ? run.spec().engine() : "");
}

// Returns the axes that tell the runs apart; all axes if no axis has two values.
absl::StatusOr<std::vector<std::string>> LabelAxes(const RepeatedPtrField<Run>& runs,
                                                   const std::vector<std::string>& by) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const Run& run : runs) keys.push_back(&run.key());
  const std::vector<std::string> axes = AxesOf(keys);
  for (const std::string& axis : by) {
    if (std::find(axes.begin(), axes.end(), axis) == axes.end())
      return absl::InvalidArgumentError(
          absl::StrCat("the study has no axis '", axis, "'; it has: ", absl::StrJoin(axes, ", ")));
  }
  if (!by.empty()) return by;
  std::vector<std::string> different;
  for (const std::string& axis : axes) {
    std::set<std::string> values;
    for (const Run& run : runs) values.insert(AxisValue(run, axis));
    if (values.size() > 1) different.push_back(axis);
  }
  return different.empty() ? axes : different;
}

std::string LabelOf(const Run& run, const std::vector<std::string>& axes) {
  std::vector<std::string> values;
  for (const std::string& axis : axes) {
    const std::string value = AxisValue(run, axis);
    const auto it = run.key().fields().find(axis);
    const bool number = it != run.key().fields().end() && !it->second.has_string_value();
    values.push_back(!number           ? value
                     : axis == "ranks" ? value + (value == "1" ? " rank" : " ranks")
                                       : absl::StrCat(axis, "=", value));
  }
  return values.empty() ? "all runs" : absl::StrJoin(values, " ");
}

// Numbers sort by their value, texts by their characters.
std::vector<std::pair<double, std::string>> OrderOf(const Run& run, const std::vector<std::string>& axes) {
  std::vector<std::pair<double, std::string>> order;
  for (const std::string& axis : axes) {
    const auto it = run.key().fields().find(axis);
    const bool number = it != run.key().fields().end() && it->second.has_number_value();
    order.emplace_back(number ? it->second.number_value() : 0, number ? "" : AxisValue(run, axis));
  }
  return order;
}

// Reads one metric of rank 0 of a run; a line without points if it has none.
absl::StatusOr<PlotLine> ReadLine(Connection& server, const Run& run, const LearningCurves& options) {
  ReadPointsRequest request;
  request.set_run(run.name());
  request.set_key(options.key);
  request.set_rank(0);
  request.set_max_points(options.points);
  PlotLine line;
  double began = 0;
  const auto take = [&](const ReadPointsResponse& part) {
    const int size = std::min({part.step_size(), part.time_size(), part.value_size()});
    for (int i = 0; i < size; ++i) {
      if (line.x.empty()) began = part.time(i);
      const auto step = static_cast<double>(part.step(i));
      line.x.push_back(options.x == LearningCurves::X::kTime      ? part.time(i) - began
                       : options.x == LearningCurves::X::kSamples ? step * run.spec().global_batch()
                                                                  : step);
      line.y.push_back(part.value(i));
    }
    return true;
  };
  const grpc::Status status = server.Read(server.results(), &scalelab::v1::ResultService::Stub::ReadPoints,
                                          request, absl::Now() + options.timeout, take);
  // A run without an attempt has no points.
  if (!status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND) return server.Explain(status);
  return line;
}

std::string XTitle(const LearningCurves& options) {
  switch (options.x) {
    case LearningCurves::X::kTime:
      return "seconds since the first point";
    case LearningCurves::X::kSamples:
      return "trained samples";
    default:
      return OfEpochs(options.key) ? "epoch" : "step";
  }
}

}  // namespace

absl::StatusOr<RepeatedPtrField<Run>> ListAllRuns(Connection& server, const std::string& name) {
  RepeatedPtrField<Run> runs;
  ListRunsRequest request;
  request.set_parent(name);
  request.set_page_size(10'000);
  do {
    auto page = server.Call(server.runs(), &RunService::Stub::ListRuns, request);
    if (!page.ok()) return page.status();
    for (Run& run : *page->mutable_runs()) runs.Add(std::move(run));
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return runs;
}

absl::StatusOr<LinePlot> ReadLearningCurves(Connection& server, const std::string& title,
                                            const RepeatedPtrField<Run>& runs,
                                            const LearningCurves& options) {
  if (options.x == LearningCurves::X::kSamples && OfEpochs(options.key))
    return absl::InvalidArgumentError(absl::StrCat("--x samples needs a metric of steps; ", options.key,
                                                   " belongs to epochs: use --x step"));
  const auto axes = LabelAxes(runs, options.by);
  if (!axes.ok()) return axes.status();
  LinePlot plot;
  plot.title = title;
  plot.x_title = XTitle(options);
  plot.y_title = options.key;
  std::vector<const Run*> begun;
  for (const Run& run : runs) {
    if (run.has_start_time() && !run.spec().communication_baseline()) begun.push_back(&run);
  }
  const size_t shown = std::min(begun.size(), static_cast<size_t>(options.most_runs));
  // Runs are in the order of execution, which is random; the legend is in the order of the values.
  std::stable_sort(begun.begin(), begun.begin() + static_cast<std::ptrdiff_t>(shown),
                   [&](const Run* a, const Run* b) { return OrderOf(*a, *axes) < OrderOf(*b, *axes); });
  for (size_t i = 0; i < shown; ++i) {
    auto line = ReadLine(server, *begun[i], options);
    if (!line.ok()) return line.status();
    line->label = LabelOf(*begun[i], *axes);
    line->source = LastPart(begun[i]->name());
    if (!line->x.empty()) plot.lines.push_back(*std::move(line));
  }
  plot.subtitle = absl::StrCat(options.key, " of rank 0, ", plot.lines.size(),
                               plot.lines.size() == 1 ? " run" : " runs, a line each");
  if (shown < begun.size())
    absl::StrAppend(&plot.subtitle, "; only the first ", shown, " of ", begun.size(), " runs are drawn");
  return plot;
}

}  // namespace scalelab::client
