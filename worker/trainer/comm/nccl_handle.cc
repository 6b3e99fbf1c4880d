#include "worker/trainer/comm/nccl_handle.h"

#include <sched.h>

#include <stdexcept>

namespace scalelab::trainer {
namespace {

std::string ErrorText(ncclResult_t result, ncclComm_t comm) {
  std::string text = ncclGetErrorString(result);
  const char* more = ncclGetLastError(comm);
  if (more != nullptr && *more != '\0') text += std::string(": ") + more;
  return text.substr(0, text.find('\n'));
}

void Check(ncclResult_t result, ncclComm_t comm) {
  if (result != ncclSuccess && result != ncclInProgress) throw std::runtime_error(ErrorText(result, comm));
}

}  // namespace

ncclUniqueId NcclHandle::NewId() {
  ncclUniqueId id;
  Check(ncclGetUniqueId(&id), nullptr);
  return id;
}

void NcclHandle::Join(const ncclUniqueId& id, int size, int rank, const Patience& patience) {
  {
    std::lock_guard lock(mutex_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    Check(ncclCommInitRankConfig(&comm_, size, id, rank, &config), nullptr);
  }
  AwaitReady(patience);
}

void NcclHandle::Call(const Enqueue& enqueue, const Patience& patience) {
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw std::runtime_error("the communicator was aborted");
    Check(enqueue(comm_), comm_);
  }
  AwaitReady(patience);
}

void NcclHandle::AwaitReady(const Patience& patience) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) break;
      ncclResult_t state = ncclSuccess;
      Check(ncclCommGetAsyncError(comm_, &state), comm_);
      Check(state, comm_);
      if (state == ncclSuccess) return;
    }
    patience();
    sched_yield();
  }
  patience();
  throw std::runtime_error("the communicator was aborted");
}

std::string NcclHandle::AsyncError() {
  std::lock_guard lock(mutex_);
  ncclResult_t state = ncclSuccess;
  if (comm_ == nullptr) return "";
  if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return "NCCL does not answer";
  return state == ncclSuccess || state == ncclInProgress ? "" : ErrorText(state, comm_);
}

void NcclHandle::Finish(const Patience& patience) {
  Call(ncclCommFinalize, patience);
  std::lock_guard lock(mutex_);
  if (comm_ != nullptr) ncclCommDestroy(comm_);
  comm_ = nullptr;
}

void NcclHandle::Abort() {
  std::lock_guard lock(mutex_);
  if (comm_ != nullptr) ncclCommAbort(comm_);
  comm_ = nullptr;
}

}  // namespace scalelab::trainer
