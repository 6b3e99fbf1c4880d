// Aligned columns for people.
#pragma once

#include <ostream>

#include "client/output/printer.h"

namespace scalelab::client {

// The text in the colour of its tone; as it is when `color` is false.
std::string Colored(const std::string& text, Tone tone, bool color);

class TablePrinter : public Printer {
 public:
  // `wide` shows all columns and cuts none.
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
