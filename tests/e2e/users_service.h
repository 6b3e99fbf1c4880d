// A scalelab service on a development cluster that runs jobs under the accounts of their users: three users, and the coordinator
// as a fourth account without privileges.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/slurm_service.h"

namespace scalelab::e2e {

class UsersService : public SlurmService {
 public:
  // Returns the accounts of the users, which every Debian system has.
  static const std::vector<std::string>& Users();
  // Returns why such a service cannot run on this machine, in a sentence; empty if it can. `options` are
  // options of `deploy/dev-cluster check`.
  static std::string Unavailable(const std::vector<std::string>& options = {});

  // `cluster` must be running and must outlive this object.
  explicit UsersService(const DevCluster& cluster, const std::vector<std::string>& flags = {});
  ~UsersService();  // also ends the agents that commands of the users have started

  // Runs `scalelab` as the user. The functions of the base class run it as root, who is an admin.
  Output RunAs(const std::string& user, std::vector<std::string> words, double seconds = 120) const;
  nlohmann::json JsonAs(const std::string& user, std::vector<std::string> words) const;
  // Submits a study as the user. Returns its name; `said` gets the messages.
  std::string SubmitAs(const std::string& user, const std::string& yaml, std::string* said = nullptr) const;

  // Starts an agent that the test controls. While one is connected, the command line starts none.
  std::unique_ptr<Background> StartAgent(const std::string& user) const;
  // Returns the file with the log of StartAgent.
  std::string AgentLog(const std::string& user) const { return dir() + "/agent-" + user + ".log"; }
  // Waits until an agent has connected since its log was begun.
  bool AgentConnects(const std::string& user) const;
  // Returns the directory with the directories of the users.
  std::string RunsDir() const { return dir() + "/runs"; }

 private:
  std::string Address() const { return "unix:" + dir() + "/run/sock"; }
  std::string Home(const std::string& user) const { return dir() + "/home-" + user; }
  std::map<std::string, std::string> EnvironmentOf(const std::string& user) const;
  void Make(const std::string& folder, const std::string& account) const;

  const DevCluster& cluster_;
};

}  // namespace scalelab::e2e
