// Transfers archives from the server and to the server.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session.h"
#include "scalelab/v1/archive.pb.h"

namespace scalelab::client {

// Downloads the archive of a study, and passes it to `take` in pieces. If `take` returns an error, ends the
// call and returns this error. There is no default timeout, because an archive may be large; --timeout limits
// the whole transfer.
absl::Status DownloadArchive(Session& session, const scalelab::v1::ReadArchiveRequest& request,
                             const std::function<absl::Status(absl::string_view)>& take);

// Uploads an archive. `read` must set the next piece and return true, or return false at the end
// of the archive.
absl::StatusOr<scalelab::v1::RestoreArchiveResponse> UploadArchive(
    Session& session, const std::optional<scalelab::v1::StudyOrigin>& origin,
    const std::function<absl::StatusOr<bool>(std::string*)>& read);

// Prints the name of the study that the server has stored.
absl::Status PrintStored(Session& session, const scalelab::v1::RestoreArchiveResponse& response);

}  // namespace scalelab::client
