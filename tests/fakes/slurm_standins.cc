#include "tests/fakes/slurm_standins.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace scalelab::server {
namespace fs = std::filesystem;

SlurmStandins::SlurmStandins(int slots) : path_(getenv("PATH")) {
  std::string directory = testing::TempDir() + "slurm-standins-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) ADD_FAILURE() << "cannot make " << directory;
  directory_ = directory;
  for (const char* program :
       {"sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct", "srun", "run-job"}) {
    fs::create_symlink(SLURM_STANDIN, directory_ + "/" + program);
  }
  Write("slots", std::to_string(slots));
  Write("next", "1");
  Write("environment", "");
  Write("accounting", "none");
  Write("calls", "");
  setenv("PATH", absl::StrCat(directory_, ":", path_).c_str(), 1);
  options_.script.runs_dir = directory_ + "/runs";
  options_.script.worker_program = FAKE_WORKER_PROGRAM;
  options_.script.server_address = "login:50051";
  options_.command_timeout = absl::Seconds(20);
  options_.now = [this] { return Now(); };
  Restart();
}

SlurmStandins::~SlurmStandins() {
  scheduler_.reset();
  std::error_code error;
  for (const auto& job : fs::directory_iterator(directory_ + "/jobs", error)) {
    const pid_t pid = atoi(Read("jobs/" + job.path().filename().string() + "/pid").c_str());
    const bool runs = Read("jobs/" + job.path().filename().string() + "/state") == "RUNNING";
    if (pid > 0 && runs) kill(-pid, SIGKILL);
  }
  setenv("PATH", path_.c_str(), 1);
  fs::remove_all(directory_, error);
}

void SlurmStandins::Restart() {
  scheduler_.reset();
  absl::StatusOr<std::unique_ptr<Scheduler>> scheduler = NewSlurmScheduler(options_);
  ASSERT_TRUE(scheduler.ok()) << scheduler.status();
  scheduler_ = *std::move(scheduler);
}

void SlurmStandins::Write(const std::string& file, const std::string& text) const {
  std::ofstream(directory_ + "/" + file, std::ios::trunc) << text << (text.empty() ? "" : "\n");
}

std::string SlurmStandins::Read(const std::string& file) const {
  std::ifstream stream(directory_ + "/" + file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void SlurmStandins::Lie(const std::string& program, const std::string& lie) {
  const std::string file = directory_ + "/lie." + program;
  if (lie.empty()) {
    fs::remove(file);
  } else {
    Write("lie." + program, lie);
  }
}

int SlurmStandins::Calls(const std::string& program) const {
  std::ifstream stream(directory_ + "/calls");
  int calls = 0;
  for (std::string line; std::getline(stream, line);) calls += absl::StartsWith(line, program + " ");
  return calls;
}

int SlurmStandins::Jobs() const { return atoi(Read("next").c_str()) - 1; }

int SlurmStandins::Started() const {
  int started = 0;
  std::error_code error;
  for (const auto& job : fs::directory_iterator(directory_ + "/jobs", error)) {
    started += Read("jobs/" + job.path().filename().string() + "/nodes") != "";
  }
  return started;
}

void SlurmStandins::Forget(const std::string& id) { fs::remove_all(directory_ + "/jobs/" + id); }

void SlurmStandins::Appear() {
  fs::create_directories(directory_ + "/jobs");
  for (const auto& job : fs::directory_iterator(directory_ + "/late"))
    fs::rename(job.path(), directory_ + "/jobs/" + job.path().filename().string());
}

void SlurmStandins::set_field(const std::string& id, const std::string& field,
                              const std::string& value) const {
  std::ofstream(directory_ + "/jobs/" + id + "/" + field, std::ios::trunc) << value;
}

JobRequest SlurmStandins::Request(const std::string& token, int ranks) const {
  JobRequest request;
  request.token = token;
  request.secret = "secret-of-" + token;
  request.study = "a-study";
  request.ranks_per_node = ranks;
  return request;
}

JobStatus SlurmStandins::Status(const std::string& token) {
  const absl::StatusOr<std::vector<JobStatus>> statuses = scheduler_->Poll({token});
  if (!statuses.ok() || statuses->size() != 1) {
    ADD_FAILURE() << statuses.status();
    return {};
  }
  return statuses->front();
}

}  // namespace scalelab::server
