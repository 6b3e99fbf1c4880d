#include "server/curves/measured_series.h"

namespace scalelab::server {

void AddMeasuredSeries(const v1::GetCurveResponse& curve,
                       google::protobuf::RepeatedPtrField<v1::MeasuredSeries>& measured) {
  for (const v1::CurveSeries& series : curve.series()) {
    v1::MeasuredSeries& out = *measured.Add();
    out.set_study(curve.study());
    out.set_display_name(curve.display_name());
    *out.mutable_key() = series.key();
    out.set_fingerprint(series.fingerprint());
    *out.mutable_notes() = series.notes();
    for (const v1::CurvePoint& point : series.points()) {
      v1::MeasuredPoint& of_point = *out.add_points();
      of_point.set_ranks(point.ranks());
      of_point.set_n(point.n());
      of_point.set_asked(point.asked());
      if (!point.communication().missing().empty()) of_point.add_notes(point.communication().missing());
      of_point.mutable_notes()->MergeFrom(point.notes());
    }
  }
}

}  // namespace scalelab::server
