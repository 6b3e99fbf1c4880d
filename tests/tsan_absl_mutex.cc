// Makes absl::Mutex and absl::CondVar visible to the thread sanitizer.
//
// The packaged abseil is built without the sanitizer, so every access that its locks protect looks like a
// data race. The definitions below replace those of the shared library in this program. They announce each
// operation to the sanitizer and call the original.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <string>
#include <type_traits>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace {

// Finds a function of the library. `name` is its mangled name after the namespace.
template <class Result, class... Args>
auto Original(const char* name) {
  const std::string space = ABSL_INTERNAL_TOKEN_STR(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string symbol = "_ZN4absl" + std::to_string(space.size()) + space + name;
  return reinterpret_cast<Result (*)(Args...)>(dlsym(RTLD_NEXT, symbol.c_str()));
}

constexpr unsigned kRead = __tsan_mutex_read_lock, kTry = __tsan_mutex_try_lock;

// Calls `lock` as an operation that takes the lock.
template <class Lock>
auto Locking(void* mutex, unsigned flags, const Lock& lock) {
  __tsan_mutex_pre_lock(mutex, flags);
  if constexpr (std::is_void_v<decltype(lock())>) {
    lock();
    __tsan_mutex_post_lock(mutex, flags, 0);
  } else {
    const bool result = lock();
    const bool locked = result || (flags & kTry) == 0;
    __tsan_mutex_post_lock(mutex, flags | (locked ? 0 : __tsan_mutex_try_lock_failed), 0);
    return result;
  }
}

void Unlocking(void* mutex, unsigned flags, void (*unlock)(absl::Mutex*), absl::Mutex* self) {
  __tsan_mutex_pre_unlock(mutex, flags);
  unlock(self);
  __tsan_mutex_post_unlock(mutex, flags);
}

// Calls `wait` as an operation that releases the lock and takes it again.
template <class Wait>
auto Waiting(void* mutex, const Wait& wait) {
  __tsan_mutex_pre_unlock(mutex, 0);
  __tsan_mutex_post_unlock(mutex, 0);
  return Locking(mutex, 0, wait);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

#define ORIGINAL(result, symbol, ...) static auto* const original = Original<result, __VA_ARGS__>(symbol)

void Mutex::Lock() {
  ORIGINAL(void, "5Mutex4LockEv", Mutex*);
  Locking(this, 0, [&] { original(this); });
}
bool Mutex::TryLock() {
  ORIGINAL(bool, "5Mutex7TryLockEv", Mutex*);
  return Locking(this, kTry, [&] { return original(this); });
}
void Mutex::Unlock() {
  ORIGINAL(void, "5Mutex6UnlockEv", Mutex*);
  Unlocking(this, 0, original, this);
}
void Mutex::ReaderLock() {
  ORIGINAL(void, "5Mutex10ReaderLockEv", Mutex*);
  Locking(this, kRead, [&] { original(this); });
}
bool Mutex::ReaderTryLock() {
  ORIGINAL(bool, "5Mutex13ReaderTryLockEv", Mutex*);
  return Locking(this, kRead | kTry, [&] { return original(this); });
}
void Mutex::ReaderUnlock() {
  ORIGINAL(void, "5Mutex12ReaderUnlockEv", Mutex*);
  Unlocking(this, kRead, original, this);
}
void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  Lock();
  return AwaitWithTimeout(condition, timeout);
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}
void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, InfiniteFuture()); }
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  ORIGINAL(bool, "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", Mutex*, const Condition&, Time);
  return Waiting(this, [&] { return original(this, condition, deadline); });
}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  ORIGINAL(bool, "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", CondVar*, Mutex*, Time);
  return Waiting(mutex, [&] { return original(this, mutex, deadline); });
}

ABSL_NAMESPACE_END
}  // namespace absl
