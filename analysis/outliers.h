// Finds values that deviate from those of the same cell and the same block.
//
// Residuals are computed with medians instead of means (Tukey's median polish, Exploratory Data Analysis,
// 1977), because an outlier pulls a mean of few values towards itself. A value is an outlier if its residual
// is more than 5 standard deviations. The standard deviation is estimated as 1.4826 times the median absolute
// deviation, as for normal noise (Rousseeuw and Croux, JASA 88, 1993). Medians make as many residuals 0 as
// the model has parameters; these are not counted.
#pragma once

#include <vector>

#include "analysis/sample.h"

namespace scalelab::analysis {

struct Outlier {
  size_t place = 0;     // index of the value in the sample of its cell
  double residual = 0;  // of the logarithm
};

// Returns the outliers of each cell. Takes time in proportion to the number of values. Values must be above 0.
std::vector<std::vector<Outlier>> FindOutliers(const std::vector<const Sample*>& cells, int blocks);

}  // namespace scalelab::analysis
