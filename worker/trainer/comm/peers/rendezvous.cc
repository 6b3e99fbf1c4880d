#include "worker/trainer/comm/peers/rendezvous.h"

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;

// The interval between polls for a key. Neither a network directory nor LibTorch's store sends notifications
// about new keys.
constexpr milliseconds kPoll{5};

class TcpStore : public KeyStore {
 public:
  TcpStore(const std::string& host, int port, int rank, int size, milliseconds timeout) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(port);
    options.isServer = rank == 0;
    options.numWorkers = static_cast<size_t>(size);
    options.waitWorkers = false;  // GatherThrough reports missing ranks
    options.timeout = timeout;
    store_ = c10::make_intrusive<c10d::TCPStore>(host, options);
  }
  void Set(const std::string& key, const std::string& value) override {
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> Find(const std::string& key) override {
    if (!store_->check({key})) return std::nullopt;
    const std::vector<uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

// Stores each key in a file. Each rank removes its own files. The last rank removes the directory.
class DirectoryStore : public KeyStore {
 public:
  explicit DirectoryStore(const std::string& path) : path_(path) {
    std::filesystem::create_directories(path);
  }
  ~DirectoryStore() override {
    DirectoryStore::Clear();
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);  // fails while other ranks have files in it
  }
  void Set(const std::string& key, const std::string& value) override {
    const std::string file = FileOf(key), unfinished = file + ".new";
    std::ofstream out(unfinished, std::ios::binary);
    out << value;
    out.close();  // a network filesystem may report a failed write only here
    if (!out) throw TrainerError("cannot write " + unfinished);
    std::filesystem::rename(unfinished, file);
    std::lock_guard lock(mutex_);
    mine_.push_back(file);
  }
  std::optional<std::string> Find(const std::string& key) override {
    std::ifstream in(FileOf(key), std::ios::binary);
    if (!in) return std::nullopt;
    std::ostringstream value;
    value << in.rdbuf();
    return std::move(value).str();
  }
  void Clear() override {
    std::lock_guard lock(mutex_);
    std::error_code ignored;
    for (const std::string& file : mine_) std::filesystem::remove(file, ignored);
    mine_.clear();
  }

 private:
  std::string FileOf(const std::string& key) const {
    std::string file = path_ + "/";
    for (char c : key) file += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
    return file;
  }

  const std::string path_;
  std::mutex mutex_;               // guards mine_
  std::vector<std::string> mine_;  // files of this rank
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

RendezvousAddress RendezvousOfRun(std::string_view backend) {
  RendezvousAddress rendezvous;
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
    throw TrainerError("backend \"" + std::string(backend) +
                           "\" needs a rendezvous of its ranks: set SCALELAB_ATTEMPT_DIR to a new directory "
                           "that all ranks see, or MASTER_ADDR and MASTER_PORT to rank 0's machine and a "
                           "free port of it",
                       ErrorKind::kCommunication);
  }
  rendezvous.directory = directory + "/" + std::string(backend);
  return rendezvous;
}

std::unique_ptr<KeyStore> OpenStore(const RendezvousAddress& rendezvous, int rank, int size,
                                    milliseconds timeout) {
  try {
    if (!rendezvous.host.empty()) {
      return std::make_unique<TcpStore>(rendezvous.host, rendezvous.port, rank, size, timeout);
    }
    return std::make_unique<DirectoryStore>(rendezvous.directory);
  } catch (const std::exception& e) {
    const std::string place = rendezvous.host.empty()
                                  ? "directory " + rendezvous.directory +
                                        " (in SCALELAB_ATTEMPT_DIR): check that every "
                                        "node can write there"
                                  : rendezvous.host + ":" + std::to_string(rendezvous.port) +
                                        " (MASTER_ADDR and "
                                        "MASTER_PORT): check that they name rank 0's machine and a free port";
    throw TrainerError("rank " + std::to_string(rank) + " cannot use the rendezvous at " + place + ": " +
                           FirstLine(e.what()),
                       ErrorKind::kCommunication);
  }
}

std::optional<std::string> WaitForKey(KeyStore& store, const std::string& key, Deadline& deadline) {
  while (true) {
    if (std::optional<std::string> value = store.Find(key)) return value;
    if (deadline.Over()) return std::nullopt;
    std::this_thread::sleep_for(kPoll);
  }
}

std::vector<std::string> GatherThrough(KeyStore& store, const std::string& key, int rank, int size,
                                       const std::string& mine, Deadline& deadline) {
  store.Set(key + std::to_string(rank), mine);
  std::vector<std::string> lines(size);
  std::string missing;
  for (int r = 0; r < size; ++r) {
    // After the deadline, check each remaining rank once, so that the message lists only missing ranks.
    if (std::optional<std::string> line = WaitForKey(store, key + std::to_string(r), deadline)) {
      lines[r] = *std::move(line);
    } else {
      missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  if (!missing.empty()) {
    throw TrainerError(
        "rank " + std::to_string(rank) + " timed out waiting for rank " + missing + " of " +
            std::to_string(size) +
            " at the rendezvous: see their output, or raise comm_timeout_s in the study if they start slowly",
        ErrorKind::kCommunication);
  }
  return lines;
}

}  // namespace scalelab::trainer
