#include "server/identity/users.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/time/clock.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kFresh = absl::Minutes(5);
constexpr size_t kMostLookups = 8;  // maximum number of lookups at the same time
constexpr size_t kLongestName = 64;
constexpr size_t kNameBuffer = 16 << 10;

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._@+-", c); }

std::string LookUpName(uid_t uid) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(kNameBuffer);
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return absl::StrCat("uid-", uid);
  std::string name = found->pw_name;
  const bool plain = std::all_of(name.begin(), name.end(), IsNameCharacter);
  if (plain && !name.empty() && name.size() <= kLongestName) return name;
  // Two accounts must not get the same name.
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsNameCharacter(c); }, '_');
  const std::string number = absl::StrCat("-", uid);
  return name.substr(0, kLongestName - number.size()) + number;
}

std::vector<std::string> LookUpGroups(const std::string& user) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(kNameBuffer);
  if (getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return {};
  int count = 64;
  std::vector<gid_t> ids(count);
  while (getgrouplist(user.c_str(), found->pw_gid, ids.data(), &count) < 0 && count < 65536) {
    count = std::max<int>(count, 2 * static_cast<int>(ids.size()));
    ids.resize(count);
  }
  ids.resize(std::max(count, 0));
  std::vector<std::string> groups;
  std::vector<char> text(size_t{1} << 20);  // a group's entry lists its members
  for (const gid_t id : ids) {
    group of_id{}, *it = nullptr;
    if (getgrgid_r(id, &of_id, text.data(), text.size(), &it) == 0 && it != nullptr)
      groups.push_back(it->gr_name);
  }
  return groups;
}

bool Contains(const std::vector<std::string>& list, const std::string& entry) {
  return std::find(list.begin(), list.end(), entry) != list.end();
}

bool HasGroups(const std::vector<std::string>& list) {
  return std::any_of(list.begin(), list.end(), [](const std::string& e) { return absl::StartsWith(e, "@"); });
}

bool Matches(const std::vector<std::string>& list, const std::string& user,
             const std::vector<std::string>& groups) {
  const bool named = !absl::StartsWith(user, "@") && Contains(list, user);  // an entry with "@" is a group
  return Contains(list, "*") || named || std::any_of(groups.begin(), groups.end(), [&](const std::string& g) {
           return Contains(list, "@" + g);
         });
}

}  // namespace

absl::Status CheckRoleEntry(const std::string& entry) {
  const std::string name = absl::StartsWith(entry, "@") ? entry.substr(1) : entry;
  if (entry == "*" ||
      (!name.empty() && std::all_of(name.begin(), name.end(), IsNameCharacter) && name[0] != '@'))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", entry, "' is not the name of a user, @ and the name of a group, or * for everybody"));
}

struct Users::Shared {
  struct Known {
    std::vector<std::string> groups;
    absl::Duration since;  // Clock::Steady, as all times here
  };

  GroupsOf groups_of = nullptr;
  SteadyMutex mutex;
  RoleLists lists ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uid_t, std::pair<std::string, absl::Duration>> names ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<std::string, Known> groups ABSL_GUARDED_BY(mutex);
  std::set<std::string> asked ABSL_GUARDED_BY(mutex);  // users whose groups are being looked up

  std::optional<Role> RoleWith(const std::string& user, const std::vector<std::string>& of_user) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (Matches(lists.admins, user, of_user)) return Role::kAdmin;
    if (Matches(lists.users, user, of_user)) return Role::kUser;
    if (Matches(lists.viewers, user, of_user)) return Role::kViewer;
    return std::nullopt;
  }
  bool groups_matter() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return HasGroups(lists.admins) || HasGroups(lists.users) || HasGroups(lists.viewers);
  }
  // Looks up the groups of `user` on a thread, unless that is in progress.
  static void Ask(const std::shared_ptr<Shared>& shared, const std::string& user)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared->mutex) {
    if (shared->asked.size() >= kMostLookups || !shared->asked.insert(user).second) return;
    // The thread is detached, because a directory service may block it for longer than the service runs.
    std::thread([shared, user] {
      std::vector<std::string> found = shared->groups_of(user);
      SteadyMutexLock lock(&shared->mutex);
      shared->groups[user] = {std::move(found), Clock::System().Steady()};
      shared->asked.erase(user);
      shared->mutex.SignalAll();
    }).detach();
  }
};

Users::Users(const RoleLists& lists) : Users(lists, LookUpGroups) {}

Users::Users(const RoleLists& lists, GroupsOf groups_of) : shared_(std::make_shared<Shared>()) {
  shared_->groups_of = groups_of;
  service_ = NameOf(geteuid());
  SetRoles(lists);
}

void Users::SetRoles(const RoleLists& lists) {
  RoleLists all = lists;
  all.admins.push_back(service_);
  all.admins.push_back(NameOf(0));
  SteadyMutexLock lock(&shared_->mutex);
  shared_->lists = std::move(all);
}

std::string Users::NameOf(uid_t uid) {
  {
    SteadyMutexLock lock(&shared_->mutex);
    const auto known = shared_->names.find(uid);
    if (known != shared_->names.end() && Clock::System().Steady() - known->second.second < kFresh)
      return known->second.first;
  }
  std::string name = LookUpName(uid);
  SteadyMutexLock lock(&shared_->mutex);
  shared_->names[uid] = {name, Clock::System().Steady()};
  return name;
}

absl::StatusOr<Role> Users::RoleOf(const std::string& user, absl::Duration patience) {
  const std::shared_ptr<Shared>& shared = shared_;
  SteadyMutexLock lock(&shared->mutex);
  std::vector<std::string> groups;
  if (shared->groups_matter() && shared->RoleWith(user, {}) != Role::kAdmin) {
    auto known = shared->groups.find(user);
    if (known == shared->groups.end() || Clock::System().Steady() - known->second.since > kFresh)
      Shared::Ask(shared, user);
    if (known == shared->groups.end()) {
      const auto answered = [&] {
        shared->mutex.AssertHeld();
        return shared->groups.contains(user);
      };
      if (!shared->mutex.AwaitWithTimeout(answered, patience)) {
        return absl::UnavailableError(
            absl::StrCat("the groups of ", user,
                         " are not known yet, because the user directory of this machine "
                         "answers slowly; try again"));
      }
      known = shared->groups.find(user);
    }
    groups = known->second.groups;
  }
  if (const std::optional<Role> role = shared->RoleWith(user, groups)) return *role;
  return MakeError(absl::StatusCode::kPermissionDenied, "NO_ROLE",
                   absl::StrCat(user, " may not use this service; its operator can add ", user,
                                " to `users` or `viewers` in the configuration"));
}

}  // namespace scalelab::server
