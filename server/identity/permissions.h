// All rules about the permissions of callers, as pure functions.
//
//   role     viewer: reads; user: also submits, and controls own studies; admin: everything
//   scope    of the credential: read, submit, admin; limits what the role allows
//   private  a study that only its owner and admins can see; for others it does not exist
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "db/store.h"
#include "server/identity/identity.h"

namespace scalelab::server {

absl::string_view NameOf(Role role);
absl::string_view NameOf(Scope scope);

// Returns whose studies the caller may see, for queries.
db::Viewer ViewerOf(const Identity& caller);
// Returns whether the caller may see the study, its runs, logs and results. If not, the answer is the NOT_FOUND of a
// study that does not exist.
bool MaySee(const Identity& caller, const db::StudyRow& study);

// The following return OK, or PERMISSION_DENIED with a message that names the caller, what is missing, and whom to ask.

// For calls that change a study which the caller may see, or its runs: cancel, delete, retry, resume, hold, release.
absl::Status MayControl(const Identity& caller, const db::StudyRow& study);
// For the restore of a study of this owner. `own`: this server wrote the archive. Only admins may restore
// other archives, because anybody could have made them.
absl::Status MayRestore(const Identity& caller, const std::string& owner, bool own);
// For a change of the priority. Only admins set one above 0.
absl::Status MaySetPriority(const Identity& caller, const db::StudyRow& study, int priority);
// For the submission of a study. `owner`: empty, or the name that the request gives.
absl::Status MaySubmit(const Identity& caller, const std::string& owner, int priority);
// For administration. `what` continues "only admins may", for example "list the audit log".
absl::Status MustBeAdmin(const Identity& caller, absl::string_view what);
// For the creation of a token with this scope. Every user may create tokens that do not exceed the caller's credential.
absl::Status MayCreateToken(const Identity& caller, Scope scope);
// Returns the lifetime of a new token: a token that is created with a personal token expires no later than
// this one, so that a stolen token cannot be prolonged.
absl::Duration TokenLifetime(const Identity& caller, absl::Duration asked, absl::Time now);
// For revoking a token: users may revoke their own tokens that their credential could create, and
// admins all tokens.
absl::Status MayRevokeToken(const Identity& caller, const std::string& owner, Scope scope);

}  // namespace scalelab::server
