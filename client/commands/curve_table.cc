#include "client/commands/curve_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/sections.h"
#include "client/factors/factor_table.h"
#include "client/output/cells.h"
#include "client/output/text.h"
#include "client/plots/curve_view.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveResponse;
using In = Column::In;

std::string Ratio(double value) { return absl::StrFormat("%.2f", value); }

// Returns for example "812.4 ± 3.1". The margin is half the width of the interval; it has as many decimals as the
// mean. The interval of a mean is symmetric, except if it ends at a limit of the values. Such an interval is written
// with both ends.
std::string WithMargin(const Estimate& e) {
  const std::string mean = Short(e.mean());
  if (!e.has_low() || !e.has_high()) return mean;
  constexpr double kRounding = 1e-6;
  if (std::abs((e.low() + e.high()) / 2 - e.mean()) > kRounding * (e.high() - e.low()))
    return WithInterval(e, Short);
  const size_t point = mean.find('.');
  const size_t decimals = point == std::string::npos ? 0 : mean.size() - point - 1;
  return absl::StrFormat("%s ± %.*f", mean, static_cast<int>(decimals), (e.high() - e.low()) / 2);
}

std::string RatioWithInterval(const Estimate& e) { return WithInterval(e, Ratio); }

// Returns for example "0.9123 ± 0.0040". An interval that would leave 0 to 1 ends there, and is then written with both ends.
std::string AccuracyText(const Estimate& e) {
  const auto digits = [](double share) { return absl::StrFormat("%.4f", share); };
  const bool symmetric = std::abs((e.low() + e.high()) / 2 - e.mean()) < 5e-5;
  if (!e.has_low() || !e.has_high() || !symmetric) return WithInterval(e, digits);
  return absl::StrCat(digits(e.mean()), " ± ", digits((e.high() - e.low()) / 2));
}

std::string Milliseconds(Estimate seconds) {
  seconds.set_mean(seconds.mean() * 1000);
  if (seconds.has_low()) seconds.set_low(seconds.low() * 1000);
  if (seconds.has_high()) seconds.set_high(seconds.high() * 1000);
  return WithMargin(seconds);
}

std::string PercentWithInterval(const Estimate& e) { return WithInterval(e, Percent); }

// One statistic: its title in tables, and the prefix of its five columns in CSV.
struct Statistic {
  const char* title;
  const char* csv;
  In in;                                      // kTables or kWide
  const Estimate* (*get)(const CurvePoint&);  // returns null if the point does not have the statistic
  std::string (*text)(const Estimate&);
  int drop = 0;           // as Column::drop
  bool relative = false;  // to the base case
};

// Marks values of a series in listed order. CurveFacts explains the mark.
constexpr const char* kListedMark = "*";

constexpr int kDropRepeats = 1, kDropEfficiency = 2, kDropCommunication = 3, kDropShare = 4, kDropEpoch = 5,
              kDropAccuracy = 6, kDropMemory = 7;

template <auto kHas, auto kGet>
const Estimate* Of(const CurvePoint& point) {
  return (point.*kHas)() ? &(point.*kGet)() : nullptr;
}

template <auto kHas, auto kGet>
const Estimate* OfCommunication(const CurvePoint& point) {
  return (point.communication().*kHas)() ? &(point.communication().*kGet)() : nullptr;
}

const Estimate* GoodputOf(const CurvePoint& point) {
  return point.gradient_noise().has_goodput() ? &point.gradient_noise().goodput() : nullptr;
}

bool HasGoodput(const GetCurveResponse& curve) {
  for (const CurveSeries& series : curve.series()) {
    if (std::any_of(series.points().begin(), series.points().end(),
                    [](const CurvePoint& point) { return GoodputOf(point) != nullptr; }))
      return true;
  }
  return false;
}

bool MeasuresCommunication(const GetCurveResponse& curve) {
  for (const CurveSeries& series : curve.series()) {
    for (const CurvePoint& point : series.points()) {
      if (point.has_communication()) return true;
    }
  }
  return false;
}

