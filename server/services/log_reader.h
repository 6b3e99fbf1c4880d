// Reads the output files of a rank. Programs under training can write to the directory of their attempt, so that
// its entries are not trusted: symlinks, FIFOs and devices are refused.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// Reads one or both outputs of a rank in pieces, in order. Blocks when the filesystem blocks.
class LogReader {
 public:
  LogReader(std::string directory, int rank, v1::ReadRunLogRequest::Stream which);
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  // Reads the next piece. Returns false at the end. Returns NOT_FOUND if the only file does not exist,
  // FAILED_PRECONDITION if a file is no regular file.
  absl::StatusOr<bool> Next(v1::ReadRunLogResponse* response);

 private:
  absl::Status Open(const std::string& name);
  void Close();

  const std::string directory_;
  std::vector<std::pair<v1::ReadRunLogRequest::Stream, std::string>> files_;  // names in the directory
  size_t at_ = 0;
  int fd_ = -1;
};

}  // namespace scalelab::server
