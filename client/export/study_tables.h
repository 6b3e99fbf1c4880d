// The tables of a study: its runs, their attempts, its metric points and its curve. docs/users/get-data-out.md
// describes the columns.
#pragma once

#include <string>
#include <vector>

#include "client/export/data_table.h"
#include "client/session/connection.h"
#include "scalelab/v1/result.pb.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::client {

// Returns the runs of the study called `name` in the order of execution, with attempts and all results.
absl::StatusOr<std::vector<scalelab::v1::Run>> ReadAllRuns(Connection& server, const std::string& name);

// Returns the columns of the points: run, rank, step, time, key and value.
const std::vector<std::string>& PointColumns();

// The following functions return tables that refer to their arguments. The arguments must exist until the
// tables are written.

// Has a row for each run. The columns are axes, parameters, state, times, and each result that any of
// the runs has.
DataTable RunData(const std::vector<scalelab::v1::Run>& runs);
// Has a row for each attempt of each run.
DataTable AttemptData(const std::vector<scalelab::v1::Run>& runs);
// Has a row for each point. Reads the points of several runs concurrently from the server; `timeout` applies
// to each run. Passes a message to `say` for each run whose points retention has removed.
DataTable PointData(Connection& server, const std::vector<scalelab::v1::Run>& runs, absl::Duration timeout,
                    const std::function<void(absl::string_view)>& say);
// Has a row for each point of the curve. An estimate NAME becomes the columns NAME, NAME_low and NAME_high. A
// message NAME becomes a column NAME_FIELD for each of its fields.
DataTable CurveData(const scalelab::v1::GetCurveResponse& curve);

}  // namespace scalelab::client
