#include "client/output/printer.h"

#include "client/output/csv_printer.h"
#include "client/output/json_printer.h"
#include "client/output/table_printer.h"

namespace scalelab::client {

std::unique_ptr<Printer> MakePrinter(OutputFormat format, std::ostream& out, const Terminal& terminal) {
  switch (format) {
    case OutputFormat::kJson:
      return std::make_unique<JsonPrinter>(out, terminal.tty);
    case OutputFormat::kCsv:
      return std::make_unique<CsvPrinter>(out);
    case OutputFormat::kWide:
      return std::make_unique<TablePrinter>(out, terminal, true);
    case OutputFormat::kTable:
      break;
  }
  return std::make_unique<TablePrinter>(out, terminal, false);
}

absl::Status CheckWritten(const std::ostream& out) {
  if (out.good()) return absl::OkStatus();
  return absl::UnknownError("cannot write the output: is the disk full, or was the pipe closed?");
}

absl::Status Flush(std::ostream& out) {
  out.flush();
  return CheckWritten(out);
}

}  // namespace scalelab::client
