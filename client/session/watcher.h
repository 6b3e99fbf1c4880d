// Follows a study until it is final, over restarts of the server.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "client/session/session.h"
#include "scalelab/v1/study.pb.h"

namespace scalelab::client {

// Calls `on_look` for what the server sends, and returns the final study. Says it when the server is lost,
// then calls `on_lost`, if set. DEADLINE_EXCEEDED when the session's
// --timeout is over first; UNAVAILABLE when a server that was there stays away for a minute.
absl::StatusOr<scalelab::v1::Study> FollowStudy(
    Session& session, const std::string& name,
    const std::function<void(const scalelab::v1::WatchStudyResponse&)>& on_look,
    const std::function<void()>& on_lost = nullptr);

// Shows progress on `out` until the study is final: redrawn in place when `terminal` is one, else a line at
// every change of the counts (of the output format: table and wide as words, json as one message a line, csv
// as rows).
absl::StatusOr<ExitCode> WatchStudy(Session& session, const std::string& name, std::ostream& out,
                                    const Terminal& terminal);

// kOk when every run succeeded, else kRunsFailed.
ExitCode OutcomeOf(const scalelab::v1::Study& study);

}  // namespace scalelab::client
