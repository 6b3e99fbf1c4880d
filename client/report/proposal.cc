#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"
#include "client/plots/svg_plot.h"
#include "client/report/html.h"
#include "client/report/report_parts.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::StudySpec;

// The price of an hour of one rank: the number of its GPUs or, without GPUs, of its cores.
struct Price {
  std::string unit;
  int per_rank = 1;
};

// Returns the value of a key that may be an axis of the study, or equal for all runs.
int ValueOf(const StudySpec& spec, const CurveSeries& series, const std::string& key, int from_resources) {
  for (const auto* values : {&series.key(), &spec.fixed()}) {
    const auto found = values->fields().find(key);
    if (found != values->fields().end()) return static_cast<int>(found->second.number_value());
  }
  return from_resources;
}

Price PriceOf(const StudySpec& spec, const CurveSeries& series) {
  const int gpus = ValueOf(spec, series, "gpus_per_rank", spec.resources().gpus_per_rank());
  if (gpus > 0) return {"GPU-hours", gpus};
  return {"core-hours",
          std::max(1, ValueOf(spec, series, "cpus_per_rank", spec.resources().cpus_per_rank()))};
}

// The prices of all series: the numbers of GPUs or cores of a rank by unit.
using Prices = std::map<std::string, std::set<int>>;

Prices PricesOf(const StudyResults& results) {
  Prices prices;
  for (const CurveSeries& series : results.curve.series()) {
    const Price price = PriceOf(results.study.spec(), series);
    prices[price.unit].insert(price.per_rank);
  }
  return prices;
}

// Returns for example "GPU-hours or core-hours".
std::string UnitsOf(const Prices& prices) {
  return absl::StrJoin(prices, " or ", [](std::string* out, const auto& price) { *out += price.first; });
}

// Returns the number of nodes of a run. A node that is used in part counts as one.
int NodesOf(const StudySpec& spec, int ranks) {
  const int per_node = spec.resources().ranks_per_node();
  return per_node > 0 ? (ranks + per_node - 1) / per_node : 1;
}

// Returns for example "1.87 [1.14, 3.07]".
std::string RatioText(const Estimate& e) {
  const std::string text = absl::StrFormat("%.2f", e.mean());
  return e.has_low() && e.has_high() ? absl::StrFormat("%s [%.2f, %.2f]", text, e.low(), e.high()) : text;
}

// Returns for example "93% [57, 153]".
std::string ShareText(const Estimate& e) {
  const std::string text = absl::StrFormat("%.0f%%", e.mean() * 100);
  return e.has_low() && e.has_high() ? absl::StrFormat("%s [%.0f, %.0f]", text, e.low() * 100, e.high() * 100)
                                     : text;
}

Section Table(const StudyResults& results, const Prices& prices) {
  Section section;
  using In = Column::In;
  section.columns = {{"series", In::kAll, false, true}, {"ranks", In::kAll, true},
                     {"repeats", In::kAll, true},       {"samples/s", In::kAll, true},
                     {"speedup", In::kAll, true},       {"efficiency", In::kAll, true},
                     {"epoch", In::kAll, true},         {UnitsOf(prices) + " per epoch", In::kAll, true},
                     {"nodes", In::kAll, true},         {"node-hours per epoch", In::kAll, true}};
  section.empty = "no results yet";
  section.rows = [&results, one_unit = prices.size() == 1,
                  labels = MarkedLabels(results.curve)](const RowSink& sink) {
    for (int i = 0; i < results.curve.series_size(); ++i) {
      const Price price = PriceOf(results.study.spec(), results.curve.series(i));
      const std::string unit = one_unit ? "" : " " + price.unit;
      for (const CurvePoint& point : results.curve.series(i).points()) {
        if (point.n() == 0 && point.asked() == 0) continue;
        // Show a size without results too: if it were missing, readers would think that it was not tried.
        const std::string repeats = point.n() == point.asked() || point.asked() == 0
                                        ? absl::StrCat(point.n())
                                        : absl::StrCat(point.n(), "/", point.asked());
        const double seconds = point.epoch_seconds().mean();
        const int nodes = NodesOf(results.study.spec(), point.ranks());
        sink({labels[static_cast<size_t>(i)], absl::StrCat(point.ranks()), repeats,
              point.has_throughput() ? Short(point.throughput().mean()) : "-",
              point.has_speedup() ? RatioText(point.speedup()) : "-",
              point.has_efficiency() ? ShareText(point.efficiency()) : "-",
              point.has_epoch_seconds() ? Span(seconds) : "-",
              point.has_epoch_seconds() ? Short(seconds / 3600 * point.ranks() * price.per_rank) + unit : "-",
              absl::StrCat(nodes), point.has_epoch_seconds() ? Short(seconds / 3600 * nodes) : "-"});
      }
    }
  };
  return section;
}

