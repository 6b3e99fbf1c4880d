#include "tests/bench/allreduce_bench.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace scalelab::bench {

std::vector<Figure> RunAllReduceBench(const BenchOptions& options) {
  const std::string program = SCALELAB_BIN_DIR "/scalelab-bench-comm";
  if (!std::filesystem::exists(program)) {
    std::cerr << "scalelab-bench: there is no " << program
              << ": build scalelab-bench-comm, which needs LibTorch, MPI and Gloo\n";
    return {};
  }
  const auto largest = static_cast<int64_t>(std::min(1.0, options.scale) * (256 << 20));
  const std::string command = absl::StrCat("OMP_NUM_THREADS=1 mpirun -np ", options.all_reduce_ranks,
                                           " --oversubscribe ", geteuid() == 0 ? "--allow-run-as-root " : "",
                                           program, " ", std::max<int64_t>(largest, 1024));
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::vector<Figure> figures;
  char line[4096];
  while (fgets(line, sizeof line, pipe) != nullptr) {
    const auto f = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!f.is_object()) continue;
    figures.push_back({f["name"], f["value"], f["unit"], f["against"], f["against_value"], f["ratio"]});
    std::cerr << figures.back().name << " " << figures.back().value << "\n";
  }
  if (pclose(pipe) == 0) return figures;
  std::cerr << "scalelab-bench: failed: " << command << "\n";
  return {};
}

}  // namespace scalelab::bench
