#include "server/identity/permissions.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"

namespace scalelab::server {
namespace {

absl::Status Denied(absl::string_view reason, const std::string& message) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason, message);
}

// Returns an error if the credential has a narrower scope than the call needs.
absl::Status CheckScope(const Identity& caller, Scope needed) {
  if (caller.scope >= needed) return absl::OkStatus();
  return Denied("SCOPE_TOO_NARROW", absl::StrCat("the scope of ", caller.source, " is ", NameOf(caller.scope),
                                                 ", and this call needs scope ", NameOf(needed),
                                                 "; create a token with `scalelab token "
                                                 "create --scope ",
                                                 NameOf(needed), "`"));
}

// Returns an error unless the caller may change anything.
absl::Status CheckUser(const Identity& caller) {
  if (caller.role == Role::kViewer) {
    return Denied("ROLE_TOO_LOW", absl::StrCat(caller.user,
                                               " is a viewer and may only read; an operator of the service "
                                               "can add ",
                                               caller.user, " to `users` in its configuration"));
  }
  return CheckScope(caller, Scope::kSubmit);
}

absl::Status CheckPriority(const Identity& caller, int priority) {
  if (priority <= 0) return absl::OkStatus();
  return MustBeAdmin(caller, absl::StrCat("set a priority above 0 (this one is ", priority, ")"));
}

}  // namespace

absl::string_view NameOf(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kUser:
      return "user";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

absl::string_view NameOf(Scope scope) {
  switch (scope) {
    case Scope::kRead:
      return "read";
    case Scope::kSubmit:
      return "submit";
    case Scope::kAdmin:
      return "admin";
  }
  return "";
}

db::Viewer ViewerOf(const Identity& caller) { return {caller.IsAdmin(), caller.user}; }

bool MaySee(const Identity& caller, const db::StudyRow& study) {
  return !study.is_private || caller.user == study.owner || caller.IsAdmin();
}

absl::Status MayControl(const Identity& caller, const db::StudyRow& study) {
  if (absl::Status s = CheckUser(caller); !s.ok()) return s;
  if (caller.user == study.owner || caller.IsAdmin()) return absl::OkStatus();
  if (caller.role == Role::kAdmin) return CheckScope(caller, Scope::kAdmin);
  return Denied("NOT_OWNER", absl::StrCat("studies/", study.id, " belongs to ", study.owner, ", and you are ",
                                          caller.user, "; only its owner and admins may change it"));
}

absl::Status MayRestore(const Identity& caller, const std::string& owner, bool own) {
  if (absl::Status s = CheckUser(caller); !s.ok()) return s;
  if (own && caller.user == owner) return absl::OkStatus();
  return MustBeAdmin(caller, own ? absl::StrCat("restore a study of ", owner)
                                 : "restore an archive that another server has written");
}

absl::Status MaySetPriority(const Identity& caller, const db::StudyRow& study, int priority) {
  if (absl::Status s = MayControl(caller, study); !s.ok()) return s;
  return CheckPriority(caller, priority);
}

absl::Status MaySubmit(const Identity& caller, const std::string& owner, int priority) {
  if (absl::Status s = CheckUser(caller); !s.ok()) return s;
  if (!owner.empty() && owner != caller.user) {
    if (absl::Status s = MustBeAdmin(caller, absl::StrCat("submit a study for another user (", owner, ")"));
        !s.ok())
      return s;
  }
  return CheckPriority(caller, priority);
}

absl::Status MustBeAdmin(const Identity& caller, absl::string_view what) {
  if (caller.role != Role::kAdmin)
    return Denied("NOT_ADMIN", absl::StrCat("only admins may ", what, ", and ", caller.user, " has the role ",
                                            NameOf(caller.role)));
  return CheckScope(caller, Scope::kAdmin);
}

absl::Status MayCreateToken(const Identity& caller, Scope scope) {
  if (caller.scope >= scope) return absl::OkStatus();
  return Denied("SCOPE_TOO_NARROW", absl::StrCat("the scope of ", caller.source, " is ", NameOf(caller.scope),
                                                 "; it cannot create a token with scope ", NameOf(scope)));
}

absl::Duration TokenLifetime(const Identity& caller, absl::Duration asked, absl::Time now) {
  if (caller.expires == 0 || !absl::StartsWith(caller.source, "token ")) return asked;
  return std::min(asked, absl::FromUnixMicros(caller.expires) - now);
}

absl::Status MayRevokeToken(const Identity& caller, const std::string& owner, Scope scope) {
  if (caller.user == owner && caller.scope >= scope) return absl::OkStatus();
  return MustBeAdmin(caller, caller.user == owner ? absl::StrCat("revoke a token of scope ", NameOf(scope),
                                                                 " with ", caller.source)
                                                  : "revoke the token of another user");
}

}  // namespace scalelab::server
