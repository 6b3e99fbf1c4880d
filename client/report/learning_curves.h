// Metrics of the runs of a study over steps, epochs, time or samples.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/plots/line_plot.h"
#include "client/session/connection.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

struct LearningCurves {
  // The horizontal axis. kStep: the step, or the epoch of an epoch's metric. kTime: seconds since the first point of the
  // run. kSamples: trained samples, step x global batch; only for metrics of steps.
  enum class X { kStep, kTime, kSamples };

  std::string key = "train/loss";
  X x = X::kStep;
  std::vector<std::string> by;  // axes in the labels; empty: the axes whose values differ
  // Maximum number of points of each run, selected to keep the shape of the curve.
  int points = 300;
  int most_runs = 200;
  absl::Duration timeout = absl::Seconds(60);  // time limit for reading one run
};

// Returns all runs of the study called `name`, in the order of execution.
absl::StatusOr<google::protobuf::RepeatedPtrField<scalelab::v1::Run>> ListAllRuns(Connection& server,
                                                                                  const std::string& name);

// Reads the metric of rank 0 of each run that has begun. Runs without the metric are left out. INVALID_ARGUMENT if an
// axis of `by` is unknown, or if kSamples is asked for an epoch's metric.
absl::StatusOr<LinePlot> ReadLearningCurves(Connection& server, const std::string& title,
                                            const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs,
                                            const LearningCurves& options);

}  // namespace scalelab::client
