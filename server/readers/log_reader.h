// Reads the output files of a rank. Programs under training can write to the directory of their attempt, so that
// its entries are not trusted: symlinks, FIFOs and devices are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// Reads at most kLogPiece bytes of a file in the directory of an attempt, from a byte on; nothing at its end. Returns
// NOT_FOUND if it does not exist, FAILED_PRECONDITION if it is no regular file. May block.
using ReadPiece = std::function<absl::StatusOr<std::string>(const std::string& name, int64_t offset)>;
inline constexpr size_t kLogPiece = 64 * 1024;

// Reads files of this machine.
ReadPiece LocalPieces(std::string directory);

// Reads one or both outputs of a rank in pieces, in order. Blocks when the filesystem blocks.
class LogReader {
 public:
  // `offset` is that of ReadRunLogRequest.
  LogReader(ReadPiece read, int rank, v1::ReadRunLogRequest::Stream which, int64_t offset = 0);

  // Reads the next piece. Returns false at the end. Returns NOT_FOUND if the only file does not exist,
  // FAILED_PRECONDITION if a file is no regular file, OUT_OF_RANGE if the first file has fewer bytes than
  // `offset`.
  absl::StatusOr<bool> Next(v1::ReadRunLogResponse* response);

 private:
  absl::StatusOr<int64_t> FindEnd(const std::string& name) const;

  const ReadPiece read_;
  // Names of the files in the directory.
  std::vector<std::pair<v1::ReadRunLogRequest::Stream, std::string>> files_;
  size_t at_ = 0;
  int64_t offset_;  // position in the file at_; if negative, counted from its end
  bool unchecked_;  // the file may have fewer bytes than offset_
};

}  // namespace scalelab::server
