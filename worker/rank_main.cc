// scalelab-rank PROGRAM ARGS...: a wrapper that mpirun, srun or torchrun starts in place of PROGRAM. It sets the variables that
// every rank has with any launcher (docs/users/write-a-training-script.md), redirects the output, and then executes
// PROGRAM. It uses nothing but libc, because it is started once per rank.
//
// scalelab-rank --node TORCHRUN ARGS...: srun starts this form once on each node. It passes the index of the
// node to torchrun, which starts the ranks of the node.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

// Returns the value of the first of these variables that holds a number, or null.
const char* FirstNumber(const char* const* names) {
  for (; *names != nullptr; ++names) {
    const char* value = getenv(*names);
    if (value != nullptr && *value != '\0' && strspn(value, "0123456789") == strlen(value)) return value;
  }
  return nullptr;
}

void SetNumber(const char* name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  setenv(name, text, 1);
}

int NumberOf(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? 0 : atoi(value);
}

int Smaller(int a, int b) { return a < b ? a : b; }

// Sets the variables that torchrun sets in addition to RANK, LOCAL_RANK and WORLD_SIZE. Ranks fill the nodes
// one after another.
void SetTorchVariables(int rank) {
  const int ranks = NumberOf("SCALELAB_RANKS"), each = NumberOf("SCALELAB_RANKS_PER_NODE");
  if (ranks < 1 || each < 1) return;
  const int node = rank / each;
  SetNumber("LOCAL_WORLD_SIZE", Smaller(each, ranks - node * each));
  SetNumber("GROUP_RANK", node);
  SetNumber("GROUP_WORLD_SIZE", (ranks + each - 1) / each);
  SetNumber("ROLE_RANK", rank);
  SetNumber("ROLE_WORLD_SIZE", ranks);
  setenv("ROLE_NAME", "default", 1);
}

// Executes torchrun on this node, which is a task of a step. Returns only if that fails.
int StartTorchrun(char** argv) {
  const int node = NumberOf("SLURM_PROCID");
  const int ranks = NumberOf("SCALELAB_RANKS"), each = NumberOf("SCALELAB_RANKS_PER_NODE");
  SetNumber("PET_NODE_RANK", node);
  SetNumber("PET_NPROC_PER_NODE", Smaller(each, ranks - node * each));
  execvp(argv[0], argv);
  fprintf(stderr, "scalelab-rank: cannot start '%s': %s\n", argv[0], strerror(errno));
  return errno == ENOENT ? 127 : 126;
}

bool Redirect(int target, const char* directory, const char* rank, const char* ending) {
  char path[4096];
  snprintf(path, sizeof path, "%s/rank-%s.%s", directory, rank, ending);
  // Does not wait for the reader of a FIFO.
  const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd >= 0 && fcntl(fd, F_SETFL, O_APPEND) == 0 && dup2(fd, target) >= 0) return true;
  fprintf(stderr, "scalelab-rank: cannot write '%s': %s\n", path, strerror(errno));  // see exit_cause.cc
  return false;
}

// Pins this process to list number `place` of `lists`, the cores that the worker chose (worker/launcher.h).
bool Bind(const char* lists, const char* place) {
  for (int skip = place == nullptr ? 0 : atoi(place); skip > 0 && lists != nullptr; --skip) {
    lists = strchr(lists, '/');
    if (lists != nullptr) ++lists;
  }
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  while (lists != nullptr && *lists >= '0' && *lists <= '9') {
    char* end = nullptr;
    CPU_SET(strtoul(lists, &end, 10), &cpus);
    lists = *end == ',' ? end + 1 : nullptr;
  }
  if (CPU_COUNT(&cpus) > 0 && sched_setaffinity(0, sizeof cpus, &cpus) == 0) return true;
  fprintf(stderr, "scalelab-rank: cannot run on the cores given in SCALELAB_RANK_CPUS\n");
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && strcmp(argv[1], "--node") == 0) return StartTorchrun(argv + 2);
  static const char* const kRank[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK", nullptr};
  static const char* const kLocal[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "LOCAL_RANK", nullptr};
  // A process that serves several ranks is the only one of its step.
  static const char* const kWorld[] = {"SCALELAB_REPLICAS", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                       "SLURM_NTASKS",      "WORLD_SIZE",           nullptr};
  if (argc < 2) {
    fputs("usage: scalelab-rank PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  // torchrun sets RANK for its processes, so use it first: the variables of Slurm describe the node's task,
  // not the rank.
  static const char* const kOfTorchrun[] = {"RANK", nullptr};
  static const char* const kLocalOfTorchrun[] = {"LOCAL_RANK", nullptr};
  const char* launcher = getenv("SCALELAB_LAUNCHER");
  const bool torchrun = launcher != nullptr && strcmp(launcher, "torchrun") == 0;
  const char* directory = getenv("SCALELAB_ATTEMPT_DIR");
  const char* rank = FirstNumber(torchrun ? kOfTorchrun : kRank);
  if (directory == nullptr || rank == nullptr) {
    fprintf(stderr, "scalelab-rank: %s; start it with mpirun or srun from scalelab-worker\n",
            directory == nullptr ? "SCALELAB_ATTEMPT_DIR is not set"
                                 : "none of OMPI_COMM_WORLD_RANK, PMIX_RANK, SLURM_PROCID and RANK is set");
    return 2;
  }
  // Copy the values, because setenv may invalidate what getenv has returned.
  char own_rank[32], events[4096];
  snprintf(own_rank, sizeof own_rank, "%s", rank);
  snprintf(events, sizeof events, "%s/events-%s.jsonl", directory, own_rank);
  if (!Redirect(STDERR_FILENO, directory, own_rank, "err")) return 126;
  if (!Redirect(STDOUT_FILENO, directory, own_rank, "out")) return 126;
  const char* local = FirstNumber(torchrun ? kLocalOfTorchrun : kLocal);
  if (const char* cpus = getenv("SCALELAB_RANK_CPUS"); cpus != nullptr && !Bind(cpus, local)) return 126;
  unsetenv("SCALELAB_RANK_CPUS");
  if (local != nullptr) setenv("LOCAL_RANK", local, 1);
  if (const char* world = torchrun ? nullptr : FirstNumber(kWorld)) setenv("WORLD_SIZE", world, 1);
  setenv("RANK", own_rank, 1);
  if (!torchrun) SetTorchVariables(atoi(own_rank));
  setenv("SCALELAB_EVENTS", events, 1);

  execvp(argv[1], argv + 1);
  fprintf(stderr, "scalelab-rank: cannot start '%s': %s\n", argv[1], strerror(errno));
  return errno == ENOENT ? 127 : 126;
}
