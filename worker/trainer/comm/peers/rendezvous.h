// The rendezvous of ranks that MPI has not connected.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace scalelab::trainer {

// Where the ranks of a run meet.
struct Rendezvous {
  // A directory that all ranks see. Used if `host` is empty. Ranks create files in it and remove them.
  std::string directory;
  // The machine and the port on which rank 0 listens.
  std::string host;
  int port = 0;
};

// Returns MASTER_ADDR and MASTER_PORT if both are set, else a directory in SCALELAB_ATTEMPT_DIR. Throws
// TrainerError that names `backend` if neither is given.
Rendezvous RendezvousOfRun(std::string_view backend);

// A key-value store that all ranks share. Each key is set once. Any thread may call; no call waits
// for another rank.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void Set(const std::string& key, const std::string& value) = 0;
  // Returns the value, or nothing if the key is not set yet.
  virtual std::optional<std::string> Find(const std::string& key) = 0;
  // Removes what this rank has set and other ranks no longer need, if the store keeps it on disk.
  virtual void Clear() {}
};

// The keys of another store that begin with a prefix. The other store must outlive this one.
class PrefixedStore : public KeyStore {
 public:
  PrefixedStore(KeyStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
  void Set(const std::string& key, const std::string& value) override { store_.Set(prefix_ + key, value); }
  std::optional<std::string> Find(const std::string& key) override { return store_.Find(prefix_ + key); }
  void Clear() override { store_.Clear(); }

 private:
  KeyStore& store_;
  const std::string prefix_;
};

// Creates or connects to the store. Throws TrainerError if that fails.
std::unique_ptr<KeyStore> OpenStore(const Rendezvous& rendezvous, int rank, int size,
                                    std::chrono::milliseconds timeout);

// Waits until the key is set and returns its value. Returns nothing after `deadline`.
std::optional<std::string> WaitForKey(KeyStore& store, const std::string& key,
                                      std::chrono::steady_clock::time_point deadline);

// Gathers one line from every rank, under keys that begin with `key`. Throws TrainerError that names the
// ranks that are missing at `deadline`.
std::vector<std::string> GatherThrough(KeyStore& store, const std::string& key, int rank, int size,
                                       const std::string& mine,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace scalelab::trainer
