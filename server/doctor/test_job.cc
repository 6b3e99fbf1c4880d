#include "server/doctor/test_job.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "server/doctor/node_checks.h"
#include "server/doctor/program_checks.h"
#include "server/rpc/socket.h"

namespace scalelab::server::doctor {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(500);
// Time until the output of an ended job is visible on this machine, because NFS caches file attributes.
constexpr absl::Duration kOutputDelay = absl::Seconds(10);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Listens on an address. Returns the descriptor, or -1 on an error, for example if another
// process listens there.
int Listen(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string name(absl::StripSuffix(absl::StripPrefix(host, "["), "]"));
  if (getaddrinfo(name.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return -1;
  const absl::Cleanup free_it = [found] { freeaddrinfo(found); };
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, 8) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

// Waits until the job has ended. Returns errors and warnings.
Findings WaitForJob(const Run& run, const TestJob& job, const std::string& id) {
  std::string state;
  // A query takes up to the timeout of `run` if the controller does not answer, so the limit includes the queries.
  for (const absl::Duration begin = job.now(); job.now() - begin < job.limit; job.sleep(kPollInterval)) {
    const absl::StatusOr<CommandResult> queue =
        run({"squeue", "--all", "--noheader", "--jobs=" + id, "--states=all", "--format=%T (%r) %N"}, "");
    if (!queue.ok() || (!queue->ok() && !absl::StrContains(queue->err, "Invalid job id"))) {
      state = absl::StrCat("unknown: ", WhyFailed(queue));
    } else {
      state = std::string(absl::StripAsciiWhitespace(queue->out));
      const std::string word = state.substr(0, state.find(' '));
      const bool waits =
          word == "PENDING" || word == "CONFIGURING" || word == "RUNNING" || word == "COMPLETING";
      if (!waits) return {};
    }
  }
  (void)run({"scancel", id}, "");
  return {Warning("node",
                  absl::StrCat("the test job did not end in ", absl::FormatDuration(job.limit),
                               "; its state was ", state),
                  "try again when a node is free; squeue shows what Slurm waits for")};
}

// Submits the script and waits for its output. Returns errors and warnings.
Findings RunInSlurm(const Run& run, const TestJob& job, const std::string& script,
                    const std::string& directory, std::string* output) {
  std::vector<std::string> argv = {
      "sbatch",     "--parsable", "--job-name=scalelab-doctor",        "--nodes=1",
      "--ntasks=1", "--time=2",   "--output=" + directory + "/job.out"};
  const std::vector<std::string> more = SbatchArguments(job.sbatch_options);
  argv.insert(argv.end(), more.begin(), more.end());
  const absl::StatusOr<CommandResult> submitted = run(argv, script);
  if (!submitted.ok() || !submitted->ok()) {
    return {Error("node", absl::StrCat("the test job was refused: ", WhyFailed(submitted)),
                  "set sbatch_option to what this account needs: account=NAME, qos=NAME")};
  }
  const std::vector<std::string> words = absl::StrSplit(submitted->out, absl::ByAnyChar(";\n"));
  const std::string& id = words.front();
  if (Findings waited = WaitForJob(run, job, id); !waited.empty()) return waited;
  for (absl::Duration waited; waited < kOutputDelay; waited += kPollInterval) {
    *output = ReadFile(directory + "/job.out");
    if (absl::StrContains(*output, "end yes")) return {};
    job.sleep(kPollInterval);
  }
  if (!output->empty()) return {};
  return {Error("node", absl::StrCat("job ", id, " has ended, and its output is not in ", directory),
                "set runs to a directory that all nodes have under the same path and this account may write "
                "to; the log of "
                "slurmd on the node has more")};
}

Findings RunOnThisMachine(const Run& run, const std::string& script, std::string* output) {
  const absl::StatusOr<CommandResult> ended = run({"bash", "-s"}, script);
  if (!ended.ok() || !ended->ok())
    return {Error("node", absl::StrCat("the test script failed: ", WhyFailed(ended)),
                  "install bash and coreutils")};
  *output = ended->out;
  return {};
}

}  // namespace

Findings RunTestJob(const Run& run, const TestJob& job) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;  // the innermost first
  for (std::filesystem::path at = job.runs_dir; !std::filesystem::exists(at, error); at = at.parent_path())
    missing.push_back(at);
  std::filesystem::create_directories(job.runs_dir, error);
  std::string directory = job.runs_dir + "/doctor-XXXXXX";
  const bool created = mkdtemp(directory.data()) != nullptr;
  const std::string reason = std::strerror(errno);
  const absl::Cleanup remove = [&] {
    if (created) std::filesystem::remove_all(directory, error);
    // Removes only empty directories.
    for (const std::filesystem::path& path : missing) std::filesystem::remove(path, error);
  };
  if (!created) {
    return {Error("node", absl::StrCat("cannot create a directory in ", job.runs_dir, ": ", reason),
                  job.as_user
                      ? absl::StrCat("let every user create a directory there: chmod 1777 ", job.runs_dir)
                      : "run this as the account of the service")};
  }

  NodeExpectation expected;
  expected.worker_program = job.worker_program;
  expected.version = job.version;
  expected.runs_dir = job.runs_dir;
  expected.directory = directory;
  expected.word = directory.substr(directory.size() - 6);
  expected.user = geteuid();
  std::ofstream(directory + "/word") << expected.word << "\n";
  int listener = -1;
  if (const absl::StatusOr<Address> address = ParseAddress(job.worker_server); address.ok()) {
    expected.server_host = address->host;
    expected.server_port = address->port;
    listener = Listen(address->host, address->port);
  }
  const absl::Cleanup stop = [listener] {
    if (listener >= 0) close(listener);
  };

  const absl::Time submitted = absl::Now();
  const std::string script = NodeScript(expected);
  std::string output;
  const Findings failed =
      job.slurm ? RunInSlurm(run, job, script, directory, &output) : RunOnThisMachine(run, script, &output);
  if (!failed.empty()) return failed;
  return JudgeNode(output, expected, submitted, absl::Now());
}

}  // namespace scalelab::server::doctor
