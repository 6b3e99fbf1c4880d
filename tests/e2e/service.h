// A private scalelab service for a test, with its own directory, its own socket and real processes. Removes
// everything at the end.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace scalelab::e2e {

class Service {
 public:
  // `flags` are passed to every start of scalelabd, `env` is added to its environment.
  explicit Service(std::vector<std::string> flags = {}, std::map<std::string, std::string> env = {});
  ~Service();

  // Starts scalelabd and waits for its ready line. Returns its stderr if the line does not come.
  std::string Start();
  // Sends SIGTERM. Returns the exit status.
  int Stop();
  void Kill();  // sends SIGKILL

  // Runs `scalelab --server <this service> words...`.
  Output Run(std::vector<std::string> words, double seconds = 360) const;
  // Returns the command's JSON output; null, and a failed test, if it did not exit with 0.
  nlohmann::json Json(std::vector<std::string> words) const;

  // Writes a study file into the service's directory. Returns its path.
  std::string File(const std::string& name, const std::string& yaml) const;
  // Submits a study. Returns "studies/N".
  std::string Submit(const std::string& yaml, std::vector<std::string> more = {}) const;
  // Runs `study wait`, on slow machines for up to three times `seconds`. Returns its exit status.
  int WaitFor(const std::string& study, double seconds = 360) const;
  // Waits until a run of the study is RUNNING and has reported `steps` steps, at most `seconds`. Calls `meanwhile` between two
  // looks. Returns the run's name, or an empty string and a failure of the test if no run reported a step.
  std::string WaitUntilTraining(const std::string& study, int steps = 1, double seconds = 60,
                                const std::function<void()>& meanwhile = {}) const;

  nlohmann::json Runs(const std::string& study) const;    // a JSON array
  nlohmann::json Attempts(const std::string& run) const;  // a JSON array
  // Returns every point of a run's attempt as "rank,step,time,key,value" lines, without the header.
  std::vector<std::string> Points(const std::string& run, int attempt = 0) const;

  // Returns the processes of this service (workers, launchers, ranks), found by their environment
  // or command line.
  std::vector<pid_t> Processes() const;
  std::vector<pid_t> Workers() const;
  std::vector<pid_t> Ranks() const;  // processes of scalelab-trainer

  const std::string& dir() const { return dir_; }
  std::string data() const { return dir_ + "/data"; }
  std::string socket() const { return "unix:" + data() + "/scalelab.sock"; }
  // Returns the line with the addresses served: "ready unix:/path 127.0.0.1:1234".
  const std::string& ready() const { return ready_; }
  std::string log() const { return ReadFile(dir_ + "/scalelabd.log"); }
  Background* daemon() { return daemon_.get(); }

 protected:
  // Starts scalelabd with at most this many open files.
  void LimitFiles(int files) { files_ = files; }
  // Starts scalelabd under an account of this machine, which must be able to write to `data`; needs root.
  void RunDaemonAs(const std::string& account) { account_ = account; }
  void AddFlags(const std::vector<std::string>& flags) {
    flags_.insert(flags_.end(), flags.begin(), flags.end());
  }

 private:
  std::string dir_, ready_;
  std::string account_;  // account of scalelabd; empty: the account of this process
  std::vector<std::string> flags_;
  int files_ = 0;  // 0: the limit of this process
  std::map<std::string, std::string> env_;
  std::unique_ptr<Background> daemon_;
};

// Returns the path of a program of this build, for example "scalelabd".
std::string Program(const std::string& name);
// Like ProgramPath, but in a folder that all accounts may read. Copies the programs if other accounts may not
// read the folder of the build, for example below /root.
std::string ProgramForAll(const std::string& name);
// Returns the path of a file of the project, for example "deploy/studies/netpipe.yaml".
std::string SourceFile(const std::string& path);
// Returns the directory of the images that ship with the project.
std::string ShippedData();

// Compares the stored points of a study with its event files. Returns a sentence for each lost point of a
// finished run, each duplicate or unexpected point, and each attempt that was executed twice; empty if
// there are none.
std::vector<std::string> LostOrDoubled(const Service& service, const std::string& study);

// Returns the loss of each step as the mean over the ranks. If all ranks have equally many samples, this is
// the loss of the global batch.
std::vector<double> Losses(const Service& service, const nlohmann::json& run);
// Returns the largest deviation of a loss curve from a reference of the same length, relative
// to the reference.
double LargestDeviation(const std::vector<double>& losses, const std::vector<double>& reference);

// Returns the steps in the event file of one rank: "rank,step,key,value" for every step line, in order.
std::vector<std::string> StepsOfEventFile(const std::string& path, int rank);

}  // namespace scalelab::e2e
