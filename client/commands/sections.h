// Tables that several commands print.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/output/printer.h"
#include "google/protobuf/repeated_field.h"
#include "scalelab/v1/reason.pb.h"
#include "scalelab/v1/run.pb.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Returns a list of names and values, one per line. Entries without a value are omitted.
Section Facts(std::vector<std::pair<std::string, Cell>> facts);
// Returns one row per study. This section and the next two refer to their arguments, which must exist until
// the sections are printed.
Section StudyTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Study>& studies, absl::Time now);
// Returns one row per run.
Section RunTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Run>& runs, absl::Time now);

// Returns the hardware and software of nodes, one fact per line. Nodes with equal facts share the lines.
// `names` are the names of the nodes, in the same order. Without names, shows numbers of nodes.
Section NodeFacts(const google::protobuf::RepeatedPtrField<scalelab::v1::NodeInfo>& nodes,
                  const google::protobuf::RepeatedPtrField<std::string>& names);

// Returns the code of a user's program, one fact per line: the commit, the changes since then, and the hash of each file.
// `more` comes first.
Section CodeFacts(const scalelab::v1::CodeSnapshot& code,
                  std::vector<std::pair<std::string, Cell>> more = {});

// Returns the numbered chain of reasons. Ages and times until the next try are relative to `now`.
Section ReasonTable(const google::protobuf::RepeatedPtrField<scalelab::v1::Reason>& reasons, absl::Time now);

Cell StateCell(scalelab::v1::Study::State state);
Cell StateCell(scalelab::v1::Run::State state);
Cell StateCell(scalelab::v1::Attempt::State state);
// Returns "12", or "12 + 6 baseline runs" if the study measures communication.
std::string RunsText(int64_t runs, int64_t baseline_runs);
// Returns "5", or "2 to 10, until the half width of the intervals is 2%".
std::string RepeatsText(const scalelab::v1::StudySpec& spec);
// Returns for example "9: 1 queued, 1 running, 6 succeeded, 1 failed, 0 cancelled".
std::string CountsText(const scalelab::v1::RunCounts& counts);
// Returns the time between `start` and `finish` (`now` if `finish` is not set). Empty if `start` is not set.
std::string Took(const google::protobuf::Timestamp& start, const google::protobuf::Timestamp& finish,
                 absl::Time now);

}  // namespace scalelab::client
