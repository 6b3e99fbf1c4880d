// Curves that are hard to draw.
#pragma once

#include <cmath>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
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
  return samples;
}

}  // namespace scalelab::client
