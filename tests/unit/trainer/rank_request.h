// What forked_rank.cc sends to trainer_template.cc on a Unix socket of type SOCK_STREAM.
//
// First kDescriptors descriptors, with the size of the request as 8 bytes: standard input, output and error, and the working
// directory. Then the arguments, an empty string, and the environment, each of which ends with a zero byte. Each byte after that is a
// signal for the rank. The template answers with the wait status of the rank, as an int.
#pragma once

#include <cstddef>

namespace scalelab::trainer {

constexpr size_t kDescriptors = 4;

}  // namespace scalelab::trainer
