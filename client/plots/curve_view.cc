#include "client/plots/curve_view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/output/cells.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;
using scalelab::v1::GetCurveResponse;

constexpr size_t kMostRankTicks = 10;
constexpr size_t kNamed = 3;       // of places in a note, and of notes that differ only in their numbers
constexpr double kMostBeyond = 4;  // intervals enlarge the scale of the values up to this factor

std::string Ranks(int ranks) { return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks"); }

std::string BaselineText(const CurveSeries& series) {
  if (series.baseline_ranks() == 0) return "no base case";
  return absl::StrCat(Short(series.baseline_throughput()), " samples/s on ", Ranks(series.baseline_ranks()));
}

// Returns a tick distance of 1, 2, 2.5 or 5 times a power of ten, for about five ticks up to `max`.
double NiceStep(double max) {
  const double raw = max / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * 0.999) return factor * power;
  }
  return 10 * power;
}

Scale SpeedupScale(double low, double high) {
  Scale scale;
  scale.log2 = true;
  scale.min = low / 1.12;
  scale.max = high * 1.12;
  const double finest = high / low > 3 ? 1 : 0.25;  // in octaves (factors of two)
  for (double e = std::floor(std::log2(scale.min)); std::exp2(std::floor(e)) <= scale.max; e += finest) {
    // Between powers of two: 1.25, 1.5 and 1.75 times the lower one, which are easier to read than
    // roots of two.
    const double whole = std::floor(e);
    const double tick = std::exp2(whole) * (1 + (e - whole));
    if (tick >= scale.min && tick <= scale.max) scale.ticks.push_back(tick);
  }
  return scale;
}

}  // namespace

const Estimate* EstimateOf(const CurvePoint& point, Quantity quantity) {
  switch (quantity) {
    case Quantity::kThroughput:
      return point.has_throughput() ? &point.throughput() : nullptr;
    case Quantity::kSpeedup:
      return point.has_speedup() ? &point.speedup() : nullptr;
    case Quantity::kEfficiency:
      return point.has_efficiency() ? &point.efficiency() : nullptr;
    case Quantity::kMemory:
      return point.has_peak_memory() ? &point.peak_memory() : nullptr;
    case Quantity::kCommunication:
      return point.has_comm_share() ? &point.comm_share() : nullptr;
    case Quantity::kAccuracy:
      return point.has_accuracy() ? &point.accuracy() : nullptr;
    case Quantity::kGoodput:
      return point.gradient_noise().has_goodput() ? &point.gradient_noise().goodput() : nullptr;
  }
  return nullptr;
}

std::vector<std::string> SeriesLabels(const GetCurveResponse& curve) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const CurveSeries& series : curve.series()) keys.push_back(&series.key());
  std::vector<std::string> axes = AxesOf(keys);
  if (curve.series_size() > 1) {
    const auto same = [&](const std::string& axis) {
      std::set<std::string> values;
      for (const CurveSeries& series : curve.series()) values.insert(AxisText(series.key(), axis));
      return values.size() == 1;
    };
    axes.erase(std::remove_if(axes.begin(), axes.end(), same), axes.end());
  }
  std::vector<std::string> labels;
  std::map<std::string, int> count;
  for (const CurveSeries& series : curve.series()) {
    std::vector<std::string> parts;
    for (const std::string& axis : axes) {
      const auto it = series.key().fields().find(axis);
      if (it == series.key().fields().end()) continue;
      parts.push_back(it->second.has_string_value() ? ValueText(it->second)
                                                    : absl::StrCat(axis, "=", ValueText(it->second)));
    }
    labels.push_back(parts.empty() ? curve.display_name() : absl::StrJoin(parts, " "));
    ++count[labels.back()];
  }
  for (int i = 0; i < curve.series_size(); ++i) {
    std::string& label = labels[static_cast<size_t>(i)];
    if (count[label] > 1) absl::StrAppend(&label, " [", curve.series(i).fingerprint().substr(0, 7), "]");
  }
  return labels;
}

