#include "munge/munge.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

// From munge.h of libmunge 0.5. The numbers are part of the library's binary interface.
constexpr int kSocketOption = 8;  // MUNGE_OPT_SOCKET
constexpr int kFirstBadCredential =
    8;  // EMUNGE_BAD_CRED; smaller numbers are failures of munged or of this machine
struct Context;

struct Library {
  Context* (*create)() = nullptr;
  void (*destroy)(Context*) = nullptr;
  int (*set)(Context*, int option, ...) = nullptr;
  int (*encode)(char** credential, Context*, const void* payload, int size) = nullptr;
  int (*decode)(const char* credential, Context*, void** payload, int* size, uid_t*, gid_t*) = nullptr;
  const char* (*text)(int error) = nullptr;
};

// Returns null if the library is not installed.
const Library* Load() {
  static const Library* const kLoaded = []() -> const Library* {
    void* const handle = dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return nullptr;
    static Library library;
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
      complete = complete && function != nullptr;
    };
    find(library.create, "munge_ctx_create");
    find(library.destroy, "munge_ctx_destroy");
    find(library.set, "munge_ctx_set");
    find(library.encode, "munge_encode");
    find(library.decode, "munge_decode");
    find(library.text, "munge_strerror");
    return complete ? &library : nullptr;
  }();
  return kLoaded;
}

absl::Status NotInstalled() {
  return absl::UnavailableError("MUNGE is not installed on this machine (Debian package libmunge2)");
}

absl::Status Failed(const Library& library, absl::string_view what, int error) {
  const std::string message = absl::StrCat(what, ": ", library.text(error));
  return error < kFirstBadCredential
             ? absl::UnavailableError(absl::StrCat(message, "; does munged run here?"))
             : absl::UnauthenticatedError(message);
}

// Returns a context for munged's socket; null on failure.
Context* NewContext(const Library& library, const std::string& socket) {
  Context* const context = library.create();
  if (context != nullptr && !socket.empty() && library.set(context, kSocketOption, socket.c_str()) != 0) {
    library.destroy(context);
    return nullptr;
  }
  return context;
}

}  // namespace

bool Munge::IsInstalled() { return Load() != nullptr; }

absl::StatusOr<std::string> Munge::Encode(const std::string& payload) const {
  const Library* const library = Load();
  if (library == nullptr) return NotInstalled();
  Context* const context = NewContext(*library, socket_);
  if (context == nullptr) return absl::InternalError("cannot set the socket of munged to " + socket_);
  char* credential = nullptr;
  const absl::Cleanup free_all = [&] {
    std::free(credential);
    library->destroy(context);
  };
  const int error = library->encode(&credential, context, payload.data(), static_cast<int>(payload.size()));
  if (error != 0) return Failed(*library, "MUNGE cannot make a credential", error);
  return std::string(credential);
}

absl::StatusOr<Munge::Decoded> Munge::Decode(const std::string& credential) const {
  const Library* const library = Load();
  if (library == nullptr) return NotInstalled();
  Context* const context = NewContext(*library, socket_);
  if (context == nullptr) return absl::InternalError("cannot set the socket of munged to " + socket_);
  void* payload = nullptr;
  const absl::Cleanup free_all = [&] {
    std::free(payload);
    library->destroy(context);
  };
  int size = 0;
  Decoded decoded;
  gid_t gid = 0;
  const int error = library->decode(credential.c_str(), context, &payload, &size, &decoded.uid, &gid);
  if (error != 0) return Failed(*library, "MUNGE refuses the credential", error);
  decoded.payload.assign(static_cast<const char*>(payload), static_cast<size_t>(size));
  return decoded;
}

}  // namespace scalelab
