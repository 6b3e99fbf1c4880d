#include "db/stream.h"

#include <gtest/gtest.h>

namespace scalelab::db {
namespace {

TEST(Apply, MovesTheStreamAndAddsMalformedLines) {
  StreamRow stream;
  StreamAppend append;
  append.end_position = 100;
  append.end_line = 10;
  append.malformed = 2;
  append.first_malformed = "line 3: is not JSON";
  Apply(stream, append);
  append.begin_position = 100;
  append.end_position = 150;
  append.end_line = 12;
  append.malformed = 1;
  append.first_malformed = "line 11: is not JSON";
  Apply(stream, append);
  EXPECT_EQ(stream.position, 150);
  EXPECT_EQ(stream.line, 12);
  EXPECT_EQ(stream.malformed, 3);
  EXPECT_EQ(stream.first_malformed, "line 3: is not JSON");
}

TEST(Apply, KeepsTheFirstError) {
  StreamRow stream;
  StreamAppend append;
  append.error_kind = "out_of_memory";
  append.error_message = "CUDA out of memory";
  Apply(stream, append);
  append.error_kind = "communication";
  append.error_message = "peer closed the connection";
  Apply(stream, append);
  EXPECT_EQ(stream.error_kind, "out_of_memory");
  EXPECT_EQ(stream.error_message, "CUDA out of memory");
}

TEST(Apply, KeepsTheFinishOfAnEarlierPart) {
  StreamRow stream;
  StreamAppend append;
  append.finished = true;
  append.parameter_hash = "beef";
  Apply(stream, append);
  Apply(stream, StreamAppend());
  EXPECT_TRUE(stream.finished);
  EXPECT_EQ(stream.parameter_hash, "beef");
}

}  // namespace
}  // namespace scalelab::db
