// A fixture that runs scalelab-trainer like the worker. The input is files, and the output is events and an
// exit status. If FORKED_RANK and TRAINER_TEMPLATE name these programs, ranks are forked from a process that
// has loaded LibTorch.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catalog/rank_variables.h"
#include "nlohmann/json.hpp"

namespace scalelab::trainer {

using nlohmann::json;

inline std::string ReadAll(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

struct Result {
  int status = -1;
  std::vector<std::vector<json>> events;  // of each rank

  std::vector<json> Of(int rank, const std::string& event) const {
    std::vector<json> found;
    std::ranges::copy_if(events[rank], std::back_inserter(found),
                         [&](const json& e) { return e["event"] == event; });
    return found;
  }
  std::string hash(int rank) const {
    const auto finish = Of(rank, "finish");
    return finish.empty() ? "no finish" : finish[0]["parameter_hash"].get<std::string>();
  }
  // Returns the loss of each step, as the mean over the ranks.
  std::vector<double> Losses() const { return Losses(events.size()); }
  // Returns the loss of each step, as the mean over the first ranks.
  std::vector<double> Losses(size_t ranks) const {
    std::vector<double> losses;
    for (size_t r = 0; r < ranks; ++r) {
      const auto steps = Of(static_cast<int>(r), "step");
      losses.resize(steps.size());
      for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(steps[i]["step"], i);
        losses[i] += steps[i]["metrics"]["train/loss"].get<double>() / static_cast<double>(ranks);
      }
    }
    return losses;
  }
};

#ifdef FORKED_RANK
// Starts trainer_template.cc, which ends with this process. Returns the name of its socket.
inline std::string StartTemplate() {
  const std::string socket = "scalelab-trainer-template-" + std::to_string(getpid());
  int output[2];
  if (pipe(output) != 0) return "";
  if (fork() == 0) {
    dup2(output[1], STDOUT_FILENO);
    close(output[0]);
    close(output[1]);
    execl(TRAINER_TEMPLATE, "trainer_template", socket.c_str(), nullptr);
    _exit(127);
  }
  close(output[1]);
  char ready;
  EXPECT_EQ(read(output[0], &ready, 1), 1) << TRAINER_TEMPLATE << " did not start";
  close(output[0]);
  return socket;
}
#endif

class Trainer : public testing::Test {
 protected:
  Trainer() {
    static int number = 0;
    dir_ = testing::TempDir() + "/trainer-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    std::filesystem::create_directories(dir_);
    setenv("SCALELAB_ATTEMPT_DIR", dir_.c_str(), 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    setenv(kMallocTunables, kHugePages, 0);  // as the worker does
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
#ifdef FORKED_RANK
    static const std::string socket = StartTemplate();
    setenv("SCALELAB_TRAINER_TEMPLATE", socket.c_str(), 1);
    program_ = FORKED_RANK;
#endif
  }
  ~Trainer() override { std::filesystem::remove_all(dir_); }

  std::string EventsPath(int rank) const { return dir_ + "/events-" + std::to_string(rank) + ".jsonl"; }
  std::string SpecPath(int rank) const { return dir_ + "/spec-" + std::to_string(rank) + ".json"; }

  // Returns the shell command of a run. Rank r gets specs[r], or the last specification if there are fewer.
  std::string Command(const std::vector<json>& specs, int ranks) {
    std::string command;
    for (int r = 0; r < ranks; ++r) {
      std::filesystem::remove(EventsPath(r));
      std::ofstream(SpecPath(r)) << specs[std::min<size_t>(r, specs.size() - 1)].dump();
      const std::string rank = std::to_string(r), world = std::to_string(ranks);
      if (ranks == 1) {
        command = "env RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 SCALELAB_SPEC=" + SpecPath(0) +
                  " SCALELAB_EVENTS=" + EventsPath(0) + " " + program_;
        break;
      }
      command += (r == 0 ? MPIRUN " --oversubscribe --allow-run-as-root " : " : ") +
                 std::string("-np 1 -x RANK=") + rank + " -x LOCAL_RANK=" + rank + " -x WORLD_SIZE=" + world +
                 " -x SCALELAB_SPEC=" + SpecPath(r) + " -x SCALELAB_EVENTS=" + EventsPath(r) + " " + program_;
    }
    return command;
  }

  // `before` is a command of the shell that starts the run.
  Result Run(const std::vector<json>& specs, int ranks = 1, const std::string& before = ":") {
    Result result;
    const int status = std::system(
        (before + "; " + Command(specs, ranks) + " >" + dir_ + "/out 2>" + dir_ + "/err").c_str());
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    for (int r = 0; r < ranks; ++r) {
      std::ifstream file(EventsPath(r));
      auto& events = result.events.emplace_back();
      for (std::string line; std::getline(file, line);) events.push_back(json::parse(line));
    }
    if (result.status != 0) std::fputs(ReadAll(dir_ + "/err").substr(0, 400).c_str(), stderr);
    return result;
  }

  static json Spec(int ranks, json more = json::object()) {
    json spec = {{"engine", "native/ddp"},
                 {"model", "resnet20"},
                 {"dataset", "synthetic"},
                 {"backend", "auto"},
                 {"ranks", ranks},
                 {"global_batch", 32},
                 {"epochs", 1},
                 {"max_steps", "20"},
                 {"seed", "3"},
                 {"learning_rate", 0.01},
                 {"augment", false},
                 {"train_samples", "640"},
                 {"cpus_per_rank", 1},
                 {"momentum", 0.9},
                 {"weight_decay", 1e-4}};
    spec.update(more);
    return spec;
  }

  void WriteCifar(int train, int test, int missing_bytes = 0) {
    auto write = [&](const std::string& name, int records, int missing) {
      std::string bytes;
      for (int r = 0; r < records; ++r) {
        bytes += static_cast<char>(r % 10);
        for (int i = 0; i < 3072; ++i) bytes += static_cast<char>((r * 37 + i * (r % 10 + 1)) & 0xff);
      }
      std::ofstream(dir_ + "/" + name, std::ios::binary).write(bytes.data(), std::ssize(bytes) - missing);
    };
    write("data_batch_1.bin", train, missing_bytes);
    write("test_batch.bin", test, 0);
  }

  // Writes text for data set tokens, as samples of `length` tokens below `vocabulary`.
  void WriteText(int train, int test, int length, int vocabulary) {
    const auto write = [&](const std::string& name, int samples) {
      std::vector<uint16_t> tokens(samples * length + 1);
      for (size_t i = 1; i < tokens.size(); ++i)
        tokens[i] = static_cast<uint16_t>((tokens[i - 1] * 5 + 1 + (i % 7 == 0 ? i / 7 : 0)) % vocabulary);
      std::ofstream(dir_ + "/" + name, std::ios::binary)
          .write(reinterpret_cast<const char*>(tokens.data()), std::ssize(tokens) * 2);
    };
    write("train.bin", train);
    write("val.bin", test);
  }

  std::string dir_;
  std::string program_ = TRAINER;
};

}  // namespace scalelab::trainer
