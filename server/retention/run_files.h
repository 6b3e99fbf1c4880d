// The files of attempts, in the directories of this account and, through the agents, in those of users.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/attempt_files.h"
#include "scalelab/v1/agent.pb.h"
#include "server/scheduler/agent/agent_hub.h"

namespace scalelab::server {

// All calls block when a filesystem or an agent does not answer. Not thread-safe.
class RunFiles {
 public:
  // `hub` is null if no jobs run under the accounts of users. It must outlive this object.
  static absl::StatusOr<RunFiles> Open(const std::string& runs_dir, AgentHub* hub);

  // As AttemptFiles::Remove, but returns UNAVAILABLE if `over` returns true. If `directory` belongs to a
  // user, the agent of the user removes the files, in requests of at most two seconds each; `over` is called
  // between two requests. A dry run counts the files that the agent finds within two seconds. Returns
  // FAILED_PRECONDITION if the agent is not connected or refuses, and UNAVAILABLE if it does not answer, now
  // or in an earlier call; another object may continue later.
  absl::Status Remove(const std::string& directory, int64_t study_id, int64_t run_id,
                      const std::string& token, FilesOf what, bool dry_run, const std::function<bool()>& over,
                      FilesRemoved& removed);
  // As in AttemptFiles, for the directories of this account and of the users for whom Remove was called with this study.
  absl::StatusOr<bool> HasStudy(int64_t study_id);
  void RemoveEmptyStudy(int64_t study_id);

  // Returns the users whose agents were not connected or did not answer when files had to be removed.
  const std::set<std::string>& waiting() const { return waiting_; }
  // Returns whether files of the study wait for an agent.
  bool Waits(int64_t study_id) const { return waiting_studies_.contains(study_id); }

 private:
  RunFiles(AttemptFiles own, std::string runs_dir, AgentHub* hub)
      : own_(std::move(own)), runs_dir_(std::move(runs_dir)), hub_(hub) {}
  absl::StatusOr<v1::ServeRequest::Removed> Ask(const std::string& user, const std::string& directory,
                                                AgentRequest::Files files, bool dry_run);
  absl::StatusOr<v1::ServeRequest::Removed> AskAboutStudy(const std::string& user, int64_t study_id,
                                                          bool dry_run);

  AttemptFiles own_;
  const std::string runs_dir_;
  AgentHub* const hub_;
  std::map<int64_t, std::set<std::string>> users_;  // by study id
  std::set<std::string> waiting_;
  std::set<int64_t> waiting_studies_;
};

}  // namespace scalelab::server