// The largest point up to which all points have a sufficient efficiency.
std::optional<CurvePoint> LargestEfficient(const CurveSeries& series, double least) {
  std::optional<CurvePoint> largest;
  for (const CurvePoint& point : series.points()) {
    if (!point.has_efficiency()) continue;
    if (point.efficiency().mean() < least) break;
    largest = point;
  }
  return largest;
}

std::string Sentence(const std::string& label, const CurveSeries& series, double least, const Price& price) {
  const auto largest = LargestEfficient(series, least);
  const std::string threshold = absl::StrFormat("%.0f%%", least * 100);
  if (!largest.has_value())
    return absl::StrCat("<li>", Html(label), ": no world size with an efficiency of at least ", threshold,
                        " was measured.</li>\n");
  const bool base = largest->ranks() == series.baseline_ranks();
  std::string text = absl::StrCat(
      "<li>", Html(label), ": up to <strong>", largest->ranks(), largest->ranks() == 1 ? " rank" : " ranks",
      "</strong> the efficiency is at least ", threshold, " (", ShareText(largest->efficiency()), " there");
  if (largest->has_epoch_seconds()) {
    const double hours = largest->epoch_seconds().mean() / 3600 * largest->ranks() * price.per_rank;
    absl::StrAppend(&text, ", ", Short(hours), " ", price.unit, " per epoch");
  }
  absl::StrAppend(&text, ").");
  if (!base && !largest->efficiency().has_low())
    absl::StrAppend(&text, " This efficiency has no interval",
                    largest->n() == 1 ? ", because it is that of one repeat" : "",
                    ": more repeats would give one.");
  else if (!base && largest->efficiency().low() < least)
    absl::StrAppend(&text, " The interval contains ", threshold, ": more repeats would settle it.");
  return absl::StrCat(text, "</li>\n");
}

}  // namespace

std::string ScalingProposal(const StudyResults& results, double least_efficiency) {
  const StudySpec& spec = results.study.spec();
  const Prices prices = PricesOf(results);
  const std::vector<std::string> labels = SeriesLabels(results.curve);
  std::string body = ReportHead(results, "Scaling behaviour");
  absl::StrAppend(&body, "<h2>Measured scaling</h2>\n", HtmlPicture(SvgPlot(results.curve)),
                  HtmlTable(Table(results, prices)), "<h2>Efficient sizes</h2>\n<ul>\n");
  for (int i = 0; i < results.curve.series_size(); ++i)
    body += Sentence(labels[static_cast<size_t>(i)], results.curve.series(i), least_efficiency,
                     PriceOf(spec, results.curve.series(i)));
  absl::StrAppend(&body, "</ul>\n<h2>Method</h2>\n", HtmlTable(SetupFacts(results.study)),
                  "<p>Throughput is the batch of a step over all ranks divided by the median time of a step "
                  "after warm-up. Speedup is "
                  "the throughput divided by that of the base case, efficiency is the speedup divided by the "
                  "ratio of the ranks. ");
  for (const auto& [unit, per_rank] : prices)
    absl::StrAppend(&body, unit, " of an epoch are its seconds / 3600 x ranks x ",
                    absl::StrJoin(per_rank, " or "), "; ");
  absl::StrAppend(
      &body,
      "node-hours of an epoch are its seconds / 3600 x nodes, where each node counts whole. Brackets "
      "are 95% confidence intervals over repeats; those of ratios contain the "
      "variance of the base case. Runs "
      "that failed are not included in the figures.</p>\n");
  const std::string hardware = HardwareTables(results);
  if (!hardware.empty()) absl::StrAppend(&body, "<h2>Hardware and software</h2>\n", hardware);
  return HtmlPage(absl::StrCat(results.study.display_name(), ": scaling"), body);
}

}  // namespace scalelab::client
