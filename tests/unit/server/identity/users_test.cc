#include "server/identity/users.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/status.h"
#include "server/identity/authenticator.h"
#include "tests/unit/server/identity/memory_access_store.h"

namespace scalelab::server {
namespace {

using Names = absl::StatusOr<std::vector<std::string>>;

constexpr uid_t kAnn = 4'123'456;

std::vector<std::string> GroupsOf(const std::string& user) {
  if (user == "ann") return {"staff", "labadmins"};
  if (user == "joe") return {"staff"};
  return {};
}

UserDirectory WithGroups() {
  UserDirectory directory;
  directory.groups_of = GroupsOf;
  return directory;
}

std::string RoleText(Users& users, const std::string& user) {
  const auto role = users.RoleOf(user);
  if (role.ok()) return std::to_string(static_cast<int>(*role));
  if (absl::IsUnavailable(role.status())) return "unavailable";
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
  Users users({{"@labadmins", "eve"}, {"@staff"}, {"guest"}}, WithGroups());
  EXPECT_EQ(*users.RoleOf("ann"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("eve"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  EXPECT_EQ(*users.RoleOf("guest"), Role::kViewer);
  EXPECT_EQ(RoleText(users, "mallory"), "none");
  EXPECT_EQ(RoleText(users, "@staff"), "none") << "a user is not a group";
}

TEST(Users, NewListsOfRolesApplyAtOnce) {
  Users users({{}, {"joe"}, {}}, WithGroups());
  EXPECT_EQ(RoleText(users, "ann"), "none");
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  users.SetRoles({{"@labadmins"}, {}, {"*"}});
  EXPECT_EQ(*users.RoleOf("ann"), Role::kAdmin);
  EXPECT_EQ(*users.RoleOf("joe"), Role::kViewer);
  EXPECT_EQ(*users.RoleOf(users.service()), Role::kAdmin) << "the account of the service stays an admin";
}

TEST(Users, AnAccountWithoutANameHasItsNumber) {
  Users users({});
  EXPECT_EQ(*users.NameOf(0), "root");
  EXPECT_EQ(*users.NameOf(kAnn), "uid-4123456");
  EXPECT_EQ(*users.NameOf(geteuid()), users.service());
}

// A user directory with a clock. The threads of its lookups own it together with the test.
class FakeDirectory {
 public:
  // Callers wait for an hour of this clock, or of the clock of the machine.
  static UserDirectory Of(const std::shared_ptr<FakeDirectory>& fake) {
    UserDirectory directory;
    directory.name_of = [fake](uid_t uid) { return fake->NameOf(uid); };
    directory.groups_of = [fake](const std::string&) { return fake->Groups(); };
    directory.now = [fake] { return absl::Seconds(fake->seconds_.load()); };
    directory.patience = absl::Hours(1);
    return directory;
  }
  void Advance(absl::Duration by) { seconds_ += absl::ToInt64Seconds(by); }
  void SetName(absl::StatusOr<std::string> name) {
    absl::MutexLock lock(&mutex_);
    name_ = std::move(name);
  }
  void SetGroups(Names groups) {
    absl::MutexLock lock(&mutex_);
    groups_ = std::move(groups);
  }
  void Block(bool blocked) {
    absl::MutexLock lock(&mutex_);
    blocked_ = blocked;
  }
  int lookups() {
    absl::MutexLock lock(&mutex_);
    return lookups_;
  }
  void WaitForLookup(int number) {
    absl::MutexLock lock(&mutex_);
    const auto begun = [&] {
      mutex_.AssertHeld();
      return lookups_ >= number;
    };
    mutex_.Await(absl::Condition(&begun));
  }

 private:
  absl::StatusOr<std::string> NameOf(uid_t uid) {
    if (uid != kAnn) return "lab";
    absl::MutexLock lock(&mutex_);
    Wait();
    return name_;
  }
  Names Groups() {
    absl::MutexLock lock(&mutex_);
    Wait();
    return groups_;
  }
  void Wait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++lookups_;
    mutex_.Await(absl::Condition(
        +[](bool* blocked) { return !*blocked; }, &blocked_));
  }

  std::atomic<int64_t> seconds_ = 0;
  absl::Mutex mutex_;
  absl::StatusOr<std::string> name_ ABSL_GUARDED_BY(mutex_) = "ann";
  Names groups_ ABSL_GUARDED_BY(mutex_) = std::vector<std::string>{"staff"};
  bool blocked_ ABSL_GUARDED_BY(mutex_) = false;
  int lookups_ ABSL_GUARDED_BY(mutex_) = 0;  // of groups and of the name of ann
};

const absl::Status kDown = absl::UnavailableError("Connection refused");

TEST(Users, AnErrorOfTheDirectoryDoesNotReplaceANameThatIsKnown) {
  const auto directory = std::make_shared<FakeDirectory>();
  Users users({}, FakeDirectory::Of(directory));
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  directory->SetName(kDown);
  directory->Advance(absl::Minutes(6));
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  EXPECT_EQ(directory->lookups(), 2);
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  EXPECT_EQ(directory->lookups(), 2) << "some seconds are between a failed lookup and the next one";
  directory->SetName("ann2");
  directory->Advance(absl::Seconds(6));
  EXPECT_EQ(*users.NameOf(kAnn), "ann2");
}

TEST(Users, AnErrorOfTheDirectoryDoesNotReplaceGroupsThatAreKnown) {
  const auto directory = std::make_shared<FakeDirectory>();
  Users users({{}, {"@staff"}, {"@guests"}}, FakeDirectory::Of(directory));
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  directory->SetGroups(kDown);
  directory->Advance(absl::Minutes(6));
  const std::string user = std::to_string(static_cast<int>(Role::kUser));
  // The third lookup begins after the error of the second one.
  while (directory->lookups() < 3) {
    ASSERT_EQ(RoleText(users, "joe"), user);
    directory->Advance(absl::Seconds(6));
    absl::SleepFor(absl::Milliseconds(1));
  }
  directory->SetGroups(std::vector<std::string>{"guests"});
  const std::string viewer = std::to_string(static_cast<int>(Role::kViewer));
  for (std::string role = user; role != viewer; role = RoleText(users, "joe")) {
    ASSERT_EQ(role, user);
    directory->Advance(absl::Seconds(6));
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST(Users, WithoutAnEarlierAnswerAnErrorOfTheDirectoryIsUnavailable) {
  const auto directory = std::make_shared<FakeDirectory>();
  directory->SetName(kDown);
  directory->SetGroups(kDown);
  Users users({{}, {"@staff"}, {}}, FakeDirectory::Of(directory));
  EXPECT_TRUE(users.status().ok());
  const absl::Status no_name = users.NameOf(kAnn).status();
  EXPECT_TRUE(absl::IsUnavailable(no_name)) << no_name;
  EXPECT_THAT(no_name.message(), testing::HasSubstr("Connection refused"));
  const absl::Status no_role = users.RoleOf("joe").status();
  EXPECT_TRUE(absl::IsUnavailable(no_role)) << no_role;
  EXPECT_THAT(no_role.message(), testing::HasSubstr("Connection refused"));
  directory->SetName("ann");
  directory->SetGroups(std::vector<std::string>{"staff"});
  directory->Advance(absl::Seconds(6));
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
}

TEST(Users, CallersWaitForTheBeginningOfALookupOnly) {
  const auto directory = std::make_shared<FakeDirectory>();
  Users users({{}, {"@staff"}, {}}, FakeDirectory::Of(directory));
  directory->Block(true);
  auto role = std::async(std::launch::async, [&] { return users.RoleOf("joe"); });
  auto name = std::async(std::launch::async, [&] { return users.NameOf(kAnn); });
  directory->WaitForLookup(2);
  directory->Advance(absl::Hours(2));
  // Without an answer these calls would take an hour if their wait did not begin with the lookup.
  EXPECT_TRUE(absl::IsUnavailable(users.RoleOf("joe").status()));
  EXPECT_TRUE(absl::IsUnavailable(users.NameOf(kAnn).status()));
  EXPECT_EQ(directory->lookups(), 2) << "one lookup of each answer is in flight";
  EXPECT_EQ(*users.RoleOf(users.service()), Role::kAdmin) << "needs no groups";
  directory->Block(false);
  EXPECT_EQ(*role.get(), Role::kUser);
  EXPECT_EQ(*name.get(), "ann");
}

TEST(Users, OldAnswersAreUsedWhileTheDirectoryHangs) {
  const auto directory = std::make_shared<FakeDirectory>();
  Users users({{}, {"@staff"}, {}}, FakeDirectory::Of(directory));
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  directory->Advance(absl::Minutes(6));
  directory->Block(true);
  EXPECT_EQ(*users.RoleOf("joe"), Role::kUser);
  auto name = std::async(std::launch::async, [&] { return users.NameOf(kAnn); });
  directory->WaitForLookup(4);
  directory->Advance(absl::Hours(2));
  EXPECT_EQ(*users.NameOf(kAnn), "ann");
  directory->SetName("ann2");
  directory->Block(false);
  EXPECT_EQ(*name.get(), "ann2") << "a call waits for the new name for a while";
}

TEST(Users, AnEntryIsANameAGroupOrAStar) {
  for (const char* good : {"ann", "@staff", "*", "ann@lab.org", "DOM-x_1"})
    EXPECT_TRUE(CheckRoleEntry(good).ok()) << good;
  for (const char* bad : {"", "@", "@@x", "a b", "**", "a,b", "a\n"})
    EXPECT_FALSE(CheckRoleEntry(bad).ok()) << bad;
}

TEST(Authenticator, DoesNotStartWithoutTheNameOfItsAccount) {
  MemoryAccessStore store;
  IdentityOptions options;
  options.directory.name_of = [](uid_t) { return kDown; };
  Authenticator identities(options, "file-token", "key", store);
  const absl::Status started = identities.Start();
  EXPECT_TRUE(absl::IsUnavailable(started)) << started;
  EXPECT_THAT(started.message(), testing::HasSubstr("Connection refused"));
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
