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

// The data of a report, as the server returned them.
struct StudyResults {
  const scalelab::v1::Study& study;  // with its specification
  const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs;
  const scalelab::v1::GetCurveResponse& curve;
  std::vector<LinePlot> learning;  // plots without points are left out
  absl::Time now;                  // the date on the page
  Machines machines = {};          // fingerprints that are missing here are shown without a description
};

// Returns a self-contained HTML page: question, setup, curves with intervals, tables, learning curves, failures,
// provenance, and how to repeat the study. It refers to no other file and contains no script.
std::string StudyReport(const StudyResults& results);

// Returns the scaling page of an application for computing time: a table of times, speedups, efficiencies,
// core-hours or GPU-hours and node-hours of an epoch, the largest world size of each series whose efficiency
// is at least `least_efficiency` (0 to 1), and a description of the measurement.
std::string ScalingProposal(const StudyResults& results, double least_efficiency);

}  // namespace scalelab::client
