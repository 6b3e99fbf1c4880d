// Reads the output of `scalelab-bench allreduce`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/prediction.pb.h"

namespace scalelab::client {

// Returns the all-reduces of `contender`, for example "mpi_started", in the lines of `text`, which is the content of `file`.
// INVALID_ARGUMENT if there are none; the message names the contenders that the file has.
absl::StatusOr<std::vector<scalelab::v1::MeasuredAllReduce>> ParseAllReduces(const std::string& text,
                                                                             const std::string& file,
                                                                             const std::string& contender);

// The same for the content of `file`. NOT_FOUND with the reason if it cannot be read.
absl::StatusOr<std::vector<scalelab::v1::MeasuredAllReduce>> ReadAllReduces(const std::string& file,
                                                                            const std::string& contender);

}  // namespace scalelab::client