std::vector<Statistic> StatisticsOf(const GetCurveResponse& curve) {
  using P = CurvePoint;
  using C = scalelab::v1::CommunicationCost;
  std::vector<Statistic> statistics = {
      {"samples/s", "throughput", In::kTables, Of<&P::has_throughput, &P::throughput>, WithMargin},
      {"speedup", "speedup", In::kTables, Of<&P::has_speedup, &P::speedup>, RatioWithInterval, 0, true},
      {"efficiency", "efficiency", In::kTables, Of<&P::has_efficiency, &P::efficiency>, RatioWithInterval,
       kDropEfficiency, true},
      {"epoch s", "epoch_seconds", In::kTables, Of<&P::has_epoch_seconds, &P::epoch_seconds>,
       [](const Estimate& e) { return Short(e.mean()); }, kDropEpoch},
      {"comm %", "comm_share", In::kTables, Of<&P::has_comm_share, &P::comm_share>,
       [](const Estimate& e) { return Percent(e.mean()); }, kDropShare},
      {"memory", "peak_memory", In::kTables, Of<&P::has_peak_memory, &P::peak_memory>,
       [](const Estimate& e) { return Bytes(e.mean()); }, kDropMemory},
      {"accuracy", "accuracy", In::kTables, Of<&P::has_accuracy, &P::accuracy>, AccuracyText, kDropAccuracy},
      {"loss", "train_loss", In::kWide, Of<&P::has_train_loss, &P::train_loss>, WithMargin},
      {"time to acc.", "time_to_accuracy", In::kWide, Of<&P::has_time_to_accuracy, &P::time_to_accuracy>,
       [](const Estimate& e) { return Span(e.mean()); }}};
  if (HasGoodput(curve))
    statistics.push_back({"goodput", "goodput", In::kTables, GoodputOf,
                          [](const Estimate& e) { return WithInterval(e, Short); }, kDropRepeats});
  if (!MeasuresCommunication(curve)) return statistics;
  const std::vector<Statistic> costs = {
      {"exposed ms", "communication_exposed", In::kTables, OfCommunication<&C::has_exposed, &C::exposed>,
       [](const Estimate& e) { return Milliseconds(e); }, kDropCommunication},
      {"total ms", "communication_total", In::kTables, OfCommunication<&C::has_total, &C::total>,
       [](const Estimate& e) { return Milliseconds(e); }, kDropCommunication},
      {"hidden %", "communication_hidden", In::kTables, OfCommunication<&C::has_hidden, &C::hidden>,
       PercentWithInterval, kDropCommunication}};
  const auto comm_share = std::find_if(statistics.begin(), statistics.end(), [](const Statistic& s) {
    return s.csv == absl::string_view("comm_share");
  });
  statistics.insert(comm_share + 1, costs.begin(), costs.end());
  return statistics;
}

bool SomeTrainDifferently(const GetCurveResponse& curve) {
  for (const CurveSeries& series : curve.series()) {
    for (const CurvePoint& point : series.points()) {
      if (point.has_training_difference()) return true;
    }
  }
  return false;
}

bool HasTargets(const GetCurveResponse& curve) {
  for (const CurveSeries& series : curve.series()) {
    for (const CurvePoint& point : series.points()) {
      if (point.has_time_to_target()) return true;
    }
  }
  return false;
}

// The columns of AddTarget.
void AddTargetColumns(Section& section) {
  section.columns.push_back({"reached", In::kTables, true, false, kDropCommunication});
  section.columns.push_back({"time to target", In::kTables, true, false, kDropCommunication});
  for (const char* column :
       {"target_reached", "target_repeats", "target_seconds", "target_samples", "target_samples_ratio"})
    section.columns.push_back({column, In::kCsv});
}

void AddTarget(const CurvePoint& point, std::vector<Cell>& row) {
  const auto& target = point.time_to_target();
  const bool has = point.has_time_to_target();
  row.emplace_back(ReachedText(point), target.reached() < target.n() ? Tone::kBad : Tone::kPlain);
  row.emplace_back(target.has_seconds() ? Span(target.seconds()) : "-");
  row.emplace_back(has ? absl::StrCat(target.reached()) : "");
  row.emplace_back(has ? absl::StrCat(target.n()) : "");
  row.emplace_back(target.has_seconds() ? Exact(target.seconds()) : "");
  row.emplace_back(target.has_samples() ? Exact(target.samples()) : "");
  row.emplace_back(target.has_samples_ratio() ? Exact(target.samples_ratio()) : "");
}

Tone CurveTableToneOf(CurvePoint::State state) {
  switch (state) {
    case CurvePoint::OK:
      return Tone::kGood;
    case CurvePoint::PENDING:
    case CurvePoint::EXCLUDED:
      return Tone::kDim;
    default:
      return Tone::kBad;
  }
}

}  // namespace

