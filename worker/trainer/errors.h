// How the trainer fails: exceptions, caught once in main, which becomes an `error` event and exit status 1.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace scalelab::trainer {

enum class ErrorKind { kOther, kOutOfMemory, kData, kCommunication };

// One sentence for the user: names the file, field or value, and what to try.
class TrainerError : public std::runtime_error {
 public:
  explicit TrainerError(const std::string& message, ErrorKind kind = ErrorKind::kOther)
      : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// Messages of libraries may go on with a stack.
std::string FirstLine(std::string_view text);

struct ErrorReport {
  std::string message;    // one line
  std::string_view kind;  // as in the event: "out_of_memory", "data", "communication" or ""
};

// What is to be told about an exception of ours, of Torch or of the standard library.
ErrorReport DescribeError(const std::exception_ptr& error);

}  // namespace scalelab::trainer
