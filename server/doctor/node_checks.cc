#include "server/doctor/node_checks.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::server::doctor {
namespace {

constexpr char kBody[] = R"sh(
dir=$(dirname "$worker")
# companion NAME: prints the path of another program, as scalelab-worker finds it.
companion() {
  if [ ! -e "$dir/$1" ] && [ -e "$dir/../lib/scalelab/$1" ]; then echo "$dir/../lib/scalelab/$1"; else echo "$dir/$1"; fi
}
echo "node $(hostname)"
echo "time $(date +%s.%N)"
echo "user $(id -u)"
programs=("$worker")
# A script starts the worker elsewhere, for example in an image, and the worker finds the other files there.
script=
[ "$(head -c 2 "$worker" 2>/dev/null | tr -d '\0')" = '#!' ] && script=yes
[ -n "$script" ] || programs+=("$(companion scalelab-rank)" "$(companion scalelab-trainer)")
for program in "${programs[@]}"; do
  if [ -x "$program" ]; then
    ldd "$program" 2>/dev/null | sed -n "s|^[[:space:]]*\([^ ]*\) => not found.*|library $program \1|p"
  else
    echo "missing $program"
  fi
done
echo "version $("$worker" --version 2>&1 | head -n 1)"
[ -n "$script" ] || [ -e "$dir/../share/scalelab/adapters/probe.py" ] || echo "missing $dir/../share/scalelab/adapters"
echo "word $(cat "$directory/word" 2>&1 | head -n 1)"
if (: >"$directory/node") 2>/dev/null; then echo 'write yes'; else echo 'write no'; fi
if [ -n "$host" ]; then
  if error=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' - "$host" "$port" 2>&1); then
    echo 'connect yes'
  else
    echo "connect $(printf %s "${error:-timeout}" | tail -n 1)"
  fi
fi
echo 'end yes'
)sh";

std::string Quoted(absl::string_view value) {
  return absl::StrCat("'", absl::StrReplaceAll(value, {{"'", "'\\''"}}), "'");
}

struct Output {
  std::map<std::string, std::string> values;
  std::vector<std::string> missing, libraries;
};

Output Parse(absl::string_view text) {
  Output output;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> fact = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (fact.first == "missing") {
      output.missing.push_back(fact.second);
    } else if (fact.first == "library") {
      output.libraries.push_back(absl::StrReplaceAll(fact.second, {{" ", ": "}}));
    } else {
      output.values.insert(fact);
    }
  }
  return output;
}

// Adds a warning if the clock of the node is wrong by more than a second. It showed `shown` at a time between
// `submitted` and `seen` of this machine's clock.
void CheckClockOf(const std::string& node, double shown, absl::Time submitted, absl::Time seen,
                  Findings& findings) {
  const absl::Time time = absl::UnixEpoch() + absl::Seconds(shown);
  absl::Duration off;
  if (time < submitted - absl::Seconds(1)) off = time - submitted;
  if (time > seen + absl::Seconds(1)) off = time - seen;
  if (off == absl::ZeroDuration()) return;
  findings.push_back(
      Warning("node",
              absl::StrCat("the clock of ", node, " is at least ",
                           absl::FormatDuration(absl::Trunc(absl::AbsDuration(off), absl::Milliseconds(1))),
                           off > absl::ZeroDuration() ? " ahead" : " behind"),
              "synchronise the clocks of all nodes"));
}

void CheckPrograms(const std::string& node, const Output& output, const NodeExpectation& expected,
                   Findings& findings) {
  if (!output.missing.empty()) {
    findings.push_back(
        Error("node", absl::StrCat(node, " does not have ", absl::StrJoin(output.missing, ", ")),
              "install scalelab-worker on the nodes, or set worker_program to a path that all nodes have"));
  }
  if (!output.libraries.empty()) {
    findings.push_back(Error(
        "node",
        absl::StrCat("shared libraries are missing on ", node, ": ", absl::StrJoin(output.libraries, ", ")),
        "install scalelab-worker with its dependencies on all nodes"));
  }
  const std::string wanted = absl::StrCat("scalelab-worker ", expected.version);
  const auto version = output.values.find("version");
  if (output.missing.empty() && output.libraries.empty() && version != output.values.end() &&
      version->second != wanted) {
    findings.push_back(
        Warning("node", absl::StrCat(node, " has ", version->second, ", and scalelabd is ", expected.version),
                "install the same version everywhere"));
  }
}

}  // namespace

std::string NodeScript(const NodeExpectation& expected) {
  // bash accepts an IPv6 address in /dev/tcp only without brackets.
  const absl::string_view host = absl::StripSuffix(absl::StripPrefix(expected.server_host, "["), "]");
  return absl::StrCat("#!/bin/bash\nworker=", Quoted(expected.worker_program),
                      "\ndirectory=", Quoted(expected.directory), "\nhost=", Quoted(host),
                      "\nport=", expected.server_port, "\n", kBody);
}

Findings JudgeNode(absl::string_view text, const NodeExpectation& expected, absl::Time submitted,
                   absl::Time seen) {
  Output output = Parse(text);
  const std::string node = output.values.count("node") > 0 ? output.values["node"] : "the node";
  Findings findings;
  if (output.values["end"] != "yes") {
    return {Error("node",
                  absl::StrCat("the test job on ", node, " did not run to its end; it printed: ",
                               text.empty() ? "nothing" : std::string(text.substr(0, 200))),
                  "see the log of slurmd on that node")};
  }
  if (output.values["user"] != absl::StrCat(expected.user)) {
    findings.push_back(Error("node",
                             absl::StrCat("this account has the number ", expected.user, " here and ",
                                          output.values["user"], " on ", node),
                             "give the account the same number on all nodes"));
  }
  CheckPrograms(node, output, expected, findings);
  if (output.values["word"] != expected.word) {
    findings.push_back(Error("node",
                             absl::StrCat(expected.runs_dir, " on ", node, " is another directory than here"),
                             "set runs to a directory that all nodes have under the same path"));
  } else if (output.values["write"] != "yes") {
    findings.push_back(Error("node",
                             absl::StrCat("this account cannot write to ", expected.runs_dir, " on ", node),
                             "export the filesystem for writing, and check the number of the account"));
  }
  if (!expected.server_host.empty() && output.values["connect"] != "yes") {
    findings.push_back(
        Error("node",
              absl::StrCat(node, " cannot connect to ", expected.server_host, ":", expected.server_port, ": ",
                           output.values["connect"]),
              "open this port for the nodes in the firewall, or set worker_server to another name"));
  }
  double shown = 0;
  if (absl::SimpleAtod(output.values["time"], &shown)) CheckClockOf(node, shown, submitted, seen, findings);
  if (findings.empty()) {
    findings.push_back(
        Ok("node", absl::StrCat(node, " has the programs, their libraries and ", expected.runs_dir,
                                expected.server_host.empty() ? "" : ", and reaches the service")));
  }
  return findings;
}

}  // namespace scalelab::server::doctor
