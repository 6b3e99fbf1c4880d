// CSV as defined in RFC 4180, but with "\n" as line ending: a header line, then one line per row of the
// answer's main section.
#pragma once

#include <ostream>

#include "client/output/printer.h"

namespace scalelab::client {

class CsvPrinter : public Printer {
 public:
  explicit CsvPrinter(std::ostream& out) : out_(out) {}
  absl::Status Print(const Answer& answer) override;

 private:
  std::ostream& out_;
};

}  // namespace scalelab::client
