// Curves and lines that are hard to draw.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/plots/line_plot.h"
#include "tests/unit/client/sample_curve.h"

namespace scalelab::client {

inline scalelab::v1::GetCurveResponse CurveOf(int series, int points, double half_width) {
  scalelab::v1::GetCurveResponse curve;
  curve.set_study("studies/7");
  curve.set_display_name(absl::StrCat(series, " series of ", points, " points"));
  curve.set_scaling("strong");
  for (int i = 0; i < series; ++i) {
    scalelab::v1::CurveSeries one =
        SampleSeries(absl::StrCat("framework-", i, "/strategy"), "fp32", 800 - 20 * i, 0.02 * (i + 1));
    const scalelab::v1::CurvePoint sample = one.points(0);
    one.clear_points();
    for (int k = 0; k < points; ++k) {
      const int ranks = 1 << k;
      const double speedup = 1 / (0.02 * (i + 1) + (1 - 0.02 * (i + 1)) / ranks);
      auto* point = one.add_points();
      *point = sample;
      point->set_ranks(ranks);
      SetEstimate(point->mutable_throughput(), 800 * speedup, 800 * speedup * half_width);
      SetEstimate(point->mutable_speedup(), speedup, speedup * half_width);
      SetEstimate(point->mutable_efficiency(), speedup / ranks, speedup / ranks * half_width);
      SetEstimate(point->mutable_comm_share(), 1 - speedup / ranks, 0.01);
    }
    *curve.add_series() = one;
  }
  return curve;
}

inline scalelab::v1::GetCurveResponse WithFactors(scalelab::v1::GetCurveResponse curve) {
  for (auto& series : *curve.mutable_series()) {
    for (auto& point : *series.mutable_points()) {
      auto& factors = *point.mutable_factors();
      factors.set_n(5);
      factors.set_step_seconds(0.3 / point.ranks());
      factors.set_communication_share(0.2);
      factors.set_imbalance_share(0.1);
      factors.set_data_share(0.01);
      factors.set_slower_share(0.05);
      factors.set_ideal_share(0.64);
    }
  }
  return curve;
}

inline std::map<std::string, scalelab::v1::GetCurveResponse> PictureSamples() {
  std::map<std::string, scalelab::v1::GetCurveResponse> samples = {{"sample", SampleCurve()},
                                                                   {"one_point", CurveOf(1, 1, 0.02)},
                                                                   {"ten_points", CurveOf(1, 10, 0.02)},
                                                                   {"twelve_series", CurveOf(12, 10, 0.02)},
                                                                   {"twelve_single", CurveOf(12, 1, 0.02)},
                                                                   {"tiny_intervals", CurveOf(2, 6, 1e-7)},
                                                                   {"huge_intervals", CurveOf(2, 6, 40)},
                                                                   {"200_cells", CurveOf(50, 4, 0.02)}};
  scalelab::v1::GetCurveResponse failed = CurveOf(12, 4, 0.05);
  for (int i = 0; i < failed.series_size(); ++i) {
    for (int k = 2; k < 4; ++k) {
      auto* point = failed.mutable_series(i)->mutable_points(k);
      const int ranks = point->ranks();
      point->Clear();
      point->set_ranks(ranks);
      point->set_state(i % 2 == 0 ? scalelab::v1::CurvePoint::FAILED
                                  : scalelab::v1::CurvePoint::OUT_OF_MEMORY);
    }
  }
  samples["failed_cells"] = failed;
  scalelab::v1::GetCurveResponse large = CurveOf(3, 10, 0.1);
  large.set_display_name(
      "a study with a name that is as long as names of studies may be, which are a hundred characters...");
  for (auto& series : *large.mutable_series()) {
    (*series.mutable_key()->mutable_fields())["model"].set_string_value(absl::StrCat(
        "a model with a very long name of more than one line, number ", series.key().ByteSizeLong()));
    for (auto& point : *series.mutable_points()) {
      point.set_ranks(point.ranks() * 1024);
      SetEstimate(point.mutable_throughput(), point.throughput().mean() * 1e6,
                  point.throughput().mean() * 1e5);
    }
  }
  samples["large_numbers"] = large;
  samples["factors"] = SampleCurveWithFactors();
  samples["factors_12"] = WithFactors(CurveOf(12, 6, 0.02));
  return samples;
}

// Plots of lines with long labels and titles.
inline std::map<std::string, LinePlot> LineSamples() {
  std::map<std::string, LinePlot> samples;
  for (const int lines : {1, 12, 60}) {
    LinePlot plot{absl::StrCat("a study with a name that is as long as names of studies may be, and ", lines,
                               " lines, more than a title has room for"),
                  "train/loss of rank 0",
                  "step",
                  "train/loss",
                  {}};
    for (int line = 0; line < lines; ++line) {
      PlotLine one{absl::StrCat("engine=framework-", line, "/strategy precision=amp-bf16 ranks=",
                                1 << line % 10, " learning_rate=0.0001"),
                   {},
                   {}};
      for (int i = 0; i <= 50; ++i) {
        one.x.push_back(i * 20'000);
        one.y.push_back(2.3 * std::exp(-0.02 * i * (line + 1)) + 1e-4 * line);
      }
      plot.lines.push_back(std::move(one));
    }
    samples[absl::StrCat("lines_", lines)] = std::move(plot);
  }
  LinePlot small{"a", "train/loss of rank 0", "step", "train/loss", {}};
  small.lines = {{"one", {1, 2, 3}, {1.00001, 1.00002, 1.00003}},
                 {"two", {1, 2, 3}, {1.00001, 1.000015, 1.00002}}};
  samples["lines_small_range"] = small;
  return samples;
}

}  // namespace scalelab::client
