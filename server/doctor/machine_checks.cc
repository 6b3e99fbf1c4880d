#include "server/doctor/machine_checks.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/notify/sendmail.h"

namespace scalelab::server::doctor {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kLittleSpace = 2 * kGib, kNoSpace = kGib / 10;
constexpr int64_t kFewInodes = 10'000, kNoInodes = 100;
constexpr absl::Duration kClockTolerance = absl::Seconds(1);
constexpr absl::Duration kSoon = absl::Hours(24 * 30);  // time to replace a certificate
constexpr uint64_t kFewFiles = 4096, kNoFiles = 128, kFewProcesses = 1024;

void CheckSpace(const DirectoryFacts& facts, const std::string& subject, Findings& findings) {
  const std::string space = absl::StrFormat("%.1f GiB are free on the filesystem of %s",
                                            static_cast<double>(facts.free_bytes) / kGib, facts.existing);
  if (facts.free_bytes < kNoSpace) {
    findings.push_back(Error(subject, space, "free space, or name a directory on another filesystem"));
  } else if (facts.free_bytes < kLittleSpace) {
    findings.push_back(Warning(subject, space, "free space soon"));
  }
  if (!facts.free_inodes.has_value() || *facts.free_inodes >= kFewInodes) return;
  const std::string inodes =
      absl::StrCat("the filesystem of ", facts.existing, " has room for ", *facts.free_inodes, " more files");
  findings.push_back(*facts.free_inodes < kNoInodes ? Error(subject, inodes, "delete files")
                                                    : Warning(subject, inodes, "delete files soon"));
}

void CheckFilesystem(const DirectoryFacts& facts, const DirectoryUse& use, Findings& findings) {
  if (use.must_be_local && facts.network != nullptr) {
    findings.push_back(Error(use.subject,
                             absl::StrCat(facts.existing, " is on a network filesystem (", facts.network,
                                          "), which can damage the database"),
                             "name a directory on a local disk, or set rollback_journal: true"));
  }
  if (use.nodes_use_it && facts.network == nullptr) {
    findings.push_back(Warning(
        use.subject,
        absl::StrCat(facts.existing, " is on a local filesystem, and all nodes must have the same directory"),
        use.users_write ? "name a directory on a shared filesystem"
                        : "check with doctor --job, or name a directory on a shared filesystem"));
  }
}

// Checks the mode that scalelabd requires of `runs` with jobs_run_as: user.
void CheckUsersWrite(const DirectoryFacts& facts, const std::string& subject, Findings& findings) {
  if ((facts.mode & S_ISVTX) != 0 && (facts.mode & (S_IWGRP | S_IWOTH)) != 0) return;
  findings.push_back(Error(subject,
                           absl::StrFormat("with jobs_run_as: user every user needs a directory in %s, which "
                                           "its mode %04o does not allow",
                                           facts.path, facts.mode),
                           absl::StrCat("chmod 1777 ", facts.path)));
}

Finding CheckTlsFile(const TlsFileFacts& file, absl::Time now) {
  const std::string name = file.setting.empty() ? file.path : absl::StrCat(file.setting, ": ", file.path);
  const auto day = [](absl::Time time) { return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone()); };
  const std::string replace =
      file.setting.empty()
          ? "remove it; the next start of scalelabd makes another, and users run scalelab login again"
          : "replace it, then systemctl restart scalelabd";
  if (!file.error.empty())
    return Error("tls", absl::StrCat(name, ": ", file.error), "check its path, its mode and its content");
  if (file.is_key) {
    if ((file.mode & 07) == 0) return Ok("tls", absl::StrCat(file.path, " is the key of the certificate"));
    return Error("tls", absl::StrFormat("other users may read %s (mode %04o)", file.path, file.mode),
                 absl::StrCat("chmod o= ", file.path));
  }
  if (file.not_after < now)
    return Error("tls", absl::StrCat(name, " expired on ", day(file.not_after)), replace);
  if (file.not_before > now) {
    return Error("tls", absl::StrCat(name, " is not valid before ", day(file.not_before)),
                 "set the clock of this machine, or replace the file");
  }
  if (file.not_after < now + kSoon)
    return Warning("tls", absl::StrCat(name, " expires on ", day(file.not_after)), replace);
  return Ok("tls", absl::StrCat(file.path, " is valid until ", day(file.not_after)));
}

}  // namespace

