// Follows a study until it is final, across restarts of the server.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "client/session/session.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Calls `on_look` for each message from the server, and returns the study when it is final, or paused without
// a running attempt. When the connection is lost, prints a message, calls `on_lost`, if set, and opens the
// stream again with exponential backoff. Returns DEADLINE_EXCEEDED if the session's --timeout expires first,
// and UNAVAILABLE if for `patience` the server cannot be reached, or only repeats its last message and ends
// the stream.
absl::StatusOr<scalelab::v1::Study> FollowStudy(
    Session& session, const std::string& name,
    const std::function<void(const scalelab::v1::WatchStudyResponse&)>& on_look,
    const std::function<void()>& on_lost = nullptr, absl::Duration patience = absl::Minutes(1));

// Shows progress on `out` until the study is final or paused. If `terminal` is a terminal and the output format is
// table or wide, progress is redrawn in place. Otherwise prints one line at each change of the counts: text
// for table and wide, one message per line for json, rows for csv.
absl::StatusOr<ExitCode> WatchStudy(Session& session, const std::string& name, std::ostream& out,
                                    const Terminal& terminal);

// Returns kOk if every run succeeded, else kRunsFailed. A paused study has runs that did not succeed.
ExitCode OutcomeOf(const scalelab::v1::Study& study);

}  // namespace scalelab::client
