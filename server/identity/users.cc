#include "server/identity/users.h"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/accounts/accounts.h"

namespace scalelab::server {
namespace {

constexpr absl::Duration kStartPatience = absl::Seconds(30);
constexpr size_t kLongestName = 64;
constexpr size_t kNameBuffer = 16 << 10;
constexpr size_t kLargestGroup = size_t{64} << 20;  // bytes of a group's entry, which lists its members

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._@+-", c); }

absl::StatusOr<std::string> LookUpName(uid_t uid) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(kNameBuffer);
  const int error = getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr && !MeansNoEntry(error)) return absl::UnavailableError(std::strerror(error));
  if (found == nullptr) return absl::StrCat("uid-", uid);
  std::string name = found->pw_name;
  const bool plain = std::all_of(name.begin(), name.end(), IsNameCharacter);
  if (plain && !name.empty() && name.size() <= kLongestName) return name;
  // Two accounts must not get the same name.
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !IsNameCharacter(c); }, '_');
  const std::string number = absl::StrCat("-", uid);
  return name.substr(0, kLongestName - number.size()) + number;
}

absl::StatusOr<std::vector<std::string>> LookUpGroups(const std::string& user) {
  passwd entry{}, *found = nullptr;
  std::vector<char> buffer(kNameBuffer);
  const int error = getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr && !MeansNoEntry(error)) return absl::UnavailableError(std::strerror(error));
  if (found == nullptr) return std::vector<std::string>();
  int count = 64;
  std::vector<gid_t> ids(count);
  while (getgrouplist(user.c_str(), found->pw_gid, ids.data(), &count) < 0 && count < 65536) {
    count = std::max<int>(count, 2 * static_cast<int>(ids.size()));
    ids.resize(count);
  }
  ids.resize(std::max(count, 0));
  std::vector<std::string> groups;
  std::vector<char> text(size_t{1} << 20);
  for (const gid_t id : ids) {
    group of_id{}, *it = nullptr;
    int failed = getgrgid_r(id, &of_id, text.data(), text.size(), &it);
    while (failed == ERANGE && text.size() < kLargestGroup) {
      text.resize(2 * text.size());
      failed = getgrgid_r(id, &of_id, text.data(), text.size(), &it);
    }
    if (it != nullptr) {
      groups.push_back(it->gr_name);
    } else if (!MeansNoEntry(failed)) {
      return absl::UnavailableError(std::strerror(failed));
    }
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

absl::Status NoAnswer(const std::string& what, const absl::Status& why) {
  return absl::UnavailableError(absl::StrCat(
      "cannot look up ", what, " in the user directory of this machine: ", why.message(), "; try again"));
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

Users::Users(const RoleLists& lists, UserDirectory directory)
    : patience_(directory.patience),
      names_(directory.name_of ? std::move(directory.name_of) : LookUpName, directory.now),
      groups_(directory.groups_of ? std::move(directory.groups_of) : LookUpGroups, directory.now) {
  for (const auto& [uid, name] : {std::pair(geteuid(), &service_), std::pair(uid_t{0}, &root_)}) {
    absl::StatusOr<std::string> found = names_.Get(uid, kStartPatience, kStartPatience);
    if (found.ok()) {
      *name = *std::move(found);
    } else {
      status_.Update(NoAnswer(absl::StrCat("the name of the account with uid ", uid), found.status()));
    }
  }
  SetRoles(lists);
}

void Users::SetRoles(const RoleLists& lists) {
  RoleLists all = lists;
  all.admins.push_back(service_);
  all.admins.push_back(root_);
  absl::MutexLock lock(&mutex_);
  lists_ = std::move(all);
}

absl::StatusOr<std::string> Users::NameOf(uid_t uid) {
  // Waits also if there is an old name: the account may have been deleted, and its uid given to another user.
  absl::StatusOr<std::string> name = names_.Get(uid, patience_, patience_);
  if (name.ok()) return name;
  return NoAnswer(absl::StrCat("the name of the account with uid ", uid), name.status());
}

std::optional<Role> Users::RoleWith(const std::string& user, const std::vector<std::string>& groups) const {
  if (Matches(lists_.admins, user, groups)) return Role::kAdmin;
  if (Matches(lists_.users, user, groups)) return Role::kUser;
  if (Matches(lists_.viewers, user, groups)) return Role::kViewer;
  return std::nullopt;
}

bool Users::NeedsGroups(const std::string& user) const {
  absl::MutexLock lock(&mutex_);
  return (HasGroups(lists_.admins) || HasGroups(lists_.users) || HasGroups(lists_.viewers)) &&
         RoleWith(user, {}) != Role::kAdmin;
}

absl::StatusOr<Role> Users::RoleOf(const std::string& user) {
  std::vector<std::string> groups;
  if (NeedsGroups(user)) {
    // Does not wait if there is an old answer, because calls of RoleOf run on threads of gRPC.
    absl::StatusOr<std::vector<std::string>> found = groups_.Get(user, patience_, absl::ZeroDuration());
    if (!found.ok()) return NoAnswer(absl::StrCat("the groups of ", user), found.status());
    groups = *std::move(found);
  }
  absl::MutexLock lock(&mutex_);
  if (const std::optional<Role> role = RoleWith(user, groups)) return *role;
  return MakeError(absl::StatusCode::kPermissionDenied, "NO_ROLE",
                   absl::StrCat(user, " may not use this service; its operator can add ", user,
                                " to `users` or `viewers` in the configuration"));
}

}  // namespace scalelab::server