std::vector<std::string> MarkedLabels(const GetCurveResponse& curve) {
  std::vector<std::string> labels = SeriesLabels(curve);
  for (int i = 0; i < curve.series_size(); ++i) {
    const CurveSeries& series = curve.series(i);
    const bool differs = std::any_of(series.points().begin(), series.points().end(),
                                     [](const CurvePoint& point) { return point.has_training_difference(); });
    absl::StrAppend(&labels[static_cast<size_t>(i)], differs ? " (trains differently)" : "",
                    series.listed_order() ? " (listed order)" : "");
  }
  return labels;
}

std::string RepeatsNote(const GetCurveResponse& curve) {
  const std::vector<std::string> labels = SeriesLabels(curve);
  std::map<std::string, std::vector<std::string>> places;  // by number of values
  for (int i = 0; i < curve.series_size(); ++i) {
    for (const CurvePoint& point : curve.series(i).points()) {
      if (point.state() == CurvePoint::PENDING || point.state() == CurvePoint::EXCLUDED) continue;
      places[UsedRepeats(point.n(), point.asked())].push_back(
          absl::StrCat(labels[static_cast<size_t>(i)], ", ", Ranks(point.ranks())));
    }
  }
  if (places.empty()) return "";
  const auto usual = std::max_element(places.begin(), places.end(),
                                      [](auto& a, auto& b) { return a.second.size() < b.second.size(); });
  std::string note = absl::StrCat("values used / repeats asked for: ", usual->first);
  for (const auto& [used, where] : places) {
    if (used == usual->first) continue;
    absl::StrAppend(
        &note, "; ", used, " at ",
        where.size() <= kNamed ? absl::StrJoin(where, " and ") : absl::StrCat(where.size(), " places"));
  }
  return note;
}

std::vector<std::string> CurveNotes(const GetCurveResponse& curve) {
  const std::vector<std::string> labels = SeriesLabels(curve);
  std::vector<std::string> order;                          // each distinct note once
  std::map<std::string, std::vector<std::string>> places;  // by note
  const auto add = [&](const std::string& note, std::string place) {
    auto [it, is_new] = places.try_emplace(note);
    if (is_new) order.push_back(note);
    it->second.push_back(std::move(place));
  };
  for (int i = 0; i < curve.series_size(); ++i) {
    const std::string& label = labels[static_cast<size_t>(i)];
    for (const std::string& note : curve.series(i).notes()) add(note, label);
    std::map<std::string, std::vector<int>> ranks;
    std::vector<std::string> of_points;
    for (const CurvePoint& point : curve.series(i).points()) {
      for (const std::string& note : point.notes()) {
        if (!ranks.contains(note)) of_points.push_back(note);
        ranks[note].push_back(point.ranks());
      }
      if (!point.communication().missing().empty())
        add(point.communication().missing(), absl::StrCat(label, ", ", Ranks(point.ranks())));
    }
    for (const std::string& note : of_points) {
      const std::vector<int>& at = ranks[note];
      add(note, absl::StrCat(label, ", ", absl::StrJoin(at, ", "),
                             at.size() == 1 && at[0] == 1 ? " rank" : " ranks"));
    }
  }
  constexpr const char* kDigits = "0123456789";
  struct Kind {
    size_t shown = 0, left_out = 0, last = 0;
  };
  std::map<std::string, Kind> kinds;  // by the text up to the first number that is not at the beginning
  std::vector<std::string> notes;
  for (const std::string& note : order) {
    const std::string text = note.substr(std::min(note.find_first_not_of(kDigits), note.size()));
    Kind& kind = kinds[text.substr(0, text.find_first_of(kDigits))];
    if (kind.shown == kNamed) {
      ++kind.left_out;
      continue;
    }
    ++kind.shown;
    kind.last = notes.size();
    const std::vector<std::string>& where = places[note];
    notes.push_back(absl::StrCat(
        where.size() <= kNamed ? absl::StrJoin(where, "; ") : absl::StrCat(where.size(), " places"), ": ",
        note));
  }
  for (const auto& [text, kind] : kinds) {
    if (kind.left_out > 0)
      absl::StrAppend(&notes[kind.last], "; and ", kind.left_out, " more notes of this kind, see -o json");
  }
  return notes;
}

