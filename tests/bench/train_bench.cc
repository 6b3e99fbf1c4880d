#include "tests/bench/train_bench.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace scalelab::bench {
namespace {

struct Workload {
  std::string model;
  int image_size, classes, batch;  // batch per rank
};

const std::vector<Workload>& Workloads() {
  static const auto& workloads = *new std::vector<Workload>{{"resnet20", 32, 10, 64},
                                                            {"resnet20", 32, 10, 128},
                                                            {"resnet44", 32, 10, 64},
                                                            {"resnet44", 32, 10, 128},
                                                            {"resnet50", 64, 1000, 32}};
  return workloads;
}

struct Cell : Workload {
  int ranks;
};

struct Contender {
  std::string name;
  bool native;
  std::vector<double> throughput;  // samples per second, one value per round
};

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&name), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0;
  close(fd);
  return bound ? ntohs(name.sin_port) : 0;
}

// Returns the standard output of a shell command.
std::string OutputOf(const std::string& command) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  while (const size_t size = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, size);
  pclose(pipe);
  return output;
}

double Native(const Cell& cell, const std::string& engine, int steps, int warmup,
              const std::string& directory) {
  const NativeTraining training{engine,     cell.model, cell.image_size, cell.classes,
                                cell.batch, cell.ranks, steps,           warmup};
  for (const std::string& line : TrainNative(training, directory)) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (event.is_object() && event["event"] == "finish") return event["metrics"].value("run/throughput", NAN);
  }
  return NAN;
}

double Python(const Cell& cell, bool channels_last, int steps, int warmup) {
  std::string command =
      absl::StrCat("export OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=", FreePort(),
                   " WORLD_SIZE=", cell.ranks, ";");
  for (int rank = cell.ranks - 1; rank >= 0; --rank) {
    absl::StrAppend(&command, " RANK=", rank,
                    " /usr/bin/python3 " SCALELAB_SOURCE_DIR "/tests/bench/pytorch_ddp.py --model ",
                    cell.model, " --image-size ", cell.image_size, " --classes ", cell.classes, " --batch ",
                    cell.batch, " --steps ", steps, " --warmup ", warmup,
                    channels_last ? " --channels-last" : "", rank > 0 ? " &" : "; wait");
  }
  const std::string output = OutputOf(command);
  const size_t space = output.find_last_of(' ');
  double seconds = 0;
  if (space == std::string::npos || !absl::SimpleAtod(output.substr(space + 1), &seconds)) return NAN;
  return cell.batch * cell.ranks / seconds;
}

// Returns the figures of both native engines in one cell. Empty if a contender failed; the reason is
// then already printed.
std::vector<Figure> Measure(const Cell& cell, int rounds, int steps, int warmup,
                            const std::string& directory) {
  std::vector<Contender> contenders = {{"native/ddp", true, {}},
                                       {"PyTorch DDP, contiguous", false, {}},
                                       {"native/horovod", true, {}},
                                       {"PyTorch DDP, channels last", false, {}}};
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[i];
      const double throughput = contender.native ? Native(cell, contender.name, steps, warmup, directory)
                                                 : Python(cell, i == 3, steps, warmup);
      if (std::isnan(throughput)) {
        std::cerr << "scalelab-bench: " << contender.name << " reported no throughput\n";
        return {};
      }
      contender.throughput.push_back(throughput);
    }
  }
  const Contender& python =
      Median(contenders[1].throughput) > Median(contenders[3].throughput) ? contenders[1] : contenders[3];
  std::vector<Figure> figures;
  for (const size_t i : {0, 2}) {
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round)
      ratios.push_back(contenders[i].throughput[round] / python.throughput[round]);
    Figure figure{absl::StrCat("train/", cell.model, "_b", cell.batch, "_r", cell.ranks, "_",
                               contenders[i].name.substr(7)),
                  Median(contenders[i].throughput),
                  "samples/s",
                  python.name,
                  Median(python.throughput),
                  Median(ratios)};
    figure.low = std::ranges::min(ratios);
    figure.high = std::ranges::max(ratios);
    std::cerr << figure.name << " " << figure.ratio << "\n";
    figures.push_back(figure);
  }
  return figures;
}

}  // namespace

std::vector<std::string> TrainNative(const NativeTraining& training, const std::string& directory) {
  const std::string spec = directory + "/spec.json", events = directory + "/events";
  std::ofstream(spec) << nlohmann::json{{"engine", training.engine},
                                        {"model", training.model},
                                        {"dataset", "synthetic"},
                                        {"image_size", training.image_size},
                                        {"classes", training.classes},
                                        {"train_samples", training.steps * training.batch * training.ranks},
                                        {"augment", false},
                                        {"ranks", training.ranks},
                                        {"batch_per_rank", training.batch},
                                        {"max_steps", training.steps},
                                        {"warmup_steps", training.warmup}};
  remove(events.c_str());
  const std::string launcher =
      training.ranks == 1 ? ""
                          : absl::StrCat("mpirun -np ", training.ranks, " --bind-to none --oversubscribe ",
                                         geteuid() == 0 ? "--allow-run-as-root " : "");
  // Only rank 0 writes events; the others have no event file.
  OutputOf(absl::StrCat("OMP_NUM_THREADS=1 ", launcher,
                        "sh -c 'test ${OMPI_COMM_WORLD_RANK:-0} = 0 && export SCALELAB_EVENTS=", events,
                        "; exec " SCALELAB_BIN_DIR "/scalelab-trainer ", spec, " >/dev/null'"));
  std::vector<std::string> lines;
  std::ifstream file(events);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> TrainBenchModels() {
  std::vector<std::string> models;
  for (const Workload& workload : Workloads()) {
    if (std::ranges::find(models, workload.model) == models.end()) models.push_back(workload.model);
  }
  return models;
}

std::vector<Figure> RunTrainBench(const BenchOptions& options) {
  if (OutputOf("/usr/bin/python3 -c 'import torch; print(1)'").empty()) {
    std::cerr << "scalelab-bench: /usr/bin/python3 has no torch; install Debian's python3-torch\n";
    return {};
  }
  const int rounds =
      options.rounds > 0 ? options.rounds : std::max(1, static_cast<int>(5 * std::min(1.0, options.scale)));
  const int warmup = 3, steps = warmup + std::max(4, static_cast<int>(16 * std::min(1.0, options.scale)));
  std::vector<Figure> figures;
  for (const int ranks : options.ranks) {
    for (const Workload& workload : Workloads()) {
      if (!options.models.empty() &&
          std::ranges::find(options.models, workload.model) == options.models.end()) {
        continue;
      }
      const std::vector<Figure> cell = Measure({workload, ranks}, rounds, steps, warmup, options.directory);
      if (cell.empty()) return {};
      figures.insert(figures.end(), cell.begin(), cell.end());
    }
  }
  return figures;
}

}  // namespace scalelab::bench
