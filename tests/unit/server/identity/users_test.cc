#include "server/identity/users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include "absl/synchronization/mutex.h"
#include "proto/status.h"
#include "server/identity/authenticator.h"
#include "tests/unit/server/identity/memory_access_store.h"

namespace scalelab::server {
namespace {

std::vector<std::string> GroupsOf(const std::string& user) {
  if (user == "ann") return {"staff", "labadmins"};
  if (user == "joe") return {"staff"};
  return {};
}

std::string RoleText(Users& users, const std::string& user) {
  const auto role = users.RoleOf(user);
  if (role.ok()) return std::to_string(static_cast<int>(*role));
  EXPECT_TRUE(absl::IsPermissionDenied(role.status())) << role.status();
  return "none";
}

TEST(Users, ByDefaultEverybodyIsAUserAndTheServiceAnAdmin) {
  Users users({});
  EXPECT_EQ(*users.RoleOf("ann"), Role::kUser);
  EXPECT_EQ(*users.RoleOf(users.service()), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("root"), Role::kAdmin);
}

TEST(Users, TheHighestRoleOfNameAndGroupsCounts) {
  Users users({{"@labadmins", "eve"}, {"@staff"}, {"guest"}}, GroupsOf);
  EXPECT_EQ(*users.RoleOf("ann"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("eve"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  EXPECT_EQ(*users.RoleOf("guest"), Role::kViewer);
  EXPECT_EQ(RoleText(users, "mallory"), "none");
  EXPECT_EQ(RoleText(users, "@staff"), "none") << "a user is not a group";
}

TEST(Users, NewListsOfRolesApplyAtOnce) {
  Users users({{}, {"joe"}, {}}, GroupsOf);
  EXPECT_EQ(RoleText(users, "ann"), "none");
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  users.SetRoles({{"@labadmins"}, {}, {"*"}});
  EXPECT_EQ(*users.RoleOf("ann"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("joe"), Role::kViewer);
  EXPECT_EQ(*users.RoleOf(users.service()), Role::kAdmin) << "the account of the service stays an admin";
}

TEST(Users, AnAccountWithoutANameHasItsNumber) {
  Users users({});
  EXPECT_EQ(users.NameOf(0), "root");
  EXPECT_EQ(users.NameOf(4'123'456), "uid-4123456");
  EXPECT_EQ(users.NameOf(geteuid()), users.service());
}

absl::Mutex blocked_mutex;
bool blocked = true;

TEST(Users, ADirectoryServiceThatBlocksDelaysOnlyThoseWhomItConcerns) {
  Users users(
      {{}, {"@staff"}, {}}, +[](const std::string&) -> std::vector<std::string> {
        absl::MutexLock lock(&blocked_mutex);
        blocked_mutex.Await(absl::Condition(
            +[](bool* b) { return !*b; }, &blocked));
        return {"staff"};
      });
  EXPECT_TRUE(absl::IsUnavailable(users.RoleOf("joe", absl::Milliseconds(10)).status()));
  EXPECT_EQ(*users.RoleOf(users.service(), absl::ZeroDuration()), Role::kAdmin);
  {
    absl::MutexLock lock(&blocked_mutex);
    blocked = false;
  }
  EXPECT_EQ(*users.RoleOf("joe", absl::Seconds(20)), Role::kUser);
}

TEST(Users, AnEntryIsANameAGroupOrAStar) {
  for (const char* good : {"ann", "@staff", "*", "ann@lab.org", "DOM-x_1"})
    EXPECT_TRUE(CheckRoleEntry(good).ok()) << good;
  for (const char* bad : {"", "@", "@@x", "a b", "**", "a,b", "a\n"})
    EXPECT_FALSE(CheckRoleEntry(bad).ok()) << bad;
}

TEST(Authenticator, EveryKindOfTokenNamesItsUser) {
  MemoryAccessStore store;
  Authenticator identities({{{"ann"}, {"*"}, {}}, {"www-data"}}, "file-token", "key", store);
  ASSERT_TRUE(identities.Start().ok());
  const absl::Time now = absl::Now();
  const auto file = identities.Bearer("file-token", "10.0.0.1", now);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->user, identities.users().service());
  EXPECT_TRUE(file->IsAdmin());
  EXPECT_EQ(file->address, "10.0.0.1");

  const auto created = identities.tokens().Create("ann", Scope::kSubmit, absl::Hours(1), "", now);
  const auto personal = identities.Bearer(created->secret, "10.0.0.2", now);
  ASSERT_TRUE(personal.ok());
  EXPECT_EQ(personal->user, "ann");
  EXPECT_EQ(personal->role, Role::kAdmin);
  EXPECT_FALSE(personal->IsAdmin()) << "the scope limits the role";
  EXPECT_EQ(personal->source, "token 1");

  const auto session = identities.Bearer(identities.sessions().Issue("joe", "munge", now), "10.0.0.3", now);
  ASSERT_TRUE(session.ok());
  EXPECT_EQ(session->user, "joe");
  EXPECT_EQ(session->role, Role::kUser);
  EXPECT_EQ(session->source, "munge");

  EXPECT_TRUE(absl::IsUnauthenticated(identities.Bearer("file-tokeN", "10.0.0.1", now).status()));
  EXPECT_TRUE(identities.IsProxy("www-data"));
  EXPECT_FALSE(identities.IsProxy("joe"));
}

}  // namespace
}  // namespace scalelab::server
