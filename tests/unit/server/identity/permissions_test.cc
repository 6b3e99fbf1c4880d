// The table of permissions.
#include "server/identity/permissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/status.h"

namespace scalelab::server {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Identity Caller(const std::string& user, Role role, Scope scope) { return {user, role, scope, "token 3"}; }

db::StudyRow Study(bool is_private) {
  db::StudyRow study;
  study.id = 7;
  study.owner = "bob";
  study.is_private = is_private;
  return study;
}

// The permissions of one caller. "bob" is the owner of the study, and "alice" is another user.
struct Row {
  const char* user;
  Role role;
  Scope scope;
  bool sees_private, controls, submits, submits_for_others, sets_priority, administers;
};

const Row kTable[] = {
    // user    role           scope            see    contr  subm   others prio   admin
    {"alice", Role::kViewer, Scope::kRead, false, false, false, false, false, false},
    {"alice", Role::kViewer, Scope::kAdmin, false, false, false, false, false, false},
    {"alice", Role::kUser, Scope::kRead, false, false, false, false, false, false},
    {"alice", Role::kUser, Scope::kSubmit, false, false, true, false, false, false},
    {"alice", Role::kUser, Scope::kAdmin, false, false, true, false, false, false},
    {"alice", Role::kAdmin, Scope::kRead, false, false, false, false, false, false},
    {"alice", Role::kAdmin, Scope::kSubmit, false, false, true, false, false, false},
    {"alice", Role::kAdmin, Scope::kAdmin, true, true, true, true, true, true},
    {"bob", Role::kViewer, Scope::kAdmin, true, false, false, false, false, false},
    {"bob", Role::kUser, Scope::kRead, true, false, false, false, false, false},
    {"bob", Role::kUser, Scope::kSubmit, true, true, true, false, false, false},
    {"bob", Role::kUser, Scope::kAdmin, true, true, true, false, false, false},
    {"bob", Role::kAdmin, Scope::kSubmit, true, true, true, false, false, false},
    {"bob", Role::kAdmin, Scope::kAdmin, true, true, true, true, true, true},
};

TEST(Permissions, FollowRoleScopeAndOwner) {
  for (const Row& row : kTable) {
    const Identity caller = Caller(row.user, row.role, row.scope);
    SCOPED_TRACE(absl::StrCat(row.user, " ", NameOf(row.role), " ", NameOf(row.scope)));
    EXPECT_TRUE(MaySee(caller, Study(false)));
    EXPECT_EQ(MaySee(caller, Study(true)), row.sees_private);
    EXPECT_EQ(ViewerOf(caller).all, row.administers);
    EXPECT_EQ(ViewerOf(caller).user, row.user);
    EXPECT_EQ(MayControl(caller, Study(false)).ok(), row.controls);
    EXPECT_EQ(MaySubmit(caller, "", 0).ok(), row.submits);
    EXPECT_EQ(MaySubmit(caller, row.user, -5).ok(), row.submits);
    EXPECT_EQ(MaySubmit(caller, "carol", 0).ok(), row.submits_for_others);
    EXPECT_EQ(MaySubmit(caller, "", 1).ok(), row.sets_priority);
    EXPECT_EQ(MaySetPriority(caller, Study(false), 1).ok(), row.sets_priority);
    EXPECT_EQ(MaySetPriority(caller, Study(false), 0).ok(), row.controls);
    EXPECT_EQ(MustBeAdmin(caller, "drain the service").ok(), row.administers);
  }
}

TEST(Permissions, ARefusalSaysWhatIsMissing) {
  const auto message = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsPermissionDenied(status));
    EXPECT_NE(ReasonOf(status), "");
    return std::string(status.message());
  };
  EXPECT_THAT(message(MayControl(Caller("alice", Role::kUser, Scope::kAdmin), Study(false))),
              AllOf(HasSubstr("studies/7 belongs to bob"), HasSubstr("you are alice")));
  EXPECT_THAT(message(MayControl(Caller("bob", Role::kUser, Scope::kRead), Study(false))),
              AllOf(HasSubstr("the scope of token 3 is read"), HasSubstr("token create --scope submit")));
  EXPECT_THAT(message(MaySubmit(Caller("alice", Role::kViewer, Scope::kAdmin), "", 0)),
              HasSubstr("alice is a viewer"));
  EXPECT_THAT(message(MaySubmit(Caller("alice", Role::kUser, Scope::kAdmin), "", 5)),
              HasSubstr("only admins may set a priority above 0 (this one is 5)"));
  EXPECT_THAT(message(MaySubmit(Caller("alice", Role::kUser, Scope::kAdmin), "bob", 0)),
              HasSubstr("only admins may submit a study for another user (bob)"));
  EXPECT_THAT(message(MustBeAdmin(Caller("alice", Role::kAdmin, Scope::kSubmit), "drain")),
              HasSubstr("needs scope admin"));
}

TEST(Permissions, ATokenCreatesAndRevokesNoWiderToken) {
  const Identity submit = Caller("alice", Role::kAdmin, Scope::kSubmit);
  EXPECT_TRUE(MayCreateToken(submit, Scope::kRead).ok());
  EXPECT_TRUE(MayCreateToken(submit, Scope::kSubmit).ok());
  EXPECT_FALSE(MayCreateToken(submit, Scope::kAdmin).ok());
  EXPECT_TRUE(MayRevokeToken(submit, "alice", Scope::kSubmit).ok());
  EXPECT_FALSE(MayRevokeToken(submit, "alice", Scope::kAdmin).ok());
  EXPECT_FALSE(MayRevokeToken(submit, "bob", Scope::kRead).ok());
  EXPECT_TRUE(MayRevokeToken(Caller("alice", Role::kAdmin, Scope::kAdmin), "bob", Scope::kAdmin).ok());
}

TEST(Permissions, ATokenThatATokenCreatesExpiresWithIt) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  Identity caller = Caller("alice", Role::kUser, Scope::kSubmit);
  EXPECT_EQ(TokenLifetime(caller, absl::Hours(9), now), absl::Hours(9)) << "it never expires";
  caller.expires = absl::ToUnixMicros(now + absl::Hours(2));
  EXPECT_EQ(TokenLifetime(caller, absl::Hours(9), now), absl::Hours(2));
  EXPECT_EQ(TokenLifetime(caller, absl::Hours(1), now), absl::Hours(1));
  caller.source = "munge";
  EXPECT_EQ(TokenLifetime(caller, absl::Hours(9), now), absl::Hours(9)) << "the session ends, the user stays";
}

}  // namespace
}  // namespace scalelab::server
