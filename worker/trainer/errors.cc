#include "worker/trainer/errors.h"

#include <new>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {
namespace {

std::string_view KindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kOutOfMemory:
      return "out_of_memory";
    case ErrorKind::kData:
      return "data";
    case ErrorKind::kCommunication:
      return "communication";
    case ErrorKind::kOther:
      break;
  }
  return "";
}

}  // namespace

std::string FirstLine(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

ErrorReport DescribeError(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const TrainerError& e) {
    return {FirstLine(e.what()), KindName(e.kind())};
  } catch (const std::bad_alloc&) {
    return {"out of host memory: try a smaller batch_per_rank", "out_of_memory"};
  } catch (const c10::Error& e) {
    const std::string message = FirstLine(e.what_without_backtrace());
    // The CPU allocator throws a plain c10::Error, the CUDA one its own type; both can only be recognized
    // by their text.
    const bool memory = message.find("can't allocate memory") != std::string::npos ||
                        message.find("not enough memory") != std::string::npos ||
                        message.find("out of memory") != std::string::npos;
    return {message, memory ? "out_of_memory" : ""};
  } catch (const std::exception& e) {
    return {FirstLine(e.what()), ""};
  } catch (...) {
    return {"unknown exception", ""};
  }
}

}  // namespace scalelab::trainer
