// Reads the output of `scalelab-bench allreduce`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/prediction.pb.h"

namespace scalelab::client {

// Returns the all-reduces of `contender`, for example "mpi_started", in the lines of `text`, which is
// the content of `file`. Returns INVALID_ARGUMENT if there are none; the message lists the contenders
// in the file.
absl::StatusOr<std::vector<scalelab::v1::MeasuredAllReduce>> ParseAllReduces(const std::string& text,
                                                                             const std::string& file,
                                                                             const std::string& contender);

// Reads `file` and calls ParseAllReduces. Returns NOT_FOUND with the reason if the file cannot be read.
absl::StatusOr<std::vector<scalelab::v1::MeasuredAllReduce>> ReadAllReduces(const std::string& file,
                                                                            const std::string& contender);

}  // namespace scalelab::client
