#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "scalelab/v1/study.grpc.pb.h"
#include "tests/bench/bench_rows.h"
#include "tests/bench/daemon.h"
#include "tests/bench/service_bench.h"

namespace scalelab::bench {
namespace {

constexpr char kPeer[] = "hyperqueue==0.27.0";
constexpr int kRounds = 3;
constexpr double kTarget = 3;

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

// Returns the runs per second from the first assignment to the durable end of the study; 0 if a run has failed.
double RunsPerSecond(const std::string& directory, const std::string& script, int runs) {
  const Daemon daemon(directory, {"--local-slots", "1"});
  v1::WatchStudyRequest request;
  request.set_name(daemon.Submit(CommandStudy({"sh", script}, runs)));
  const auto context = Within(std::chrono::minutes(10));
  const auto watch = v1::StudyService::NewStub(daemon.Connect())->WatchStudy(context.get(), request);
  v1::WatchStudyResponse state;
  while (watch->Read(&state)) {
  }
  const v1::Study& study = state.study();
  if (!watch->Finish().ok() || study.state() != v1::Study::SUCCEEDED) return 0;
  return runs / (SecondsOf(study.finish_time()) - SecondsOf(study.start_time()));
}

// Installs HyperQueue. Returns the Python of its environment, or "" if it cannot be installed.
std::string InstallPeer(const std::string& directory) {
  const std::string venv = directory + "/hyperqueue";
  for (const std::vector<std::string>& argv :
       {std::vector<std::string>{"python3", "-m", "venv", venv},
        {venv + "/bin/pip", "install", "--quiet", "--disable-pip-version-check", kPeer}}) {
    const e2e::Output output = e2e::RunProgram(argv, {}, 300);
    if (output.code == 0) continue;
    std::cerr << "scalelab-bench: " << kPeer
              << " cannot be installed, so there is no comparison: " << output.err << "\n";
    return "";
  }
  return venv + "/bin/python";
}

double PeerRunsPerSecond(const std::string& python, const std::string& directory, const std::string& script,
                         int runs) {
  const e2e::Output output = e2e::RunProgram(
      {python, SCALELAB_SOURCE_DIR "/tests/bench/hyperqueue_runs.py", script, absl::StrCat(runs), directory},
      {}, 600);
  // The seconds are in the last line, because HyperQueue prints a table first.
  const absl::string_view printed = absl::StripAsciiWhitespace(output.out);
  double seconds = 0;
  if (output.code == 0 && absl::SimpleAtod(printed.substr(printed.rfind('\n') + 1), &seconds))
    return runs / seconds;
  std::cerr << "scalelab-bench: tests/bench/hyperqueue_runs.py failed: " << output.err << "\n";
  return 0;
}

// Returns how often per second this process starts the script and waits for its end: the limit for one run at a time. 0 if it fails.
double BareRunsPerSecond(const std::string& directory, const std::string& script, int runs) {
  const std::string events = absl::StrCat("SCALELAB_EVENTS=", directory, "/events");
  std::string shell = "sh", path = script, variable = events;
  char* const argv[] = {shell.data(), path.data(), nullptr};
  char* const environment[] = {variable.data(), nullptr};
  bool succeeded = true;
  const double seconds = Seconds([&] {
    for (int i = 0; i < runs; ++i) {
      pid_t pid = 0;
      int status = 1;
      succeeded = succeeded && posix_spawn(&pid, "/bin/sh", nullptr, nullptr, argv, environment) == 0 &&
                  waitpid(pid, &status, 0) == pid && status == 0;
    }
  });
  return succeeded ? runs / seconds : 0;
}

}  // namespace

std::vector<Figure> RunShortRunsBench(const BenchOptions& options) {
  const int runs = std::max(20, static_cast<int>(2000 * options.scale));
  const std::string script = options.directory + "/script.sh";
  std::ofstream(script) << R"(echo '{"time":1,"event":"finish"}' >> "$SCALELAB_EVENTS")"
                        << "\n";
  const std::string python = InstallPeer(options.directory);
  std::vector<double> ours, peers, ratios, bare;
  for (int round = 0; round < kRounds; ++round) {
    ours.push_back(RunsPerSecond(options.directory, script, runs));
    if (ours.back() == 0) {
      std::cerr << "scalelab-bench: not every run of the study succeeded\n";
      return {};
    }
    bare.push_back(BareRunsPerSecond(options.directory, script, runs));
    if (python.empty()) continue;
    peers.push_back(
        PeerRunsPerSecond(python, absl::StrCat(options.directory, "/peer-", round), script, runs));
    if (peers.back() == 0) return {};
    ratios.push_back(ours.back() / peers.back());
  }
  const Figure limit{"shortruns/of_the_limit",
                     Median(ours),
                     "1/s",
                     "a loop that only starts the script and waits",
                     Median(bare),
                     Median(ours) / Median(bare)};
  if (peers.empty()) return {{"shortruns/one_worker", Median(ours), "1/s", "", 0, 0}, limit};
  Figure figure{"shortruns/one_worker", Median(ours),  "1/s", "HyperQueue 0.27, one local worker",
                Median(peers),          Median(ratios)};
  figure.low = std::ranges::min(ratios);
  figure.high = std::ranges::max(ratios);
  return {figure, {"shortruns/ratio", figure.ratio, "", "target", kTarget, figure.ratio / kTarget}, limit};
}

}  // namespace scalelab::bench
