// Runs the whole client program against a test server in the same process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/program.h"
#include "client/session/exit_code.h"
#include "tests/fakes/fake_services.h"

namespace scalelab::client {

struct Outcome {
  int code = -1;
  std::string out, err;
};

// Compares only the exit code; on failure, `EXPECT_THAT(Run({...}), Exits(ExitCode::kOk))`
// shows both outputs.
MATCHER_P(Exits, code, "") {
  *result_listener << "exit code " << arg.code << "\nstdout: " << arg.out << "\nstderr: " << arg.err;
  return arg.code == static_cast<int>(code);
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "scalelab-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    for (const char* name : {"SCALELAB_SERVER", "SCALELAB_TOKEN_FILE", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
                             "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"})
      unsetenv(name);
    setenv("HOME", dir_.c_str(), 1);
    setenv("TZ", "UTC", 1);
    socket_ = "unix:" + dir_ + "/s.sock";
  }
  ~ClientTest() override {
    server_.Stop();
    std::filesystem::remove_all(dir_);
  }

  void Start() { server_.Start(socket_); }
  // Runs the program. Adds --server unless the arguments contain it.
  Outcome Run(std::vector<std::string> arguments, const Terminal& terminal = {}) {
    if (std::find(arguments.begin(), arguments.end(), "--server") == arguments.end()) {
      arguments.insert(arguments.end(), {"--server", socket_});
    }
    return RunAsIs(arguments, terminal);
  }
  Outcome RunAsIs(const std::vector<std::string>& arguments, const Terminal& terminal = {}) {
    std::ostringstream out, err;
    Outcome outcome;
    outcome.code =
        RunProgram(arguments, Io{out, err, terminal, terminal, [this] { return now_; }, in_, in_tty_});
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::string StudyFile() {
    return WriteFile("study.yaml",
                     "study: small\n"
                     "fixed: {model: resnet20, dataset: synthetic, epochs: 1}\n"
                     "matrix:\n"
                     "  engine: [native/ddp]\n"
                     "  ranks: [1, 2]\n"
                     "scaling: {mode: strong, global_batch: 64}\n"
                     "repeats: 3\n");
  }

  std::string dir_, socket_;
  std::istringstream in_;  // answers to questions
  bool in_tty_ = true;
  absl::Time now_ = absl::FromUnixSeconds(1'795'000'200);
  fakes::FakeServices server_;
};

// Returns a study with the fields that a server would set.
inline scalelab::v1::Study MakeStudy(int number, const std::string& display_name,
                                     scalelab::v1::Study::State state, int queued, int running, int succeeded,
                                     int failed = 0) {
  scalelab::v1::Study study;
  study.set_name("studies/" + std::to_string(number));
  study.set_display_name(display_name);
  study.set_owner("ada");
  study.set_state(state);
  study.mutable_counts()->set_queued(queued);
  study.mutable_counts()->set_running(running);
  study.mutable_counts()->set_succeeded(succeeded);
  study.mutable_counts()->set_failed(failed);
  study.mutable_create_time()->set_seconds(1'795'000'000);
  if (running + succeeded + failed > 0) study.mutable_start_time()->set_seconds(1'795'000'005);
  if (queued + running == 0) study.mutable_finish_time()->set_seconds(1'795'000'192);
  return study;
}

inline scalelab::v1::WatchStudyResponse Look(const scalelab::v1::Study& study) {
  scalelab::v1::WatchStudyResponse look;
  *look.mutable_study() = study;
  return look;
}

}  // namespace scalelab::client
