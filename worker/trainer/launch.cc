#include "worker/trainer/launch.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string_view>

#include "catalog/rank_variables.h"
#include "worker/trainer/errors.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {
namespace {

// Returns the value of the first variable that is set, or `otherwise`. The value must be a number of
// at least 0.
int NumberFrom(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') continue;
    const std::string_view view(text);
    int value = -1;
    auto [end, error] = std::from_chars(view.begin(), view.end(), value);
    if (error != std::errc() || end != view.end() || value < 0) {
      throw TrainerError(std::string("environment variable ") + name +
                         " must be a number of at least 0, it is \"" + text + "\"");
    }
    return value;
  }
  return otherwise;
}

}  // namespace

LaunchEnvironment ReadLaunchEnvironment(int argc, char** argv) {
  LaunchEnvironment env;
  const char* spec = argc > 1 ? argv[1] : std::getenv("SCALELAB_SPEC");
  if (argc > 2 || spec == nullptr || *spec == '\0') {
    throw TrainerError(
        "usage: scalelab-trainer [--print-initial-parameters|--serve-images] [SPEC.json]; without a file "
        "SCALELAB_SPEC must name it");
  }
  env.spec_path = spec;
  if (const char* events = std::getenv("SCALELAB_EVENTS")) env.events_path = events;
  env.rank = NumberFrom({"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"}, 0);
  env.local_rank = NumberFrom({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"}, 0);
  env.world_size = NumberFrom({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}, 0);
  return env;
}

void DieWithLauncher() {
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr || std::getenv("PMIX_RANK") != nullptr) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
}

void PreferHugePages(char** argv) {
  // Do not replace a value that the user has set.
  if (std::getenv(kMallocTunables) != nullptr || setenv(kMallocTunables, kHugePages, 1) != 0) return;
  // Execute the real path; /proc/self/exe would name the process "exe". If this fails, training
  // is only slower.
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) execv(program.c_str(), argv);
}

void ConfigureCpu(int threads) {
  // Every step allocates and frees activations. The heap keeps their memory, because the kernel would have to clear each page
  // again. Freed blocks of 16 MiB and more are returned to the kernel, because they would fragment the heap.
  mallopt(M_MMAP_THRESHOLD, 16 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
  at::set_num_threads(threads);
  at::set_num_interop_threads(1);
  at::globalContext().setFlushDenormal(true);
  // OpenBLAS built with its own threads ignores ATen's setting. The symbol exists only if the system's
  // BLAS is OpenBLAS.
  if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
    reinterpret_cast<void (*)(int)>(symbol)(threads);
  }
}

}  // namespace scalelab::trainer