std::vector<PlotSeries> SeriesOf(const GetCurveResponse& curve, Quantity quantity) {
  const std::vector<std::string> labels = MarkedLabels(curve);
  std::vector<PlotSeries> result;
  for (int i = 0; i < curve.series_size(); ++i) {
    const CurveSeries& series = curve.series(i);
    PlotSeries plot{labels[static_cast<size_t>(i)],
                    BaselineText(series),
                    static_cast<double>(series.baseline_ranks()),
                    {},
                    {}};
    for (const CurvePoint& point : series.points()) {
      const Estimate* estimate = EstimateOf(point, quantity);
      const bool may_be_0 = quantity == Quantity::kCommunication || quantity == Quantity::kAccuracy;
      const bool usable = estimate != nullptr && std::isfinite(estimate->mean()) &&
                          (estimate->mean() > 0 || (may_be_0 && estimate->mean() == 0));
      if (usable) {
        const int n = quantity == Quantity::kGoodput ? point.gradient_noise().n() : point.n();
        PlotPoint p{static_cast<double>(point.ranks()), estimate->mean(), {}, {}, n, point.asked()};
        if (estimate->has_low() && estimate->has_high()) {
          p.low = estimate->low();
          p.high = estimate->high();
        }
        plot.points.push_back(p);
      } else if (point.state() == CurvePoint::FAILED || point.state() == CurvePoint::OUT_OF_MEMORY ||
                 point.state() == CurvePoint::MISSING) {
        plot.lost.push_back(
            {static_cast<double>(point.ranks()),
             absl::StrReplaceAll(EnumText(CurvePoint::State_Name(point.state())), {{"_", " "}}),
             point.asked()});
      }
    }
    std::sort(plot.points.begin(), plot.points.end(), [](auto& a, auto& b) { return a.ranks < b.ranks; });
    result.push_back(std::move(plot));
  }
  return result;
}

Quantity MainQuantity(const GetCurveResponse& curve) {
  const auto speedups = SeriesOf(curve, Quantity::kSpeedup);
  const bool any =
      std::any_of(speedups.begin(), speedups.end(), [](const auto& s) { return !s.points.empty(); });
  return any ? Quantity::kSpeedup : Quantity::kThroughput;
}

std::vector<Quantity> UsualPanels(const GetCurveResponse& curve) {
  if (MainQuantity(curve) == Quantity::kThroughput) return {Quantity::kThroughput};
  return {Quantity::kSpeedup, Quantity::kEfficiency};
}

std::string AxisTitle(Quantity quantity) {
  switch (quantity) {
    case Quantity::kThroughput:
      return "throughput (samples/s)";
    case Quantity::kSpeedup:
      return "speedup";
    case Quantity::kEfficiency:
      return "efficiency (%)";
    case Quantity::kMemory:
      return "largest memory of a rank (GiB)";
    case Quantity::kCommunication:
      return "wait for communication (% of a step)";
    case Quantity::kAccuracy:
      return "accuracy (%)";
    case Quantity::kGoodput:
      return "goodput (samples/s)";
  }
  return "";
}

double AxisUnit(Quantity quantity) {
  if (quantity == Quantity::kMemory) return 1.0 / (1 << 30);
  const bool percent = quantity == Quantity::kEfficiency || quantity == Quantity::kCommunication ||
                       quantity == Quantity::kAccuracy;
  return percent ? 100 : 1;
}