Section CurveTable(const GetCurveResponse& curve) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  const std::vector<std::string> axes = AxesOf(keys);
  Section section;
  for (const std::string& axis : axes) {
    // These have columns of their own in CSV.
    const bool batch = axis == "global_batch" || axis == "batch_per_rank";
    section.columns.push_back({axis, batch ? In::kTables : In::kAll, false, true});
  }
  // The fingerprint is shown only if the axes do not distinguish all series.
  std::set<std::string> distinct;
  for (const CurveSeries& series : curve.series()) distinct.insert(KeyText(series.key()));
  const bool split = distinct.size() < static_cast<size_t>(curve.series_size());
  section.columns.push_back({"made on", split ? In::kTables : In::kWide});
  section.columns.push_back({"ranks", In::kAll, true});
  section.columns.push_back({"n", In::kTables, true, false, kDropRepeats});
  section.columns.push_back({"n", In::kCsv});
  const std::vector<Statistic> statistics = StatisticsOf(curve);
  for (const Statistic& statistic : statistics) {
    section.columns.push_back({statistic.title, statistic.in, true, false, statistic.drop});
    for (const char* part : {"_mean", "_median", "_stddev", "_low", "_high"}) {
      section.columns.push_back({absl::StrCat(statistic.csv, part), In::kCsv});
    }
  }
  const bool targets = HasTargets(curve);
  if (targets) AddTargetColumns(section);
  section.columns.push_back({"state"});
  const bool differences = SomeTrainDifferently(curve);
  if (differences) section.columns.push_back({"training", In::kTables});
  if (differences) section.columns.push_back({"training_difference", In::kCsv});
  section.columns.push_back({"at once", In::kWide, true});
  section.columns.push_back({"concurrent_attempts", In::kCsv});
  section.columns.push_back({"most_concurrent_attempts", In::kCsv});
  section.columns.push_back({"failed", In::kCsv});
  section.columns.push_back({"asked", In::kCsv});
  section.columns.push_back({"retried", In::kCsv});
  section.columns.push_back({"noisy", In::kCsv});
  section.columns.push_back({"batch", In::kWide, true});
  section.columns.push_back({"batch/rank", In::kWide, true});
  section.columns.push_back({"global_batch", In::kCsv});
  section.columns.push_back({"batch_per_rank", In::kCsv});
  section.columns.push_back({"baseline_ranks", In::kCsv});
  section.columns.push_back({"fingerprint", In::kCsv});
  section.columns.push_back({"listed_order", In::kCsv});
  section.columns.push_back({"noise_floor", In::kCsv});
  section.columns.push_back({"notes", In::kCsv});
  section.columns.push_back({"series_notes", In::kCsv});
  section.empty = "no results yet";
  section.rows = [&curve, axes, statistics, differences, targets](const RowSink& sink) {
    for (const CurveSeries& series : curve.series()) {
      for (const CurvePoint& point : series.points()) {
        std::vector<Cell> row;
        for (const std::string& axis : axes) row.emplace_back(AxisText(series.key(), axis));
        row.emplace_back(series.fingerprint().substr(0, 7));
        row.emplace_back(absl::StrCat(point.ranks()));
        row.emplace_back(UsedRepeats(point.n(), point.asked()));
        row.emplace_back(absl::StrCat(point.n()));
        // The ratios of the base case to itself are 1 in any order.
        const bool listed = series.listed_order() && point.ranks() != series.baseline_ranks();
        for (const Statistic& statistic : statistics) {
          const Estimate* found = statistic.get(point);
          const bool has = found != nullptr;
          const Estimate& e = has ? *found : Estimate::default_instance();
          row.emplace_back(
              has ? absl::StrCat(statistic.text(e), listed && statistic.relative ? kListedMark : "") : "-");
          row.emplace_back(has ? Exact(e.mean()) : "");
          row.emplace_back(has ? Exact(e.median()) : "");
          row.emplace_back(has && e.has_stddev() ? Exact(e.stddev()) : "");
          row.emplace_back(has && e.has_low() ? Exact(e.low()) : "");
          row.emplace_back(has && e.has_high() ? Exact(e.high()) : "");
        }
        if (targets) AddTarget(point, row);
        row.emplace_back(EnumText(CurvePoint::State_Name(point.state())), CurveTableToneOf(point.state()));
        if (differences) {
          const bool differs = point.has_training_difference();
          row.emplace_back(differs ? "differs" : "", Tone::kBad);
          row.emplace_back(point.training_difference().message());
        }
        const bool measured = point.concurrent_attempts() > 0;
        row.emplace_back(measured ? absl::StrFormat("%.1f", point.concurrent_attempts()) : "-");
        row.emplace_back(measured ? Exact(point.concurrent_attempts()) : "");
        row.emplace_back(measured ? absl::StrCat(point.most_concurrent_attempts()) : "");
        row.emplace_back(absl::StrCat(point.failed()));
        row.emplace_back(absl::StrCat(point.asked()));
        row.emplace_back(absl::StrCat(point.retried()));
        row.emplace_back(absl::StrCat(point.noisy()));
        row.emplace_back(absl::StrCat(point.global_batch()));
        row.emplace_back(absl::StrCat(point.batch_per_rank()));
        row.emplace_back(absl::StrCat(point.global_batch()));
        row.emplace_back(absl::StrCat(point.batch_per_rank()));
        row.emplace_back(absl::StrCat(series.baseline_ranks()));
        row.emplace_back(series.fingerprint());
        row.emplace_back(series.listed_order() ? "true" : "false");
        row.emplace_back(series.noise_floor() > 0 ? Exact(series.noise_floor()) : "");
        row.emplace_back(absl::StrJoin(point.notes(), "; "));
        row.emplace_back(absl::StrJoin(series.notes(), "; "));
        sink(row);
      }
    }
  };
  return section;
}

