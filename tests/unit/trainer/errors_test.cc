// Tests of the descriptions of exceptions, which decide the cause of a failed attempt.
#include "worker/trainer/errors.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {
namespace {

template <typename Body>
ErrorReport Described(const Body& body) {
  try {
    body();
  } catch (...) {
    return DescribeError(std::current_exception());
  }
  ADD_FAILURE() << "no exception";
  return {};
}

TEST(DescribeError, KnowsMemoryThatCannotBeAllocated) {
  EXPECT_EQ(Described([] { at::empty({int64_t{1} << 50}, at::kByte); }).kind, "out_of_memory");
  EXPECT_EQ(Described([] { throw std::bad_alloc(); }).kind, "out_of_memory");
}

TEST(DescribeError, ReturnsTheFirstLineOfOtherExceptions) {
  const ErrorReport report = Described([] { throw std::runtime_error("first\nsecond"); });
  EXPECT_EQ(report.message, "first");
  EXPECT_EQ(report.kind, "");
}

}  // namespace
}  // namespace scalelab::trainer
