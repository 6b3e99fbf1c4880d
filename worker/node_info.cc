#include "worker/node_info.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <sched.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/regular_file.h"
#include "proto/utf8.h"

namespace scalelab::worker {
namespace {

// Returns the text after the ':' or '=' of the first line that starts with `begin`; empty if there is none.
std::string ValueIn(const std::string& path, absl::string_view begin) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, begin)) continue;
    const size_t mark = line.find_first_of(":=");
    if (mark == std::string::npos) continue;
    absl::string_view value = absl::StripAsciiWhitespace(absl::string_view(line).substr(mark + 1));
    if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
    return ValidUtf8(value);
  }
  return "";
}

using Digest = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

Digest NewDigest() {
  Digest digest(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr);
  return digest;
}

std::string Finish(const Digest& digest) {
  std::array<char, EVP_MAX_MD_SIZE> bytes;
  unsigned size = 0;
  EVP_DigestFinal_ex(digest.get(), reinterpret_cast<unsigned char*>(bytes.data()), &size);
  return absl::BytesToHexString({bytes.data(), size});
}

}  // namespace

std::vector<int> AllowedCpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
    }
  }
  return cpus;
}

v1::NodeInfo ReadNodeInfo() {
  v1::NodeInfo info;
  const int allowed = static_cast<int>(AllowedCpus().size());
  info.set_cpus(allowed > 0 ? allowed : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  info.set_cpu_model(ValueIn("/proc/cpuinfo", "model name"));
  info.set_memory_bytes(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
  std::error_code error;
  std::filesystem::directory_iterator gpu("/proc/driver/nvidia/gpus", error);
  for (const std::filesystem::directory_iterator end; !error && gpu != end; gpu.increment(error)) {
    std::string model = ValueIn(gpu->path() / "information", "Model");
    info.add_gpus(model.empty() ? "NVIDIA GPU" : model);
  }
  utsname name{};
  uname(&name);
  const std::string system = ValueIn("/etc/os-release", "PRETTY_NAME");
  info.set_os(absl::StrCat(system.empty() ? name.sysname : system, ", ", name.sysname, " ", name.release));
  return info;
}

std::string HostName() {
  utsname name{};
  return uname(&name) == 0 ? name.nodename : "localhost";
}

bool SingleCopyAllowed() {
  // A Yama scope above 0 forbids it between siblings, and ranks are siblings.
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  if (scope > 0) return false;
  // A seccomp filter forbids the call for any target, so test it on this process.
  char from = 1, to = 0;
  const iovec source{&from, 1}, target{&to, 1};
  return process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 1;
}

std::string FileSha256(const std::string& path) {
  std::error_code error;  // `path` may be a symlink
  const absl::StatusOr<int> fd = OpenRegularFile(std::filesystem::canonical(path, error).string(), O_RDONLY);
  if (!fd.ok()) return "";
  const absl::Cleanup closing = [&fd] { close(*fd); };
  const Digest digest = NewDigest();
  std::vector<char> buffer(1 << 20);
  ssize_t got = 0;
  do {
    got = read(*fd, buffer.data(), buffer.size());
    if (got > 0) EVP_DigestUpdate(digest.get(), buffer.data(), static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  return got < 0 ? "" : Finish(digest);
}

std::string Sha256(const std::string& bytes) {
  const Digest digest = NewDigest();
  EVP_DigestUpdate(digest.get(), bytes.data(), bytes.size());
  return Finish(digest);
}

}  // namespace scalelab::worker
