// A curve with everything that plots and tables must handle: several series, intervals, a single repeat,
// failed cells, and names that need escaping.
#pragma once

#include <string>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

inline void SetEstimate(scalelab::v1::Estimate* e, double mean, double half_width) {
  e->set_mean(mean);
  e->set_median(mean);
  if (half_width <= 0) return;
  e->set_stddev(half_width / 1.5);
  e->set_low(mean - half_width);
  e->set_high(mean + half_width);
}

// Throughputs that start at `base` samples/s and follow Amdahl's law with serial fraction `serial`.
inline scalelab::v1::CurveSeries SampleSeries(const std::string& engine, const std::string& precision,
                                              double base, double serial) {
  scalelab::v1::CurveSeries series;
  (*series.mutable_key()->mutable_fields())["engine"].set_string_value(engine);
  (*series.mutable_key()->mutable_fields())["precision"].set_string_value(precision);
  series.set_baseline_ranks(1);
  series.set_baseline_throughput(base);
  series.set_fingerprint("a1b2c3d4e5f6");
  for (const int ranks : {1, 2, 4, 8}) {
    const double speedup = 1 / (serial + (1 - serial) / ranks);
    auto* point = series.add_points();
    point->set_ranks(ranks);
    point->set_n(5);
    point->set_asked(5);
    point->set_state(scalelab::v1::CurvePoint::OK);
    point->set_global_batch(256);
    point->set_batch_per_rank(256 / ranks);
    SetEstimate(point->mutable_throughput(), base * speedup, base * speedup * 0.02);
    SetEstimate(point->mutable_speedup(), speedup, ranks == 1 ? 0 : speedup * 0.04);
    SetEstimate(point->mutable_efficiency(), speedup / ranks, ranks == 1 ? 0 : speedup / ranks * 0.04);
    SetEstimate(point->mutable_epoch_seconds(), 50000 / (base * speedup), 0.1);
    SetEstimate(point->mutable_comm_share(), 1 - speedup / ranks, 0.01);
    SetEstimate(point->mutable_peak_memory(), 1.5 * (1 << 30), 1 << 20);
    SetEstimate(point->mutable_accuracy(), 0.4123, 0.004);
  }
  return series;
}

inline scalelab::v1::GetCurveResponse SampleCurve() {
  scalelab::v1::GetCurveResponse curve;
  curve.set_study("studies/7");
  curve.set_display_name("resnet20-strong");
  curve.set_scaling("strong");
  *curve.add_series() = SampleSeries("native/ddp", "fp32", 812.4, 0.03);
  *curve.add_series() = SampleSeries("native/horovod", "fp32", 799.8, 0.08);
  *curve.add_series() = SampleSeries("native/ddp", "amp-bf16", 1350, 0.15);
  auto* lost = curve.mutable_series(2)->mutable_points(3);
  lost->Clear();
  lost->set_ranks(8);
  lost->set_state(scalelab::v1::CurvePoint::OUT_OF_MEMORY);
  lost->set_failed(5);
  lost->set_asked(5);
  auto* single = curve.mutable_series(1)->mutable_points(3);
  single->set_n(1);
  single->add_notes("1 run succeeded only after a failed attempt");
  single->set_state(scalelab::v1::CurvePoint::PARTIAL);
  single->set_failed(4);
  SetEstimate(single->mutable_speedup(), 4.4, 0);
  single->mutable_speedup()->clear_low();
  single->mutable_speedup()->clear_high();
  auto* fit = curve.mutable_series(0)->add_fits();
  fit->set_law("amdahl");
  SetEstimate(&(*fit->mutable_parameters())["serial_fraction"], 0.03, 0.005);
  curve.mutable_series(0)->set_noise_floor(0.032);
  curve.mutable_series(1)->add_notes("repeats ran on different nodes");
  return curve;
}

// SampleCurve with communication costs. At 8 ranks, one point has no serial runs, and one has no cost at all.
inline scalelab::v1::GetCurveResponse SampleCurveWithCommunication() {
  scalelab::v1::GetCurveResponse curve = SampleCurve();
  for (auto& series : *curve.mutable_series()) {
    for (auto& point : *series.mutable_points()) {
      if (point.ranks() == 1 || point.n() == 0) continue;
      auto* cost = point.mutable_communication();
      cost->set_n(point.n());
      SetEstimate(cost->mutable_exposed(), 0.0021 * point.ranks(), 0.0004);
      SetEstimate(cost->mutable_total(), 0.0084 * point.ranks(), 0.0007);
      SetEstimate(cost->mutable_hidden(), 0.75, 0.05);
    }
  }
  auto* serial = curve.mutable_series(0)->mutable_points(3)->mutable_communication();
  serial->clear_total();
  serial->clear_hidden();
  serial->set_missing("no total and hidden communication: every run of native/serial failed");
  auto* all = curve.mutable_series(1)->mutable_points(3)->mutable_communication();
  all->Clear();
  all->set_missing("no communication cost: native/none has no result yet");
  return curve;
}

// SampleCurve with factors. One point has no times of its ranks, and one point has no critical batch.
inline scalelab::v1::GetCurveResponse SampleCurveWithFactors() {
  scalelab::v1::GetCurveResponse curve = SampleCurve();
  for (auto& series : *curve.mutable_series()) {
    for (auto& point : *series.mutable_points()) {
      if (point.n() == 0) continue;
      auto& factors = *point.mutable_factors();
      if (point.n() == 1) {
        factors.set_missing("no repeat has the times of all ranks");
        continue;
      }
      const double lost = 0.01 * point.ranks();
      factors.set_n(point.n());
      factors.set_step_seconds(0.3 / point.ranks());
      SetEstimate(factors.mutable_load_balance(), 1 - lost, 0.005);
      SetEstimate(factors.mutable_data(), 0.99, 0.001);
      SetEstimate(factors.mutable_communication(), 1 - 2 * lost, 0.01);
      SetEstimate(factors.mutable_computation(), 0.95, 0.01);
      SetEstimate(factors.mutable_product(), (1 - lost) * 0.99 * (1 - 2 * lost) * 0.95, 0.02);
      factors.set_communication_share(2 * lost);
      factors.set_imbalance_share(lost);
      factors.set_data_share(0.01);
      factors.set_slower_share(0.05);
      factors.set_ideal_share(0.94 - 3 * lost);
      if (point.ranks() == 1) continue;
      SetEstimate(factors.mutable_hidden(), 0.75, 0.05);
      auto& rank = *factors.mutable_slowest_rank();
      rank.set_rank(1);
      rank.set_node("n7");
      rank.set_compared(point.ranks());
      rank.set_n(5);
      rank.set_significant(point.ranks() > 2);
      SetEstimate(rank.mutable_excess(), 0.081, 0.03);
      if (point.ranks() == 8) {
        auto& node = *factors.mutable_slowest_node();
        node.set_node("n7");
        SetEstimate(node.mutable_excess(), 0.02, 0.03);
      }
      auto& noise = *point.mutable_gradient_noise();
      noise.set_n(5);
      if (point.ranks() == 2) {
        noise.set_missing("the gradients are too noisy to find their mean; measure more steps or repeats");
        continue;
      }
      SetEstimate(noise.mutable_critical_batch(), 210, 30);
      SetEstimate(noise.mutable_goodput(), 900, 60);
    }
  }
  return curve;
}

}  // namespace scalelab::client
