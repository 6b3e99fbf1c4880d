// scalelabd: the coordinator. Serves until SIGTERM or SIGINT.
#include <signal.h>

#include <cstdio>
#include <iostream>

#include "db/backup.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/logging.h"
#include "server/process_limits.h"
#include "server/version.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  using namespace scalelab::server;
  const auto command = ParseCommand(argc, argv, kVersion);
  if (!command.ok()) {
    std::cerr << "scalelabd: " << command.status().message() << "\n";
    return 2;
  }
  if (command->kind == Command::Kind::kPrint) {
    std::cout << command->text << std::flush;
    return 0;
  }
  if (command->kind == Command::Kind::kCheckConfig) {
    std::cerr << "the configuration is valid\n";
    return 0;
  }
  if (command->kind == Command::Kind::kBackup) {
    const std::string& data = command->config.data_dir;
    const absl::Status made = scalelab::db::BackupDatabase(data + "/scalelab.db", command->text);
    if (!made.ok()) {
      std::cerr << "scalelabd: " << made.message() << "\n";
      return 1;
    }
    std::cerr << command->text << " is a complete, checked backup of " << data << "\n";
    return 0;
  }
  SetUpLogging(command->config);
  LimitHeaps();

  // Blocked before any other thread exists, so that only sigwait below receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails as on a full disk

  auto daemon = Daemon::Start(command->config);
  if (!daemon.ok()) {
    std::cerr << "scalelabd: " << daemon.status().message() << "\n";
    return 1;
  }
  std::string served;
  for (const std::string& address : (*daemon)->addresses()) served += " " + address;
  std::printf("ready%s\n", served.c_str());
  std::fflush(stdout);

  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("signal {}: stopping; workers continue and reconnect to the next scalelabd", signal);
  daemon->reset();
  return 0;
}