Section CurveFacts(const GetCurveResponse& curve) {
  std::vector<std::pair<std::string, Cell>> facts = {
      {"study", absl::StrCat(curve.study(), " ", curve.display_name())},
      {"scope", Subtitle(curve)},
      {"intervals",
       curve.series().empty() ? "" : "95% over repeats; ratios include the base case's variance"}};
  if (std::any_of(curve.series().begin(), curve.series().end(),
                  [](const CurveSeries& one) { return one.listed_order(); })) {
    facts.emplace_back(kListedMark,
                       "measured with order: listed, so the ratio to the base case includes every change of "
                       "the machine over time");
  }
  const std::vector<PlotSeries> series = SeriesOf(curve, Quantity::kThroughput);
  for (const PlotSeries& s : series) {
    if (series.size() > 1) facts.emplace_back("base case", absl::StrCat(s.label, ": ", s.baseline));
  }
  if (MeasuresCommunication(curve)) {
    facts.emplace_back(
        "communication",
        "exposed, total: time added to a step, compared with native/none; comm %: share of time that ranks "
        "wait, by their own clocks");
  }
  const std::vector<std::string> labels = SeriesLabels(curve);
  std::map<std::string, std::vector<std::string>> floors;  // labels by noise floor
  for (int i = 0; i < curve.series_size(); ++i) {
    const std::string& label = labels[static_cast<size_t>(i)];
    for (const CurvePoint& point : curve.series(i).points()) {
      if (!point.time_to_target().note().empty())
        facts.emplace_back("time to target",
                           absl::StrCat(label, ", ", point.ranks(), point.ranks() == 1 ? " rank" : " ranks",
                                        ": ", point.time_to_target().note()));
    }
    for (const auto& fit : curve.series(i).fits()) {
      const std::map<std::string, Estimate> sorted(fit.parameters().begin(), fit.parameters().end());
      const auto one = [](std::string* out, const auto& parameter) {
        absl::StrAppend(out, parameter.first, " ", WithInterval(parameter.second, Short));
      };
      facts.emplace_back(
          absl::StrCat(fit.law(), " fit"),
          absl::StrCat(label, ": ", absl::StrJoin(sorted, ", ", one),
                       fit.lack_of_fit().rejected() ? "; does not describe these points" : ""));
    }
    if (curve.series(i).noise_floor() > 0) floors[Percent(curve.series(i).noise_floor())].push_back(label);
  }
  for (const auto& [floor, who] : floors)
    facts.emplace_back("noise floor", absl::StrCat(absl::StrJoin(who, ", "), ": differences below ", floor,
                                                   "% could not be seen with these repeats"));
  for (std::string& note : CurveNotes(curve)) facts.emplace_back("note", std::move(note));
  return Facts(std::move(facts));
}

}  // namespace scalelab::client