Finding CheckClock(const ClockFacts& facts) {
  if (!facts.known) {
    return Warning("clock", "the kernel does not report whether the clock is synchronised",
                   "check that the clocks of all machines agree");
  }
  if (facts.synchronised) return Ok("clock", "synchronised");
  return Warning(
      "clock", "not synchronised with a time server",
      "start chrony, ntpsec or systemd-timesyncd; the clocks of all machines must agree within seconds");
}

Findings CheckDirectory(const DirectoryFacts& facts, const DirectoryUse& use, uid_t user) {
  const std::string& subject = use.subject;
  if (!facts.is_directory)
    return {Error(subject, absl::StrCat(facts.existing, " is not a directory"), "name a directory")};
  const bool exists = facts.existing == facts.path;
  if (!facts.write_error.empty()) {
    return {Error(subject,
                  absl::StrCat(exists ? "" : absl::StrCat(facts.path, " does not exist, and "), "user ", user,
                               " cannot write to ", facts.existing, ": ", facts.write_error),
                  "run this as the account of the service; give that account the directory with chown")};
  }
  Findings findings;
  CheckFilesystem(facts, use, findings);
  CheckSpace(facts, subject, findings);
  if (exists && use.users_write) CheckUsersWrite(facts, subject, findings);
  if (exists && !use.users_write && facts.owner != user) {
    findings.push_back(
        Warning(subject, absl::StrCat(facts.path, " belongs to user ", facts.owner, ", not to user ", user),
                "run this as the account of the service"));
  }
  if (exists && use.must_be_private && (facts.mode & 022) != 0) {
    findings.push_back(
        Error(subject, absl::StrFormat("other users may write to %s (mode %04o)", facts.path, facts.mode),
              absl::StrCat("chmod 700 ", facts.path)));
  }
  if (absl::AbsDuration(facts.clock_offset) > kClockTolerance) {
    findings.push_back(Warning(subject,
                               absl::StrCat("the clock of the filesystem of ", facts.existing, " is ",
                                            absl::FormatDuration(absl::AbsDuration(facts.clock_offset)),
                                            facts.clock_offset > absl::ZeroDuration() ? " ahead" : " behind"),
                               "synchronise the clocks of this machine and of the file server"));
  }
  if (!findings.empty()) return findings;
  return {Ok(subject, absl::StrFormat("%s%s, %s filesystem, %.1f GiB free", facts.path,
                                      exists ? "" : " will be created",
                                      facts.network == nullptr ? "local" : facts.network,
                                      static_cast<double>(facts.free_bytes) / kGib))};
}

Findings CheckSecrets(const std::vector<FileFacts>& secrets, uid_t user) {
  Findings findings;
  for (const FileFacts& file : secrets) {
    if ((file.mode & 077) != 0) {
      findings.push_back(Error("keys",
                               absl::StrFormat("other users may read %s (mode %04o)", file.path, file.mode),
                               absl::StrCat("chmod 600 ", file.path)));
    } else if (file.owner != user) {
      findings.push_back(
          Warning("keys", absl::StrCat(file.path, " belongs to user ", file.owner, ", not to user ", user),
                  "run this as the account of the service"));
    }
  }
  if (findings.empty()) findings.push_back(Ok("keys", absl::StrCat(secrets.size(), " files, private")));
  return findings;
}

Finding CheckLimits(const LimitFacts& facts) {
  const std::string files = absl::StrCat("this account may open ", facts.files, " files");
  if (facts.files < kNoFiles) return Error("limits", files, "raise LimitNOFILE= of the unit, or ulimit -n");
  if (facts.files < kFewFiles) {
    return Warning("limits",
                   absl::StrCat(files, ", enough for about ", facts.files / 4, " workers and clients"),
                   "raise LimitNOFILE= of the unit, or ulimit -n");
  }
  if (facts.processes < kFewProcesses) {
    return Warning("limits",
                   absl::StrCat("this account may have ", facts.processes, " processes and threads"),
                   "raise LimitNPROC= of the unit, or ulimit -u");
  }
  return Ok("limits", files);
}

