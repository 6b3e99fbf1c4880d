// The report of a study. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/plots/line_plot.h"
#include "client/report/machines.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// What a report shows, as the server returned it.
struct StudyResults {
  const scalelab::v1::Study& study;  // with its specification
  const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs;
  const scalelab::v1::GetCurveResponse& curve;
  std::vector<LinePlot> learning;  // plots without points are left out
  absl::Time now;                  // when the page is written
  Machines machines = {};          // a fingerprint that is missing has no description
};

// Returns a self-contained HTML page: question, setup, curves with intervals, tables, learning curves, failures,
// provenance, and how to repeat the study. It refers to no other file and contains no script.
std::string StudyReport(const StudyResults& results);

// Returns the scaling page of an application for computing time: a table of times, speedups, efficiencies, core-hours or
// GPU-hours and node-hours of an epoch, the largest world size of each series whose efficiency is at least `least_efficiency` (0 to
// 1), and how it was measured.
std::string ScalingProposal(const StudyResults& results, double least_efficiency);

}  // namespace scalelab::client
