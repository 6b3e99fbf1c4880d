// Where ranks that no MPI has joined meet for the first time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace scalelab::trainer {

// How ranks that know nothing of each other meet.
struct Rendezvous {
  // A directory that all ranks see; files in it are made and removed. Used when `host` is empty.
  std::string directory;
  // Rank 0 listens on this port of this machine.
  std::string host;
  int port = 0;
};

// By MASTER_ADDR and MASTER_PORT when they are set, else in SCALELAB_ATTEMPT_DIR. Throws TrainerError, which
// names `backend`, without either.
Rendezvous RendezvousOfRun(std::string_view backend);

// Keys that all ranks share, each set once. Any thread calls; no call waits for another rank.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void Set(const std::string& key, const std::string& value) = 0;
  // Nothing as long as nobody has set it.
  virtual std::optional<std::string> Find(const std::string& key) = 0;
};

// Throws TrainerError when it cannot be made or reached.
std::unique_ptr<KeyStore> OpenStore(const Rendezvous& rendezvous, int rank, int size,
                                    std::chrono::milliseconds timeout);

// Waits until somebody sets the key; nothing when nobody has by `deadline`.
std::optional<std::string> WaitForKey(KeyStore& store, const std::string& key,
                                      std::chrono::steady_clock::time_point deadline);

// One line of every rank under names that begin with `key`; throws TrainerError that names the ranks that
// have not come by `deadline`.
std::vector<std::string> GatherThrough(KeyStore& store, const std::string& key, int rank, int size,
                                       const std::string& mine,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace scalelab::trainer
