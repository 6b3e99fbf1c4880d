// Simulated users: they submit studies, with retries of the same request, watch, hold, cancel, retry, resume and delete them,
// and change their priorities. An admin drains the service.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "scalelab/v1/study.pb.h"
#include "tests/simulation/model.h"
#include "tests/simulation/network.h"
#include "tests/simulation/process.h"
#include "tests/simulation/world.h"

namespace scalelab::simulation {

class Clients {
 public:
  // `largest` is the number of nodes that a study may request.
  Clients(World& world, Network& network, Model& model, int largest);

  // Returns whether all clients have finished their actions.
  bool Idle() const { return busy_ == 0; }

 private:
  struct Study {
    std::string owner, request_id;
    v1::StudySpec spec;
    int64_t runs = 0;
    int64_t id = 0;
    int retries = 0, looks = 0;
    bool cancelled = false;
  };
  using StudyPointer = std::shared_ptr<Study>;

  v1::StudySpec RandomSpec(int largest);
  void Submit(const StudyPointer& study);
  void Accepted(const StudyPointer& study, int64_t id);
  // Reads the study's state from time to time, and acts on it.
  void Look(const StudyPointer& study);
  void Act(const StudyPointer& study, const absl::StatusOr<db::StudyRow>& row);
  void LookAgain(const StudyPointer& study);
  void Cancel(const StudyPointer& study);
  void CancelRun(const StudyPointer& study);
  void Retry(const StudyPointer& study);
  void Resume(const StudyPointer& study);
  void Delete(const StudyPointer& study);
  void Hold(const StudyPointer& study);
  void Release(const StudyPointer& study);
  void SetPriority(const StudyPointer& study);
  // An admin starts drain mode, and ends it later.
  void Drain(bool on);
  void Watch(const StudyPointer& study);
  // Makes a call that changes a study; `then` gets the answer.
  void Call(const StudyPointer& study, const char* what,
            std::function<void(Process&, Network::Done<int>)> send, std::function<void(absl::Status)> then);

  World& world_;
  Network& network_;
  Model& model_;
  int busy_ = 0;
};

}  // namespace scalelab::simulation
