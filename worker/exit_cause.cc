#include "worker/exit_cause.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "files/regular_file.h"
#include "proto/utf8.h"

namespace scalelab::worker {
namespace {

constexpr size_t kTailBytes = 16384;
constexpr size_t kWordsBytes = 300;
constexpr int kLastSignal = 64;
constexpr char kCannotWrite[] = "scalelab-rank: cannot write '";  // see rank_main.cc

std::string Tail(const std::string& path) { return ReadTail(path, kTailBytes); }

// Replaces control characters and bytes that are not valid UTF-8 by spaces, and cuts the text between characters.
std::string Readable(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text, i);
    const size_t step = std::max<size_t>(length, 1);
    if (result.size() + step > kWordsBytes) break;
    if (length > 0 && !absl::ascii_iscntrl(static_cast<unsigned char>(text[i]))) {
      result.append(text.data() + i, length);
    } else {
      result += ' ';
    }
    i += step;
  }
  return result;
}

struct LauncherWords {
  std::string text;
  std::string unwritable;  // the line of a rank whose output file could not be opened
  bool out_of_memory = false;
  bool crashed = false;     // the launcher itself crashed; a rank's own crash report is in the rank's file
  bool task = false;        // srun has started a task, so Slurm is not the cause
  std::optional<int> rank;  // the rank that failed first
};

// Returns the number that follows the first occurrence of `mark`.
std::optional<int> NumberAfter(absl::string_view line, absl::string_view mark) {
  const size_t at = line.find(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  line.remove_prefix(at + mark.size());
  int number = 0;
  if (!absl::SimpleAtoi(line.substr(0, line.find_first_not_of("0123456789")), &number)) return std::nullopt;
  return number;
}

// Returns whether a line of srun is about one task or several: "srun: error: n1: task 3: Exited with exit code 1" or
// "srun: error: n[1-2]: tasks 0,2-3: Killed".
bool IsOfTask(absl::string_view line) {
  return absl::StartsWith(line, "srun: error: ") &&
         (absl::StrContains(line, ": task ") || absl::StrContains(line, ": tasks "));
}

// Returns the rank that failed if the line of a launcher names it.
std::optional<int> RankIn(absl::string_view line) {
  if (IsOfTask(line)) {
    const std::optional<int> task = NumberAfter(line, ": task ");
    return task ? task : NumberAfter(line, ": tasks ");
  }
  // Open MPI: "Process name: [[JOBS,JOB],RANK]". Job 1 is that of mpirun; the program may have started others.
  if (absl::StartsWith(line, "Process name: [[")) return NumberAfter(line, ",1],");
  if (absl::StartsWith(line, "MPI_ABORT was invoked on rank ") &&
      absl::StrContains(line, " in communicator MPI_COMM_WORLD")) {
    return NumberAfter(line, " on rank ");
  }
  // "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed)."
  return NumberAfter(line, " process rank ");
}

// Returns the rank in a line of torchrun's description of a failure: "rank      : 3 (local_rank: 1)".
std::optional<int> TorchrunRankIn(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "rank")) return std::nullopt;
  line = absl::StripLeadingAsciiWhitespace(line);
  return absl::StartsWith(line, ": ") ? NumberAfter(line, ": ") : std::nullopt;
}

// Finds the relevant line of the launcher's standard error. It is not the last one: mpirun puts frames around
// its messages, and srun reports the first dead rank before the ranks that it ended for that reason.
LauncherWords WordsOf(const std::string& path, bool torchrun) {
  LauncherWords words;
  bool root_cause = false;  // torchrun describes the first failure after the other ones
  std::string telling, last;
  for (absl::string_view line : absl::StrSplit(Tail(path), '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || absl::StartsWith(line, "---") || absl::StartsWith(line, "===")) continue;
    // mpirun prints these lines for every failure; they do not always name the rank.
    if (absl::StartsWith(line, "Primary job  terminated normally, but") ||
        absl::StartsWith(line, "a non-zero exit code. Per user-direction")) {
      continue;
    }
    words.crashed = words.crashed || absl::StrContains(line, "*** Process received signal ***");
    const bool of_memory = absl::StrContains(line, "Out Of Memory") || absl::StrContains(line, "oom-kill") ||
                           absl::StrContains(line, "oom_kill") ||
                           absl::StrContains(line, "exceeded memory limit");
    words.out_of_memory = words.out_of_memory || of_memory;
    const bool of_task = IsOfTask(line);
    words.task = words.task || of_task;
    if (words.unwritable.empty() && absl::StartsWith(line, kCannotWrite)) words.unwritable = Readable(line);
    root_cause = root_cause || absl::StartsWith(line, "Root Cause (first observed failure)");
    if (!words.rank && !torchrun) words.rank = RankIn(line);
    if (!words.rank && torchrun && root_cause) words.rank = TorchrunRankIn(line);
    const bool tells = of_memory || of_task || absl::StrContains(line, "exited on signal") ||
                       absl::StrContains(line, "Node failure") || absl::StartsWith(line, "scalelab-rank: ");
    if (tells && telling.empty()) telling = Readable(line);
    last = Readable(line);
  }
  words.text = telling.empty() ? last : telling;
  return words;
}

std::string Sentence(const std::string& what, const std::string& words) {
  return words.empty() ? what + "; it wrote nothing to standard error." : absl::StrCat(what, ": ", words);
}

}  // namespace

