// Estimates as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Returns an array with the mean of an estimate, and with the ends of the interval if there is one.
inline nlohmann::json AsJson(const v1::Estimate& e) {
  nlohmann::json numbers = nlohmann::json::array({e.mean()});
  if (e.has_low()) numbers.push_back(e.low());
  if (e.has_high()) numbers.push_back(e.high());
  return numbers;
}

// Returns an array with the median of an estimate and, if it has one, its standard deviation.
inline nlohmann::json SpreadOf(const v1::Estimate& e) {
  nlohmann::json numbers = nlohmann::json::array({e.median()});
  if (e.has_stddev()) numbers.push_back(e.stddev());
  return numbers;
}

}  // namespace scalelab::analysis
