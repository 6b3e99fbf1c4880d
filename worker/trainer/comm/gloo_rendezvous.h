// Where ranks that have only Gloo meet for the first time.
#pragma once

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/comm/gloo_communicator.h"

namespace scalelab::trainer {

// A store of keys that all ranks share; throws TrainerError when it cannot be made or reached.
std::unique_ptr<gloo::rendezvous::Store> OpenStore(const Rendezvous& rendezvous, int rank, int size,
                                                   std::chrono::milliseconds timeout);

// One line of every rank under names that begin with `key`; throws TrainerError that names the ranks that
// have not come by `deadline`.
std::vector<std::string> GatherThrough(gloo::rendezvous::Store& store, const std::string& key, int rank,
                                       int size, const std::string& mine,
                                       std::chrono::steady_clock::time_point deadline);

}  // namespace scalelab::trainer