std::string LastWords(const std::string& path) {
  std::string last;
  for (absl::string_view line : absl::StrSplit(Tail(path), '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) last = Readable(line);
  }
  return last;
}

ExitCause JudgeExit(const JobResult& result, const std::string& launcher, int ranks,
                    const std::string& directory, bool torchrun) {
  const bool launched = !launcher.empty();
  const LauncherWords said = launched ? WordsOf(directory + "/launcher.err", torchrun) : LauncherWords();
  std::optional<int> failed;  // the rank that failed, if that is known
  if (!launched) failed = std::max(0, result.failed);
  if (launched && said.rank && *said.rank < ranks) failed = said.rank;
  if (launched && ranks == 1) failed = 0;
  // Quote the rank that failed; if it is not known, the first rank with any output to standard error.
  int rank = failed.value_or(0);
  bool any_started = !launched;
  std::string words;
  for (int i = launched ? 0 : rank; i < (launched ? ranks : rank + 1); ++i) {
    const std::string file = absl::StrCat(directory, "/rank-", i, ".err");
    any_started = any_started || access(file.c_str(), F_OK) == 0;
    if (!words.empty() || (failed && i != *failed)) continue;
    words = LastWords(file);
    if (!words.empty()) rank = i;
  }
  const auto with_words = [&](const std::string& what) {
    if (failed || words.empty()) return Sentence(what, words);
    return absl::StrCat(what, "; rank ", rank, " wrote: ", words);
  };
  if (said.out_of_memory)
    return {v1::Attempt::OUT_OF_MEMORY, Sentence("A rank ran out of memory", said.text)};
  // The launcher ends the other ranks by signals, so examine this before the exit status.
  if (launched && absl::StartsWith(words, kCannotWrite)) return {v1::Attempt::STORAGE_ERROR, words + "."};
  if (!said.unwritable.empty()) return {v1::Attempt::STORAGE_ERROR, said.unwritable + "."};
  const int signal = result.exit_status - 128;
  if (signal > 0 && signal <= kLastSignal) {
    const std::string what = absl::StrCat(said.crashed ? launcher + " itself" : "A rank",
                                          " was ended by signal ", signal, " (", strsignal(signal), ")");
    if (said.crashed) return {v1::Attempt::RANK_KILLED, what + "; see launcher.err."};
    return {v1::Attempt::RANK_KILLED, said.text.empty() ? with_words(what) : Sentence(what, said.text)};
  }
  if (!any_started) {
    // If Slurm does not have the job (any more), has no resources or does not answer, the run is
    // not the cause.
    const bool slurm = launcher == "srun" && !said.task && !absl::StrContains(said.text, "execve");
    return {slurm ? v1::Attempt::BOOT_FAIL : v1::Attempt::LAUNCH_ERROR,
            Sentence(absl::StrCat(launcher, " ended with status ", result.exit_status, " before a rank ran"),
                     said.text)};
  }
  if (absl::StartsWith(words, "scalelab-rank: ")) return {v1::Attempt::LAUNCH_ERROR, words + "."};
  const std::string end = absl::StrCat(" ended with status ", result.exit_status);
  if (words.empty() && !said.text.empty() && !said.rank)
    return {v1::Attempt::CAUSE_UNSPECIFIED, Sentence(launcher + end, said.text)};
  const std::string which = failed ? absl::StrCat("Rank ", rank) : "A rank";
  return {v1::Attempt::CAUSE_UNSPECIFIED, with_words(which + end)};
}

}  // namespace scalelab::worker
