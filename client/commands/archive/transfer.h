// Archives from the server, and to it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "scalelab/v1/archive.pb.h"

namespace scalelab::client {

// Passes the archive of the study on, piece by piece. `take` may return an error, which ends the call and is returned. There is
// no default timeout, because an archive can be large; --timeout limits the whole transfer.
absl::Status DownloadArchive(Session& session, const scalelab::v1::ReadArchiveRequest& request,
                             const std::function<absl::Status(absl::string_view)>& take);

// Sends an archive. `read` sets the next piece, and returns whether there is one.
absl::StatusOr<scalelab::v1::RestoreArchiveResponse> UploadArchive(
    Session& session, const std::optional<scalelab::v1::StudyOrigin>& origin,
    const std::function<absl::StatusOr<bool>(std::string*)>& read);

// Prints the name of the study that the server has stored.
absl::Status PrintStored(Session& session, const scalelab::v1::RestoreArchiveResponse& response);

}  // namespace scalelab::client
