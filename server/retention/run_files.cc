#include "server/retention/run_files.h"

#include "absl/strings/str_cat.h"
#include "server/scheduler/agent/agent_scheduler.h"

namespace scalelab::server {
namespace {

// The agent works for two seconds, and longer only if its filesystem hangs.
constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int kMaxParts = 300;                  // requests for one directory
constexpr int64_t kMostInAnAnswer = 1LL << 50;  // avoids overflows of sums

absl::Status Interrupted(const std::string& directory) {
  return absl::UnavailableError(absl::StrCat("the removal of ", directory, " is not complete"));
}

}  // namespace

absl::StatusOr<RunFiles> RunFiles::Open(const std::string& runs_dir, AgentHub* hub) {
  absl::StatusOr<AttemptFiles> own = AttemptFiles::Open(runs_dir);
  if (!own.ok()) return own.status();
  return RunFiles(*std::move(own), runs_dir, hub);
}

absl::Status RunFiles::Remove(const std::string& directory, int64_t study_id, int64_t run_id,
                              const std::string& token, FilesOf what, bool dry_run,
                              const std::function<bool()>& over, FilesRemoved& removed) {
  const std::string user = hub_ == nullptr ? "" : UserOfDirectory(runs_dir_, directory);
  if (user.empty()) {
    const absl::Status status = own_.Remove(directory, study_id, run_id, token, what, dry_run, removed, over);
    return absl::IsCancelled(status) ? Interrupted(directory) : status;
  }
  users_[study_id].insert(user);
  const auto wait = [&](const absl::Status& why) {
    waiting_.insert(user);
    waiting_studies_.insert(study_id);
    return why;
  };
  // If an earlier request to the agent of this user failed, leave the user's other files to the next removal.
  // Otherwise each of them would wait for an agent that does not answer, and delay the files of other users.
  if (waiting_.contains(user))
    return wait(absl::UnavailableError(absl::StrCat("the agent of ", user, " did not answer before")));
  if (const absl::Status connected = hub_->Check(user); !connected.ok()) return wait(connected);
  const auto files =
      what == FilesOf::kLogs ? AgentRequest::Files::kRemoveLogs : AgentRequest::Files::kRemoveEverything;
  for (int part = 0; part < kMaxParts; ++part) {
    const auto answer = Ask(user, directory, files, dry_run);
    if (absl::IsUnavailable(answer.status())) return wait(answer.status());
    if (!answer.ok()) return answer.status();
    removed.directories += answer->directories();
    removed.files += answer->files();
    removed.bytes += answer->bytes();
    // The directory exists, although not all of its files were counted.
    if (dry_run && answer->incomplete() && answer->directories() == 0) ++removed.directories;
    if (!answer->why_left().empty()) {
      ++removed.left;
      removed.why_left = answer->why_left();
    }
    if (!answer->incomplete() || dry_run) return absl::OkStatus();
    if (over()) return Interrupted(directory);
  }
  return wait(absl::UnavailableError(absl::StrCat("the removal of ", directory, " takes too long")));
}

absl::StatusOr<bool> RunFiles::HasStudy(int64_t study_id) {
  absl::StatusOr<bool> present = own_.HasStudy(study_id);
  if (!present.ok() || *present) return present;
  for (const std::string& user : users_[study_id]) {
    const auto answer = AskAboutStudy(user, study_id, /*dry_run=*/true);
    if (!answer.ok()) return answer.status();
    if (answer->has_study()) return true;
  }
  return false;
}

void RunFiles::RemoveEmptyStudy(int64_t study_id) {
  own_.RemoveEmptyStudy(study_id);
  for (const std::string& user : users_[study_id]) (void)AskAboutStudy(user, study_id, /*dry_run=*/false);
}

absl::StatusOr<v1::ServeRequest::Removed> RunFiles::AskAboutStudy(const std::string& user, int64_t study_id,
                                                                  bool dry_run) {
  return Ask(user, absl::StrCat(DirectoryOfUser(runs_dir_, user), "/", study_id),
             AgentRequest::Files::kRemoveEmptyStudy, dry_run);
}

absl::StatusOr<v1::ServeRequest::Removed> RunFiles::Ask(const std::string& user, const std::string& directory,
                                                        AgentRequest::Files files, bool dry_run) {
  AgentRequest request;
  request.directory = directory;
  request.files = files;
  request.dry_run = dry_run;
  request.timeout = kTimeout;
  const absl::StatusOr<CommandResult> result = hub_->Ask(user, request);
  if (!result.ok()) return result.status();
  if (!result->lost.empty())
    return absl::UnavailableError(absl::StrCat("cannot remove files in ", directory, ": ", result->lost));
  v1::ServeRequest::Removed removed;
  if (!removed.ParseFromString(result->out) || removed.directories() < 0 || removed.directories() > 1 ||
      removed.files() < 0 || removed.files() > kMostInAnAnswer || removed.bytes() < 0 ||
      removed.bytes() > kMostInAnAnswer)
    return absl::UnavailableError(absl::StrCat("the agent of ", user, " has sent an invalid answer"));
  return removed;
}

}  // namespace scalelab::server
