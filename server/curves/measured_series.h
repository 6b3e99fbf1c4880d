// The notes on the measurements that a comparison or an advice uses.
#pragma once

#include "scalelab/v1/analysis.pb.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::server {

// Appends each series of the curve with its notes and, for each point, the numbers of its values and its notes.
void AddMeasuredSeries(const v1::GetCurveResponse& curve,
                       google::protobuf::RepeatedPtrField<v1::MeasuredSeries>& measured);

}  // namespace scalelab::server
