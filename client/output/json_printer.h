// Prints messages as protobuf JSON, with the field names of the .proto files and including fields whose
// value is zero.
#pragma once

#include <ostream>
#include <string>

#include "client/output/printer.h"

namespace scalelab::client {

// Returns one line, or indented JSON if `pretty`. As in all protobuf JSON, bytes are base64 and 64-bit
// integers are strings.
std::string ToJson(const google::protobuf::Message& message, bool pretty);

class JsonPrinter : public Printer {
 public:
  JsonPrinter(std::ostream& out, bool pretty) : out_(out), pretty_(pretty) {}
  absl::Status Print(const Answer& answer) override;

 private:
  std::ostream& out_;
  const bool pretty_;
};

}  // namespace scalelab::client
