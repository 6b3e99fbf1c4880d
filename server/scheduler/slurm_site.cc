#include "server/scheduler/slurm_site.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/slurm_view.h"
#include "spdlog/spdlog.h"

namespace scalelab::server {

SlurmSite::SlurmSite(SlurmClient client, Options options)
    : client_(std::move(client)), options_(std::move(options)), settle_(options_.settle) {}

void SlurmSite::Start() {
  {
    absl::MutexLock lock(&mutex_);
    view_refreshed_ = options_.now();
  }
  const absl::StatusOr<ClusterView> view = View();
  RecordAnswer(view.status());
  if (!view.ok())
    spdlog::warn("Slurm does not answer; jobs are submitted when it answers again: {}",
                 std::string(view.status().message()));
}

Capacity SlurmSite::capacity() const {
  absl::MutexLock lock(&mutex_);
  if (site_ && site_->hides_nodes) return {};
  return CapacityOf(view_);
}

absl::StatusOr<ClusterView> SlurmSite::View() {
  absl::StatusOr<ClusterView> view = client_.View();
  if (!view.ok()) return view;
  absl::MutexLock lock(&mutex_);
  view_ = *view;
  return view;
}

void SlurmSite::RefreshView() {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = options_.now();
    if (now - view_refreshed_ <= options_.view_age) return;
    view_refreshed_ = now;
  }
  (void)View();
}

absl::Status SlurmSite::Fits(const JobRequest& request) {
  {
    absl::MutexLock lock(&mutex_);
    if (!site_ || site_->hides_nodes) return absl::OkStatus();
    if (CheckFits(view_, request).ok()) return absl::OkStatus();
  }
  const absl::StatusOr<ClusterView> view = View();
  return view.ok() ? CheckFits(*view, request) : absl::OkStatus();
}

void SlurmSite::RecordAnswer(const absl::Status& answer) {
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = options_.now();
    if (!answer.ok()) {
      unreachable_since_ = std::min(unreachable_since_, now);
      spdlog::debug("Slurm: {}", answer.ToString());
      return;
    }
    if (unreachable_since_ != absl::InfiniteFuture() && site_)
      spdlog::info("Slurm answers again after {}", absl::FormatDuration(now - unreachable_since_));
    unreachable_since_ = absl::InfiniteFuture();
    if (site_) return;
  }
  absl::StatusOr<SlurmClient::Site> site = client_.ReadSite();
  if (!site.ok()) return;  // the next answer retries
  spdlog::info("Slurm {} of cluster {}, {}", site->version, site->cluster,
               site->accounting ? "with accounting" : "without accounting");
  absl::MutexLock lock(&mutex_);
  if (options_.settle != absl::ZeroDuration()) settle_ = std::max(options_.settle, 2 * site->message_timeout);
  site_ = *std::move(site);
}

absl::Duration SlurmSite::Silence() const {
  absl::MutexLock lock(&mutex_);
  return std::max(options_.now() - unreachable_since_, absl::ZeroDuration());
}

absl::Duration SlurmSite::settle() const {
  absl::MutexLock lock(&mutex_);
  return settle_;
}

bool SlurmSite::known() const {
  absl::MutexLock lock(&mutex_);
  return site_.has_value();
}

bool SlurmSite::accounting() const {
  absl::MutexLock lock(&mutex_);
  return site_ && site_->accounting;
}

bool SlurmSite::private_jobs() const {
  absl::MutexLock lock(&mutex_);
  return !site_ || site_->private_jobs;
}

absl::Status NoAnswer(const SlurmSite& site, const absl::Status& error) {
  return absl::UnavailableError(absl::StrCat(
      "Slurm has not answered for ", absl::FormatDuration(absl::Trunc(site.Silence(), absl::Seconds(1))),
      ": ", error.message()));
}

}  // namespace scalelab::server
