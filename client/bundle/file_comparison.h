// Compares a text with a file of a bundle, without keeping either in memory.
#pragma once

#include <cstdint>
#include <streambuf>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bundle/bundle_file.h"

namespace scalelab::client {

// Takes a text through an std::ostream, and compares it with the file.
class FileComparison : public std::streambuf {
 public:
  // `bundle` must exist as long as this object.
  FileComparison(BundleReader& bundle, const BundleReader::Entry& file)
      : bundle_(bundle), next_(file.offset), end_(file.offset + file.size) {}

  // Call it after the whole text was written. Returns the number of the first line that differs, from 1, or
  // 0 if the text and the file are equal. UNKNOWN if the bundle cannot be read.
  absl::StatusOr<int64_t> FirstDifference();

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int_type overflow(int_type character) override;

 private:
  bool Fill();

  BundleReader& bundle_;
  int64_t next_;  // position in the bundle of the bytes after piece_
  const int64_t end_;
  std::string piece_;
  size_t at_ = 0;  // number of bytes of piece_ that were compared
  int64_t line_ = 1;
  bool differs_ = false;
  absl::Status status_;
};

}  // namespace scalelab::client