std::string Subtitle(const GetCurveResponse& curve) {
  std::set<int> ranks;
  std::set<double> throughputs;
  for (const CurveSeries& series : curve.series()) {
    if (series.baseline_ranks() == 0) continue;
    ranks.insert(series.baseline_ranks());
    throughputs.insert(series.baseline_throughput());
  }
  std::string text = curve.scaling().empty() ? "Scaling" : absl::StrCat(curve.scaling(), " scaling");
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  if (ranks.empty()) return absl::StrCat(text, ", no base case");
  const std::string low = Short(*throughputs.begin()), high = Short(*throughputs.rbegin());
  return absl::StrCat(
      text, throughputs.size() > 1 ? ", base cases: " : ", base case: ", low,
      low == high ? "" : absl::StrCat(" to ", high), " samples/s on ",
      ranks.size() > 1 ? absl::StrCat(absl::StrJoin(ranks, ", "), " ranks") : Ranks(*ranks.begin()));
}

double Scale::operator()(double value) const {
  if (max <= min) return 0.5;
  if (!log2) return (value - min) / (max - min);
  if (value <= 0) return -1;
  return (std::log2(value) - std::log2(min)) / (std::log2(max) - std::log2(min));
}

Scale RanksScale(const std::vector<PlotSeries>& series) {
  std::set<double> ranks;
  for (const PlotSeries& s : series) {
    for (const PlotPoint& p : s.points) ranks.insert(p.ranks);
    for (const LostPoint& p : s.lost) ranks.insert(p.ranks);
  }
  Scale scale;
  scale.log2 = true;
  if (ranks.empty()) ranks.insert(1);
  scale.min = *ranks.begin();
  scale.max = *ranks.rbegin();
  for (const double r : ranks) {
    const bool power = std::exp2(std::round(std::log2(r))) == r;
    if (ranks.size() <= kMostRankTicks || power) scale.ticks.push_back(r);
  }
  return scale;
}

Scale ValueScale(const std::vector<PlotSeries>& series, Quantity quantity) {
  const Scale ranks = RanksScale(series);
  double low = std::numeric_limits<double>::infinity(), high = 0;  // of the values
  double lowest = low, highest = 0;                                // of the intervals
  for (const PlotSeries& s : series) {
    for (const PlotPoint& p : s.points) {
      low = std::min(low, p.value);
      high = std::max(high, p.value);
      if (p.low.value_or(0) > 0) lowest = std::min(lowest, *p.low);
      highest = std::max(highest, p.high.value_or(p.value));
    }
  }
  if (quantity == Quantity::kSpeedup) {
    for (const double baseline : Baselines(series)) {
      low = std::min(low, ranks.min / baseline);
      high = std::max(high, ranks.max / baseline);
    }
    if (!std::isfinite(low)) low = 1;
    high = std::max(high, low);
    return SpeedupScale(std::clamp(lowest, low / kMostBeyond, low),
                        std::clamp(highest, high, high * kMostBeyond));
  }
  if (quantity == Quantity::kEfficiency) high = std::max(high, 1.0);
  high = std::clamp(highest, high, high * kMostBeyond);
  if (high <= 0) high = 1 / AxisUnit(quantity);
  Scale scale;
  scale.max = high * 1.08;
  const double unit = AxisUnit(quantity);
  const double step = quantity == Quantity::kEfficiency && high < 1.5 ? 0.2 : NiceStep(high * unit) / unit;
  for (int i = 0; i * step <= scale.max; ++i) scale.ticks.push_back(i * step);
  return scale;
}

std::vector<double> Baselines(const std::vector<PlotSeries>& series) {
  std::set<double> baselines;
  for (const PlotSeries& s : series) {
    if (s.baseline_ranks > 0 && !s.points.empty()) baselines.insert(s.baseline_ranks);
  }
  return {baselines.begin(), baselines.end()};
}

}  // namespace scalelab::client
