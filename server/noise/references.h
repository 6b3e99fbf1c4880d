// Compares the measurements of a node before, during and after an attempt with earlier measurements of
// the same node.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// The range of usual values of a quantity: median +- max(5 x 1.4826 x MAD, floor) of the earlier values. MAD
// is the median absolute deviation, and 1.4826 MAD estimates the standard deviation of normal values
// (Rousseeuw and Croux 1993).
struct Band {
  double median = 0, width = 0;
};
// Returns the band of `values`; nothing if there are fewer than 5.
std::optional<Band> BandOf(std::vector<double> values, double floor);

// Returns the share of the CPUs' time that other processes may use: half a CPU, but at least 2% and
// at most 25%.
double LoadFloor(int cpus);

// Why an attempt was noisy on a node.
struct NoiseVerdict {
  std::vector<std::string> reasons;  // one sentence each; none for a quiet attempt
  // The largest deviation of the reasons as a multiple of the deviation that is normal; 0 without reasons.
  double severity = 0;

  void Add(double deviation, std::string reason);
};

class NoiseReferences {
 public:
  // Compares the values with earlier ones of the node. `cpus` is the number of CPUs that the worker may use.
  NoiseVerdict Judge(const v1::NodeNoise& noise, int cpus) const;
  // Keeps the values for later attempts on the node.
  void Add(const v1::NodeNoise& noise);

 private:
  // The earlier values of a node, at most kMost of each kind, oldest first.
  struct Node {
    std::deque<v1::Calibration> calibrations;  // with different times
    std::deque<double> load, steal, throttle;  // during attempts
  };
  void JudgeCalibration(const Node* node, const v1::Calibration& calibration, const std::string& when,
                        int cpus, NoiseVerdict& verdict) const;

  std::map<std::string, Node> nodes_;
};

}  // namespace scalelab::server
