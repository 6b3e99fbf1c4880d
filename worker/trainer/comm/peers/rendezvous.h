// The rendezvous of ranks without MPI.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/trainer/comm/peers/running_clock.h"

namespace scalelab::trainer {

// The place of the rendezvous: a directory or a TCP address.
struct RendezvousAddress {
  // A directory on a filesystem that all ranks share. Used if `host` is empty. Ranks create files in it
  // and remove them.
  std::string directory;
  // The machine and the port on which rank 0 listens.
  std::string host;
  int port = 0;
};

// Returns MASTER_ADDR and MASTER_PORT if both are set, and a directory in SCALELAB_ATTEMPT_DIR otherwise. If
// SCALELAB_ATTEMPT_DIR is not set either, throws a TrainerError that names `backend`.
RendezvousAddress RendezvousOfRun(std::string_view backend);

// A key-value store that all ranks share. Each key is set once. Any thread may call the methods. No method
// waits for another rank.
class KeyStore {
 public:
  virtual ~KeyStore() = default;
  virtual void Set(const std::string& key, const std::string& value) = 0;
  // Returns the value, or nothing if the key is not set yet.
  virtual std::optional<std::string> Find(const std::string& key) = 0;
  // Removes the keys of this rank that other ranks no longer need, if the store is on disk.
  virtual void Clear() {}
};

// A view of another store that adds a prefix to keys. The other store must outlive this one.
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
std::unique_ptr<KeyStore> OpenStore(const RendezvousAddress& rendezvous, int rank, int size,
                                    std::chrono::milliseconds timeout);

// Waits until the key is set and returns its value. Returns nothing after `deadline`.
std::optional<std::string> WaitForKey(KeyStore& store, const std::string& key, Deadline& deadline);

// Gathers one line from every rank, under keys that begin with `key`. If ranks are missing at `deadline`,
// throws a TrainerError that names them.
std::vector<std::string> GatherThrough(KeyStore& store, const std::string& key, int rank, int size,
                                       const std::string& mine, Deadline& deadline);

}  // namespace scalelab::trainer
