// Tables with aligned columns.
#pragma once

#include <ostream>

#include "client/output/printer.h"

namespace scalelab::client {

// Returns `text` in the colour of its tone, or unchanged if `color` is false.
std::string Colored(const std::string& text, Tone tone, bool color);

class TablePrinter : public Printer {
 public:
  // `wide` shows all columns and truncates none.
  TablePrinter(std::ostream& out, const Terminal& terminal, bool wide)
      : out_(out), terminal_(terminal), wide_(wide) {}
  absl::Status Print(const Answer& answer) override;

 private:
  void PrintSection(const Section& section);

  std::ostream& out_;
  const Terminal terminal_;
  const bool wide_;
};

}  // namespace scalelab::client