Findings CheckTls(const std::vector<TlsFileFacts>& files, absl::Time now) {
  Findings findings;
  for (const TlsFileFacts& file : files) findings.push_back(CheckTlsFile(file, now));
  return findings;
}

Finding CheckAddress(const std::string& key, const AddressFacts& facts, pid_t server) {
  if (facts.in_use && server == 0) {
    return Error(key, absl::StrCat("another program uses ", facts.text),
                 "stop it, or name another address; ss -ltnxp shows the program");
  }
  if (facts.in_use) return Ok(key, absl::StrCat(facts.text, " is in use by scalelabd, process ", server));
  if (!facts.error.empty()) {
    const std::string advice = facts.unix_socket
                                   ? "systemd creates the directory at the start of the unit; "
                                     "otherwise create it for the account of the service"
                                   : absl::StrCat("correct `", key, "`, or the name in DNS or /etc/hosts");
    // The first start may create the directory of a Unix socket, so this is only a warning.
    return facts.unix_socket ? Warning(key, absl::StrCat(facts.text, ": ", facts.error), advice)
                             : Error(key, absl::StrCat(facts.text, ": ", facts.error), advice);
  }
  return Ok(key, absl::StrCat(facts.text, " is free"));
}

Findings CheckSocketAccess(const AddressFacts& facts, mode_t socket_mode) {
  const bool others = (socket_mode & S_IRWXO) != 0, group = (socket_mode & S_IRWXG) != 0;
  const std::string closed = others ? facts.closed_to_others : group ? facts.closed_to_group : "";
  if (!facts.unix_socket || closed.empty()) return {};
  return {Warning(
      "listen",
      absl::StrFormat("socket_mode %04o allows %s to connect to %s, but they cannot enter %s", socket_mode,
                      others ? "all users" : "the group of the service", facts.text, closed),
      absl::StrCat(others ? "chmod o+x " : "chgrp and chmod g+x ", closed,
                   ", or name a socket in another directory, such as /run/scalelab"))};
}

Findings CheckNotifications(const std::vector<ProgramFacts>& programs, bool no_new_privileges) {
  Findings findings;
  std::vector<std::string> good;
  for (const ProgramFacts& program : programs) {
    const bool mail = program.setting == "sendmail";
    const std::string error = absl::StrCat(program.path, ": ", program.error);
    if (mail && program.path == kDefaultSendmail && program.error == std::strerror(ENOENT)) {
      findings.push_back(Ok("notify", absl::StrCat("no notification can be sent by mail: ", error)));
    } else if (!program.error.empty()) {
      findings.push_back(
          Warning("notify", absl::StrCat(program.setting, ": ", error),
                  absl::StrCat("install the program, or name one that this account may execute in ",
                               mail ? "notify: {sendmail: PROGRAM}" : "notify_commands")));
    } else if (no_new_privileges && !program.privileged.empty()) {
      findings.push_back(Warning(
          "notify",
          absl::StrCat(program.setting, ": ", program.path, " needs the setuid or setgid bit of ",
                       program.privileged, ", which has no effect in the service (NoNewPrivileges=)"),
          mail ? "set notify: {sendmail: PROGRAM} to one that connects to the mail server itself, such as "
                 "/usr/bin/msmtp"
               : "name a program in notify_commands that needs no such bit"));
    } else {
      good.push_back(program.path);
    }
  }
  if (!good.empty())
    findings.push_back(Ok("notify", absl::StrCat("this account may execute ", absl::StrJoin(good, ", "))));
  return findings;
}

Finding CheckWorkerServer(const std::string& address, const NameFacts& facts) {
  if (!facts.error.empty())
    return Error("network", absl::StrCat(address, ": ", facts.error), "correct worker_server or `listen`");
  if (facts.loopback) {
    return Error("network", absl::StrCat("workers would dial ", address, ", which is this machine only"),
                 "set worker_server to the name of this machine in the cluster; see /etc/hosts");
  }
  return Ok("network", absl::StrCat("workers dial ", address));
}

}  // namespace scalelab::server::doctor
