#include "worker/options.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>

#include "CLI/CLI.hpp"
#include "absl/strings/escaping.h"
#include "catalog/installation.h"
#include "worker/node_info.h"

extern char** environ;

namespace scalelab::worker {

namespace {

constexpr char kSecretVariable[] = "SCALELAB_ALLOCATION_SECRET";
constexpr int kInputLimitMs = 60'000;  // srun forwards its standard input when all tasks have started

// Reads the first line of standard input. Returns an empty string if there is none within the time limit.
std::string ReadInputLine() {
  std::string line;
  char c = 0;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  while (!isatty(STDIN_FILENO) && poll(&input, 1, kInputLimitMs) > 0 && read(STDIN_FILENO, &c, 1) == 1 &&
         c != '\n')
    line += c;
  return line;
}

// Takes the allocation's secret from the environment, or else from standard input. Overwrites the variable's value
// in memory, because ranks can read /proc/<pid>/environ of a process of the same user.
std::string TakeSecret() {
  char* value = getenv(kSecretVariable);
  if (value == nullptr) return ReadInputLine();
  std::string secret = value;
  explicit_bzero(value, secret.size());
  unsetenv(kSecretVariable);
  return secret;
}

constexpr char kDescription[] = "Runs the attempts that a scalelab coordinator assigns to this node.";

void Define(CLI::App& app, WorkerOptions& options, double& give_up_after, int64_t& output_mib) {
  app.set_version_flag("--version", std::string("scalelab-worker ") + SCALELAB_VERSION);
  app.add_option("--server", options.coordinator.servers,
                 "Addresses of the coordinator, separated by commas: unix:PATH, HOST:PORT (TLS) or "
                 "insecure:HOST:PORT")
      ->required()
      ->delimiter(',');
  app.add_option("--allocation", options.coordinator.allocation, "Token of the allocation")->required();
  app.add_option_function<std::string>(
      "--certificate",
      [&options](const std::string& text) {
        if (!absl::Base64Unescape(text, &options.coordinator.certificate))
          throw CLI::ValidationError("--certificate", "the value is not base64");
      },
      "Certificate that TLS trusts, PEM in base64 (default: the authorities of the system)");
  app.add_option("--node", options.node, "Name of this node in the scheduler")->capture_default_str();
  app.add_option("--node-index", options.node_index, "Index of this node in the allocation, from 0")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lock", options.lock_file, "Lock file, held as long as a process of this worker is alive");
  app.add_option("--launcher", options.launcher,
                 "Launcher of the ranks: mpirun (this machine only) or srun (Slurm job)")
      ->transform(CLI::Transformer(
          std::map<std::string, Launcher>{{"mpirun", Launcher::kMpirun}, {"srun", Launcher::kSrun}}))
      ->default_str("mpirun");
  app.add_flag("--bind", options.bind,
               "Pin each rank to its own cores; for a job with exclusive use of this machine");
  app.add_option("--give-up-after", give_up_after,
                 "Seconds without an answer from the coordinator and without a running attempt until the "
                 "worker exits")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--trainer", options.trainer_program, "Trainer program of the native engines")
      ->capture_default_str();
  app.add_option("--adapters", options.adapters, "Directory with the adapters of Python frameworks")
      ->capture_default_str();
  app.add_option("--output-limit", output_mib,
                 "Limit in MiB for each of a rank's two output files; longer files are truncated")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
}

}  // namespace

void VisitCommandLine(const std::function<void(const CLI::App&)>& visit) {
  WorkerOptions options;  // without the defaults that depend on the machine
  double give_up_after = 3600;
  int64_t output_mib = options.output_limit >> 20;
  CLI::App app(kDescription, "scalelab-worker");
  Define(app, options, give_up_after, output_mib);
  visit(app);
}

bool ParseOptions(int argc, char** argv, WorkerOptions* options, int* exit_code) {
  std::error_code error;
  options->own_program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  options->rank_program = CompanionProgram(options->own_program, "scalelab-rank");
  options->trainer_program = CompanionProgram(options->own_program, "scalelab-trainer");
  options->adapters = AdaptersDirectory(options->own_program);
  options->node = HostName();
  double give_up_after = 3600;
  int64_t output_mib = options->output_limit >> 20;
  CLI::App app(kDescription, "scalelab-worker");
  Define(app, *options, give_up_after, output_mib);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return false;
  }
  options->give_up_after = absl::Seconds(give_up_after);
  options->output_limit = output_mib << 20;
  options->coordinator.secret = TakeSecret();
  if (!options->coordinator.secret.empty()) return true;
  fprintf(
      stderr,
      "scalelab-worker: no secret in the variable %s or the first line of standard input; the coordinator "
      "provides it when it starts workers\n",
      kSecretVariable);
  *exit_code = 2;
  return false;
}

Frameworks NewFrameworks(const WorkerOptions& options) {
  Frameworks frameworks;
  frameworks.push_back(NewNativeFramework(options.trainer_program));
  frameworks.push_back(NewPythonFramework(options.adapters, options.trainer_program));
  frameworks.push_back(NewCustomFramework());
  return frameworks;
}

LaunchHost NewLaunchHost(const WorkerOptions& options) {
  LaunchHost host;
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  host.environment = InheritedEnvironment(environment);
  host.launcher = options.launcher;
  host.rank_program = options.rank_program;
  host.cpus = ReadNodeInfo().cpus();
  if (options.bind) host.own_cpus = AllowedCpus();
  host.root = geteuid() == 0;
  host.single_copy = SingleCopyAllowed();
  return host;
}

}  // namespace scalelab::worker
