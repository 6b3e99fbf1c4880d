// A private scalelab service for a test: own directory, own socket, real processes; nothing of it stays.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace scalelab::e2e {

class Service {
 public:
  // `flags` are added to every start of scalelabd, `env` to its environment.
  explicit Service(std::vector<std::string> flags = {}, std::map<std::string, std::string> env = {});
  ~Service();

  // Starts scalelabd and waits for its ready line; its words on stderr when it does not come.
  std::string Start();
  // SIGTERM, then the exit status.
  int Stop();
  void Kill();  // SIGKILL

  // `scalelab --server <this> words...`.
  Output Run(std::vector<std::string> words, double seconds = 120) const;
  // Its JSON; null (and a failed test) when it did not exit with 0.
  nlohmann::json Json(std::vector<std::string> words) const;

  // A study file in the service's directory.
  std::string File(const std::string& name, const std::string& yaml) const;
  // Submits and returns "studies/N".
  std::string Submit(const std::string& yaml, std::vector<std::string> more = {}) const;
  // `study wait`; the exit status.
  int WaitFor(const std::string& study, double seconds = 120) const;
  // Waits until some run of the study is RUNNING and has reported `steps` steps; its name.
  std::string WaitUntilTraining(const std::string& study, int steps = 1) const;

  nlohmann::json Runs(const std::string& study) const;    // array
  nlohmann::json Attempts(const std::string& run) const;  // array
  // Every point of a run's attempt as "rank,step,time,key,value" lines, without the header.
  std::vector<std::string> Points(const std::string& run, int attempt = 0) const;

  // Processes of this service (workers, launchers, ranks), by what their environment or command line says.
  std::vector<pid_t> Processes() const;
  std::vector<pid_t> Workers() const;
  std::vector<pid_t> Ranks() const;  // scalelab-trainer processes

  const std::string& dir() const { return dir_; }
  std::string data() const { return dir_ + "/data"; }
  std::string socket() const { return "unix:" + data() + "/scalelab.sock"; }
  std::string log() const { return ReadFile(dir_ + "/scalelabd.log"); }
  Background* daemon() { return daemon_.get(); }

 protected:
  void AddFlags(const std::vector<std::string>& flags) {
    flags_.insert(flags_.end(), flags.begin(), flags.end());
  }

 private:
  std::string dir_;
  std::vector<std::string> flags_;
  std::map<std::string, std::string> env_;
  std::unique_ptr<Background> daemon_;
};

// Path of a program that was built, for example "scalelabd".
std::string Program(const std::string& name);
// The images that ship with the project.
std::string ShippedData();

// What a study's stored points and its event files say against each other, a sentence for each point of a
// finished run that is lost, each that is doubled or invented, each attempt that was executed twice; empty
// when all is well.
std::vector<std::string> LostOrDoubled(const Service& service, const std::string& study);

// Loss of each step, mean over the ranks: with equal shares this is the loss of the global batch.
std::vector<double> Losses(const Service& service, const nlohmann::json& run);
// The largest deviation of a loss curve from another of the same length, relative to that one.
double LargestDeviation(const std::vector<double>& losses, const std::vector<double>& reference);

// What one rank's event file says: "rank,step,key,value" of every step line, in order.
std::vector<std::string> StepsOfEventFile(const std::string& path, int rank);

}  // namespace scalelab::e2e
