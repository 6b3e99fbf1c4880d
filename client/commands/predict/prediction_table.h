// Tables of predictions. Pure functions. The sections refer to their arguments, which must exist until the sections are printed.
#pragma once

#include "client/output/printer.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/prediction.pb.h"

namespace scalelab::client {

// Returns a row for each prediction.
Section PredictionTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Prediction>& predictions);
// Returns the reasons why there is no prediction or no score, without duplicates.
Section PredictionReasons(const google::protobuf::RepeatedPtrField<scalelab::v1::Prediction>& predictions);
// Returns the accuracy of the predictions.
Section PredictionFacts(const scalelab::v1::PredictionSummary& summary);

}  // namespace scalelab::client
