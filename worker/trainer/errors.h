// Errors of the trainer: exceptions that main catches once and turns into an `error` event and exit status 1.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace scalelab::trainer {

enum class ErrorKind { kOther, kOutOfMemory, kData, kCommunication };

// An error with one sentence for the user, which names the file, field or value and suggests what to try.
class TrainerError : public std::runtime_error {
 public:
  explicit TrainerError(const std::string& message, ErrorKind kind = ErrorKind::kOther)
      : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Returns the first line of `text`. Messages of libraries may continue with a stack trace.
std::string FirstLine(std::string_view text);

struct ErrorReport {
  std::string message;    // one line
  std::string_view kind;  // as in the event: "out_of_memory", "data", "communication" or ""
};

// Describes an exception of the trainer, of Torch or of the standard library.
ErrorReport DescribeError(const std::exception_ptr& error);

}  // namespace scalelab::trainer
