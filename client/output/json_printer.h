// Protobuf JSON with the field names of the .proto files, values that are zero included.
#pragma once

#include <ostream>
#include <string>

#include "client/output/printer.h"

namespace scalelab::client {

// One line, or indented when `pretty`. Bytes become base64, 64-bit integers strings, as protobuf JSON has it.
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
