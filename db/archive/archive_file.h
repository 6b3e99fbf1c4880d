// The file format of archives: rows of values, compressed, with a checksum over the whole file.
//
//   "scalelab archive 1\n"
//   a zstd frame of: the length of a JSON object (4 bytes), the object, rows, and the byte 255
//   a seal of 64 characters, by which a server recognises its own archives
//   the SHA-256 of all bytes before it (32 bytes)
//
// The JSON object has the schema of the database and the names of tables and columns. A row is the index of its table in that
// list (1 byte) and its values: the type (1 byte, as Value::Type), then 8 bytes for a number, or a length (4 bytes) and the bytes.
// All numbers are little-endian.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "db/sqlite/sqlite.h"
#include "nlohmann/json_fwd.hpp"

namespace scalelab::db {

struct ArchiveRow {
  size_t table = 0;  // index into ArchiveTables()
  std::vector<Value> values;
};

// Returns the seal of an archive with this content: 64 characters.
using Seal = std::function<std::string(absl::string_view sha256)>;

// Writes one archive to a descriptor, from its current position on. RESOURCE_EXHAUSTED if the disk is full.
class ArchiveWriter {
 public:
  explicit ArchiveWriter(int fd);
  ~ArchiveWriter();
  // Call it first.
  absl::Status WriteHeader(int schema);
  // `row` has a value for each column of its table.
  absl::Status WriteRow(const ArchiveRow& row);
  absl::Status Finish(const Seal& seal);

 private:
  struct Stream;
  absl::Status Compress(bool end);
  absl::Status WriteOut(absl::string_view bytes);

  const int fd_;
  std::unique_ptr<Stream> stream_;
};

// Reads one archive from a descriptor of a file. Call CheckWhole() first: it finds all damage, so that later errors mean
// that somebody has made a file with a correct checksum on purpose.
class ArchiveReader {
 public:
  explicit ArchiveReader(int fd);
  ~ArchiveReader();
  // Reads the whole file and compares its checksum. Returns DATA_LOSS if they differ.
  absl::Status CheckWhole();
  // Goes to the first row. Returns FAILED_PRECONDITION if the archive has tables or columns that `schema`, the newest one, does
  // not have, or lacks columns that every schema with archives has.
  absl::Status Begin(int schema);
  // Reads the next row and converts it to the columns of ArchiveTables(). A column that the archive does not
  // have gets the value ArchiveColumn::before. Returns false at the end, and DATA_LOSS for a value above
  // 32 MiB or a row above 64 MiB.
  absl::StatusOr<bool> Next(ArchiveRow& row);

  // Results of CheckWhole: the size of the file, its seal, and the SHA-256 (in hexadecimal) of the bytes that
  // the seal covers.
  int64_t bytes() const { return bytes_; }
  const std::string& seal() const { return seal_; }
  const std::string& sealed() const { return sealed_; }
  // Number of bytes of content that were read since Begin.
  int64_t content_bytes() const { return content_bytes_; }

 private:
  struct Stream;
  // A table with the columns that it has in the archive.
  struct Layout {
    size_t table = 0;             // index into ArchiveTables()
    std::vector<size_t> columns;  // of that table, in the order of the archive
  };
  // Reads the names of tables and columns. Returns false if rows of these columns cannot be converted to the
  // columns of ArchiveTables().
  bool ReadLayouts(const nlohmann::ordered_json& tables);
  // Makes `count` bytes of the content available.
  absl::Status Fill(size_t count);
  absl::StatusOr<absl::string_view> Take(size_t count);
  // Returns DATA_LOSS for a text or blob with more than `most_bytes`.
  absl::Status ReadValue(size_t most_bytes, Value& value);

  const int fd_;
  int64_t bytes_ = 0, content_bytes_ = 0;
  std::string seal_, sealed_;
  std::vector<Layout> layouts_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace scalelab::db
