// Measures the time and memory of a user's commands for a study with three parameters of its own on 1
// to 8 ranks.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/daemon.h"
#include "tests/bench/service_bench.h"
#include "tests/e2e/process.h"

extern char** environ;

namespace scalelab::bench {
namespace {

constexpr int kRounds = 5;

// A script that writes the steps of rank 0 and the finish events of all ranks. The throughput depends
// on all parameters.
constexpr char kScript[] = R"(exec >> "$SCALELAB_EVENTS"
if [ "$RANK" = 0 ]; then
  for i in 1 2 3 4 5 6 7 8 9 10; do
    echo "{\"time\":$i,\"event\":\"step\",\"step\":$i,\"metrics\":{\"train/loss\":$i.5}}"
  done
  echo "{\"time\":11,\"event\":\"finish\",\"metrics\":{\"run/throughput\":$((WORLD_SIZE * 100 + SCALELAB_PARAM_WIDTH + $$ % 10))}}"
else
  echo '{"time":11,"event":"finish"}'
fi
)";

void AddAxis(v1::StudySpec& spec, const std::string& key, int values,
             const std::function<double(int)>& value) {
  auto* axis = spec.add_matrix();
  axis->set_key(key);
  for (int i = 0; i < values; ++i) axis->add_values()->set_number_value(value(i));
}

// 400 cells: 1 to 8 ranks, and 5 x 5 x 2 values of three parameters.
v1::StudySpec Study(const std::string& script, int repeats) {
  v1::StudySpec spec = CommandStudy({"sh", script}, repeats);
  spec.mutable_fixed()->mutable_fields()->erase("ranks");
  AddAxis(spec, "ranks", 8, [](int i) { return i + 1; });
  AddAxis(spec, "params.dropout", 5, [](int i) { return 0.1 * i; });
  AddAxis(spec, "params.width", 5, [](int i) { return 16 << i; });
  AddAxis(spec, "params.depth", 2, [](int i) { return i + 2; });
  return spec;
}

struct Cost {
  double seconds = 0, megabytes = 0;  // megabytes: largest resident memory
  bool ok = false;
};

// Runs the client, with its output in a file.
Cost RunClient(const std::vector<std::string>& arguments, const std::string& output) {
  std::vector<std::string> argv = {SCALELAB_BIN_DIR "/scalelab"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : argv) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0600);
  pid_t pid = 0;
  const double begin = e2e::Now();
  const bool started = posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  if (!started) return {};
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  return {e2e::Now() - begin, static_cast<double>(usage.ru_maxrss) * 1024 / 1e6, status == 0};
}

// Waits for the end of the study. Returns whether all runs have succeeded.
bool AwaitEnd(const Daemon& daemon, const std::string& study) {
  v1::WatchStudyRequest request;
  request.set_name(study);
  const auto context = Within(std::chrono::minutes(10));
  const auto watch = v1::StudyService::NewStub(daemon.Connect())->WatchStudy(context.get(), request);
  v1::WatchStudyResponse state;
  while (watch->Read(&state)) {
  }
  return watch->Finish().ok() && state.study().state() == v1::Study::SUCCEEDED;
}

// Appends the median time and the largest memory of a command.
bool Measure(const std::string& name, const std::vector<std::string>& arguments, const std::string& output,
             std::vector<Figure>& figures) {
  std::vector<double> seconds;
  double megabytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Cost cost = RunClient(arguments, output);
    if (!cost.ok) {
      std::cerr << "scalelab-bench: failed: scalelab " << absl::StrJoin(arguments, " ") << "\n";
      return false;
    }
    seconds.push_back(cost.seconds);
    megabytes = std::max(megabytes, cost.megabytes);
  }
  figures.push_back({absl::StrCat("parameters/", name, "/time"), 1e3 * Median(seconds), "ms"});
  figures.push_back({absl::StrCat("parameters/", name, "/memory"), megabytes, "MB"});
  return true;
}

// Returns the formats that `study export` can write here. Parquet needs the Python client.
std::vector<std::string> ExportFormats() {
  std::vector<std::string> formats = {"csv", "json", "sqlite"};
  const e2e::Output probe = e2e::RunProgram({"python3", "-c", "import pandas, pyarrow, scalelab.__main__"});
  if (probe.code == 0) {
    formats.emplace_back("parquet");
    return formats;
  }
  // The last line of Python's message names the missing package.
  const absl::string_view printed = absl::StripAsciiWhitespace(probe.err);
  const absl::string_view reason = printed.substr(printed.rfind('\n') + 1);
  std::cerr << "scalelab-bench: parameters/export_parquet is not measured: "
            << (reason.empty() ? "python3 cannot be started" : reason)
            << "; install python3 with pandas and pyarrow, run deploy/python-client, and set "
               "PYTHONPATH=build/python/site\n";
  return formats;
}

}  // namespace

std::vector<Figure> RunParametersBench(const BenchOptions& options) {
  const std::string script = options.directory + "/script.sh", output = options.directory + "/output";
  std::ofstream(script) << kScript;
  const int repeats = std::max(1, static_cast<int>(5 * options.scale));
  const Daemon daemon(options.directory, {"--local-slots", "8"});
  const double begin = e2e::Now();
  const std::string study = daemon.Submit(Study(script, repeats));
  if (!AwaitEnd(daemon, study)) {
    std::cerr << "scalelab-bench: not every run of the study succeeded\n";
    return {};
  }
  std::vector<Figure> figures = {
      {absl::StrCat("parameters/", 400 * repeats, "_runs"), e2e::Now() - begin, "s"}};
  const std::string server = daemon.address(), some = "params.dropout>=0.2 and ranks=4";
  std::vector<std::pair<std::string, std::vector<std::string>>> commands = {
      {"list", {"run", "list", "last"}},
      {"list_json", {"run", "list", "last", "-o", "json"}},
      {"filter", {"run", "list", "last", "--where", some}},
      {"sort", {"run", "list", "last", "--sort", "-throughput", "--limit", "20"}},
      {"curve", {"curve", "last"}},
      {"curve_svg", {"curve", "last", "--file", options.directory + "/curve.svg"}}};
  for (const std::string& format : ExportFormats()) {
    commands.emplace_back("export_" + format,
                          std::vector<std::string>{"study", "export", "last", "--format", format, "-o",
                                                   options.directory + "/export_" + format});
  }
  for (const auto& [name, arguments] : commands) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--server", server});
    if (!Measure(name, all, output, figures)) return {};
  }
  figures.push_back({"parameters/server/memory", daemon.Memory(), "MB"});
  return figures;
}

}  // namespace scalelab::bench
