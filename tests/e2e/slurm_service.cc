#include "tests/e2e/slurm_service.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace scalelab::e2e {
namespace {

// Returns a port that is currently free on this address. It stays free, because only this cluster
// uses the address.
int FreePort(const std::string& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  socklen_t size = sizeof name;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0;
  close(fd);
  return bound ? ntohs(name.sin_port) : 0;
}

std::map<std::string, std::string> Environment(const DevCluster& cluster) {
  std::map<std::string, std::string> env = cluster.Env();
  if (const char* path = getenv("PATH")) env.emplace("PATH", path);
  return env;
}

std::vector<std::string> Flags(const DevCluster& cluster, std::vector<std::string> more) {
  std::vector<std::string> flags = {
      "--scheduler", "slurm",    "--poll-interval",
      "2",           "--listen", absl::StrCat(cluster.address(), ":", FreePort(cluster.address()))};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

SlurmService::SlurmService(const DevCluster& cluster, std::vector<std::string> flags)
    : Service(Flags(cluster, std::move(flags)), Environment(cluster)), cluster_(cluster) {
  AddFlags({"--listen", socket()});
}

std::vector<std::string> SlurmService::JobRecords() const {
  return absl::StrSplit(ReadFile(cluster_.dir() + "/jobcomp.log"), '\n', absl::SkipEmpty());
}

std::vector<std::string> SlurmService::LiveJobRecords() const {
  const std::string jobs = cluster_.Run({"squeue", "-h", "-o", "JobId=%i UserId=%u(%U) Name=%j "}).out;
  return absl::StrSplit(jobs, '\n', absl::SkipEmpty());
}

std::vector<std::string> SlurmService::LiveJobs() const {
  return absl::StrSplit(cluster_.Run({"squeue", "-h", "-o", "%i"}).out, '\n', absl::SkipEmpty());
}

std::vector<std::string> SlurmService::ProcessesOn(int i) const {
  std::vector<std::string> processes;
  const std::string all = cluster_.Control({"node", absl::StrCat(i), "ps"}).out;
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    if (!absl::StrContains(line, "/node-init ") && !absl::StrContains(line, "\tslurmd "))
      processes.emplace_back(line);
  }
  return processes;
}

pid_t SlurmService::FindOn(int i, const std::string& program) const {
  for (const std::string& line : ProcessesOn(i)) {
    // Columns: pid, memory, command line. A command line with line breaks continues on lines
    // without these columns.
    const std::vector<std::string> columns = absl::StrSplit(line, absl::MaxSplits('\t', 2));
    if (columns.size() < 3) continue;
    const std::string file = columns[2].substr(0, columns[2].find(' '));
    if (file.substr(file.rfind('/') + 1) == program) return std::atoi(columns[0].c_str());
  }
  return 0;
}

std::string SlurmService::LeftBehind(int nodes, double seconds) const {
  std::string left;
  Eventually(
      [&] {
        left.clear();
        for (const std::string& job : LiveJobs()) absl::StrAppend(&left, "job ", job, "\n");
        for (int i = 1; i <= nodes; ++i) {
          for (const std::string& line : ProcessesOn(i))
            absl::StrAppend(&left, cluster_.Node(i), " ", line, "\n");
        }
        return left.empty();
      },
      seconds);
  return left;
}

std::string ClusterStudy(const std::string& axes, int repeats, int steps, const std::string& more,
                         const std::string& model) {
  return absl::StrCat(
      "study: cluster\nfixed: {model: ", model, ", dataset: cifar10, data_dir: ", ShippedData(),
      ", epochs: 1000, max_steps: ", steps, "}\nmatrix: {", axes, "}\nrepeats: ", repeats,
      "\nseed: 11\nscaling: {mode: strong, global_batch: 32}\nmeasure: {evaluate: false}\n", more);
}

}  // namespace scalelab::e2e
