// Compares what a node showed around and during an attempt with what it usually shows.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// The band of a quantity is median +- max(5 x 1.4826 x MAD, floor) of the earlier values: MAD is the median absolute deviation,
// and 1.4826 MAD estimates the standard deviation of normal values (Rousseeuw and Croux 1993).
struct Band {
  double median = 0, width = 0;
};
// Returns the band; nothing with fewer than 5 values.
std::optional<Band> BandOf(std::vector<double> values, double floor);

// The share of the CPUs' time in which other processes may run: half a CPU, at least 2%, at most 25%.
double LoadFloor(int cpus);

class NoiseReferences {
 public:
  // Returns why the attempt was noisy, one sentence each. `cpus` is the number of CPUs that the worker may use.
  std::vector<std::string> Judge(const v1::NodeNoise& noise, int cpus) const;
  // Keeps the values for later attempts on the node.
  void Add(const v1::NodeNoise& noise);

 private:
  // Of a node, at most kMost of each, oldest first.
  struct Node {
    std::deque<v1::Calibration> calibrations;  // with different times
    std::deque<double> load, steal, throttle;  // during attempts
  };
  void JudgeCalibration(const Node* node, const v1::Calibration& calibration, const std::string& when,
                        int cpus, std::vector<std::string>& reasons) const;

  std::map<std::string, Node> nodes_;
};

}  // namespace scalelab::server
