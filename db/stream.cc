#include "db/stream.h"

namespace scalelab::db {

void Apply(StreamRow& stream, const StreamAppend& append) {
  stream.position = append.end_position;
  stream.line = append.end_line;
  stream.malformed += append.malformed;
  if (stream.first_malformed.empty()) stream.first_malformed = append.first_malformed;
  stream.finished = stream.finished || append.finished;
  if (!append.parameter_hash.empty()) stream.parameter_hash = append.parameter_hash;
  if (stream.error_kind.empty() && stream.error_message.empty()) {
    stream.error_kind = append.error_kind;
    stream.error_message = append.error_message;
  }
}

}  // namespace scalelab::db
