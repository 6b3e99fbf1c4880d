// scalelabd: the coordinator. Serves until SIGTERM or SIGINT. Reads its configuration again after SIGHUP.
// Notifies systemd of its state.
#include <signal.h>
#include <sys/stat.h>

#include <cstdio>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "db/backup.h"
#include "server/config.h"
#include "server/daemon.h"
#include "server/doctor/doctor.h"
#include "server/logging.h"
#include "server/process_limits.h"
#include "server/service_manager.h"
#include "server/version.h"
#include "spdlog/spdlog.h"

static scalelab::server::doctor::Subject SubjectOf(const scalelab::server::Command& command) {
  const scalelab::server::ServerConfig& config = command.config;
  std::vector<std::pair<std::string, std::string>> notify_commands;
  for (const auto& [name, argv] : config.notify.commands) notify_commands.emplace_back(name, argv.front());
  return {.mistake = command.text,
          .data_dir = config.data_dir,
          .runs_dir = config.runs_dir,
          .listen = config.listen,
          .socket_mode = config.socket_mode,
          .metrics = config.metrics,
          .web = config.web,
          .tls_certificate = config.tls_certificate,
          .tls_key = config.tls_key,
          .tls_authority = config.tls_authority,
          .insecure = config.insecure,
          .munge_socket = config.munge_socket,
          .sendmail = config.notify.sendmail,
          .notify_commands = std::move(notify_commands),
          .scheduler = config.scheduler,
          .worker_server = config.worker_server,
          .worker_program = config.worker_program,
          .version = scalelab::server::kVersion,
          .users_submit = config.jobs_run_as == "user",
          .sbatch_options = config.sbatch_options,
          .rollback_journal = config.rollback_journal,
          .test_job = command.test_job,
          .job_user = command.job_user};
}

int main(int argc, char** argv) {
  using namespace scalelab::server;
  // Other users must not be able to write to the directory of the runs or to any file of the service.
  umask(umask(0) | S_IWGRP | S_IWOTH);
  const ServiceManager manager = ServiceManager::FromEnvironment();
  const auto command = ParseCommand(argc, argv, kVersion);
  if (!command.ok()) {
    std::cerr << "scalelabd: " << command.status().message() << "\n";
    manager.Failed(command.status().message());
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
  if (command->kind == Command::Kind::kDoctor) {
    const doctor::Findings findings = doctor::Examine(SubjectOf(*command), doctor::RunHere());
    std::cout << (command->json ? doctor::JsonReport(findings) : doctor::TextReport(findings)) << std::flush;
    return doctor::HasError(findings) ? 1 : 0;
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
  // Debian's Abseil looks for deadlocks whenever a mutex is locked. That takes five times as long as the lock, and a
  // deadlock that is only possible ends the process. Tests want this; a service does not.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  // Block these signals before any other thread exists, so that only sigwait below receives them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` fails as on a full disk

  auto daemon = Daemon::Start(command->config);
  if (!daemon.ok()) {
    std::cerr << "scalelabd: " << daemon.status().message() << "\n";
    manager.Failed(daemon.status().message());
    return 1;
  }
  const std::string served = absl::StrJoin((*daemon)->addresses(), " ");
  std::printf("ready %s\n", served.c_str());
  std::fflush(stdout);
  const std::string status = absl::StrCat("serving ", served);
  manager.Ready(status);

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) {
    manager.Reloading();
    const auto again = ParseCommand(argc, argv, kVersion);
    if (again.ok())
      (*daemon)->Reconfigure(again->config);
    else
      spdlog::error("the configuration was not read again, nothing is changed: {}",
                    std::string(again.status().message()));
    manager.Ready(status);
  }
  spdlog::info("signal {}: stopping; workers continue and reconnect to the next scalelabd", signal);
  manager.Stopping();
  daemon->reset();
  return 0;
}
