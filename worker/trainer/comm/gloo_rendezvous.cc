#include "worker/trainer/comm/gloo_rendezvous.h"

#include <gloo/common/error.h>
#include <gloo/rendezvous/file_store.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;

// LibTorch's store over TCP, as Gloo wants to see it.
class TcpStore : public gloo::rendezvous::Store {
 public:
  TcpStore(const std::string& host, int port, int rank, int size, milliseconds timeout) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = rank == 0;
    options.numWorkers = static_cast<size_t>(size);
    options.waitWorkers = false;  // who is missing is found out, and told, afterwards
    options.timeout = timeout;
    store_ = c10::make_intrusive<c10d::TCPStore>(host, options);
  }
  void set(const std::string& key, const std::vector<char>& data) override {
    store_->set(key, std::vector<uint8_t>(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::vector<uint8_t> data = store_->get(key);
    return std::vector<char>(data.begin(), data.end());
  }
  void wait(const std::vector<std::string>& keys) override { store_->wait(keys); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

// Gloo's store in files leaves them; the last rank to leave removes them, and the others find nothing to
// remove.
class DirectoryStore : public gloo::rendezvous::FileStore {
 public:
  explicit DirectoryStore(const std::string& path) : FileStore(path), path_(path) {}
  ~DirectoryStore() override {
    std::error_code ignored;
    for (const std::string& file : getAllKeyFilePaths()) std::filesystem::remove(file, ignored);
    std::filesystem::remove(path_, ignored);  // fails while it has files of others
  }

 private:
  std::string path_;
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

Rendezvous RendezvousOfRun() {
  Rendezvous rendezvous;
  rendezvous.host = Variable("MASTER_ADDR");
  const std::string port = Variable("MASTER_PORT"), directory = Variable("SCALELAB_ATTEMPT_DIR");
  if (!rendezvous.host.empty() && !port.empty()) {
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), rendezvous.port);
    if (error != std::errc() || end != port.data() + port.size() || rendezvous.port < 1 ||
        rendezvous.port > 65535) {
      throw TrainerError(
          "environment variable MASTER_PORT must be a number from 1 to 65535, it is \"" + port + "\"",
          ErrorKind::kCommunication);
    }
    return rendezvous;
  }
  rendezvous.host.clear();
  if (directory.empty()) {
    throw TrainerError(
        "backend \"gloo\" needs a place where ranks meet: set SCALELAB_ATTEMPT_DIR to a new directory that "
        "all ranks "
        "see, or MASTER_ADDR and MASTER_PORT to rank 0's machine and a free port of it",
        ErrorKind::kCommunication);
  }
  rendezvous.directory = directory + "/gloo";
  return rendezvous;
}

std::unique_ptr<gloo::rendezvous::Store> OpenStore(const Rendezvous& rendezvous, int rank, int size,
                                                   milliseconds timeout) {
  try {
    if (!rendezvous.host.empty()) {
      return std::make_unique<TcpStore>(rendezvous.host, rendezvous.port, rank, size, timeout);
    }
    std::filesystem::create_directories(rendezvous.directory);
    return std::make_unique<DirectoryStore>(rendezvous.directory);
  } catch (const std::exception& e) {
    const std::string place = rendezvous.host.empty()
                                  ? "directory " + rendezvous.directory +
                                        " (in SCALELAB_ATTEMPT_DIR): check that every "
                                        "node can write there"
                                  : rendezvous.host + ":" + std::to_string(rendezvous.port) +
                                        " (MASTER_ADDR and "
                                        "MASTER_PORT): check that they name rank 0's machine and a free port";
    throw TrainerError("rank " + std::to_string(rank) + " cannot meet the other ranks at " + place + ": " +
                           FirstLine(e.what()),
                       ErrorKind::kCommunication);
  }
}

std::vector<std::string> GatherThrough(gloo::rendezvous::Store& store, const std::string& key, int rank,
                                       int size, const std::string& mine,
                                       std::chrono::steady_clock::time_point deadline) {
  store.set(key + std::to_string(rank), std::vector<char>(mine.begin(), mine.end()));
  std::vector<std::string> lines(size);
  std::string missing;
  for (int r = 0; r < size; ++r) {
    const std::string name = key + std::to_string(r);
    // Once the time is over those who have come are still told from those who have not.
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    try {
      store.wait({name}, std::max(left, milliseconds(20)));
      const std::vector<char> line = store.get(name);
      lines[r].assign(line.begin(), line.end());
    } catch (const std::exception&) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!missing.empty()) {
    throw TrainerError(
        "rank " + std::to_string(rank) + " waited in vain for rank " + missing + " of " +
            std::to_string(size) +
            " at the rendezvous: see their output, or raise comm_timeout_s if they start slowly",
        ErrorKind::kCommunication);
  }
  return lines;
}

}  // namespace scalelab::trainer
