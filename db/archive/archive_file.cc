#include "db/archive/archive_file.h"

#include <openssl/evp.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "db/archive/archive_tables.h"
#include "db/sqlite/return_if_error.h"
#include "nlohmann/json.hpp"

namespace scalelab::db {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are in memory");

constexpr absl::string_view kMagic = "scalelab archive 1\n";
constexpr size_t kSealSize = 64;
constexpr size_t kHashSize = 32;
constexpr size_t kPiece = 256 << 10;
constexpr char kEnd = '\xff';
// Limits of a text or blob, and of all of them in a row. The largest values are the specification of a study,
// which was a request of at most 4 MiB, and the provenance of an attempt on many nodes. The limits are needed
// because zstd shrinks zeros to a ten-thousandth of their size: a small file could otherwise fill the memory.
constexpr size_t kMaxBytes = 32 << 20;
constexpr size_t kMaxRowBytes = 64 << 20;
constexpr int kLevel = 3;  // zstd's default

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the archive is damaged or incomplete (", what,
                                          "); nothing was stored; take another copy of the file"));
}

template <class T>
void AppendNumber(std::string& to, T number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// Returns the number of bytes read, less than `size` only at the end of the file.
absl::StatusOr<size_t> ReadAt(int fd, char* to, size_t size, int64_t offset) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, to + done, size - done, offset + static_cast<int64_t>(done));
    if (got == 0) break;
    if (got < 0 && errno != EINTR)
      return absl::UnavailableError(absl::StrCat("cannot read the archive: ", std::strerror(errno)));
    if (got > 0) done += static_cast<size_t>(got);
  }
  return done;
}

// Returns the names of all tables and columns.
nlohmann::ordered_json TableNames() {
  auto tables = nlohmann::ordered_json::array();
  for (const ArchiveTable& table : ArchiveTables()) {
    auto columns = nlohmann::ordered_json::array();
    for (const ArchiveColumn& column : table.columns) columns.push_back(column.name);
    tables.push_back({{"name", table.name}, {"columns", columns}});
  }
  return tables;
}

}  // namespace

// SHA-256 of a stream of bytes.
class ArchiveHash {
 public:
  ArchiveHash() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  ~ArchiveHash() { EVP_MD_CTX_free(context_); }
  ArchiveHash(const ArchiveHash&) = delete;
  ArchiveHash& operator=(const ArchiveHash&) = delete;
  void Add(absl::string_view bytes) { EVP_DigestUpdate(context_, bytes.data(), bytes.size()); }
  // Returns the hash of the bytes so far; more may follow.
  std::string Now() const {
    EVP_MD_CTX* copy = EVP_MD_CTX_new();
    EVP_MD_CTX_copy_ex(copy, context_);
    std::string hash(kHashSize, '\0');
    EVP_DigestFinal_ex(copy, reinterpret_cast<unsigned char*>(hash.data()), nullptr);
    EVP_MD_CTX_free(copy);
    return hash;
  }

 private:
  EVP_MD_CTX* const context_;
};

struct ArchiveWriter::Stream {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ArchiveHash hash;
  std::string pending;                                      // content that is not compressed yet
  std::string out = std::string(ZSTD_CStreamOutSize(), 0);  // buffer
  ~Stream() { ZSTD_freeCCtx(context); }
};

ArchiveWriter::ArchiveWriter(int fd) : fd_(fd), stream_(std::make_unique<Stream>()) {
  ZSTD_CCtx_setParameter(stream_->context, ZSTD_c_compressionLevel, kLevel);
}
ArchiveWriter::~ArchiveWriter() = default;

absl::Status ArchiveWriter::WriteHeader(int schema) {
  SCALELAB_RETURN_IF_ERROR(WriteOut(kMagic));
  const std::string header = nlohmann::ordered_json({{"schema", schema}, {"tables", TableNames()}}).dump();
  AppendNumber(stream_->pending, static_cast<uint32_t>(header.size()));
  stream_->pending += header;
  return absl::OkStatus();
}

absl::Status ArchiveWriter::WriteRow(const ArchiveRow& row) {
  std::string& to = stream_->pending;
  to.push_back(static_cast<char>(row.table));
  for (const Value& value : row.values) {
    to.push_back(static_cast<char>(value.type));
    switch (value.type) {
      case Value::Type::kNull:
        break;
      case Value::Type::kInteger:
        AppendNumber(to, value.integer);
        break;
      case Value::Type::kReal:
        AppendNumber(to, value.real);
        break;
      case Value::Type::kText:
      case Value::Type::kBlob:
        AppendNumber(to, static_cast<uint32_t>(value.bytes.size()));
        to += value.bytes;
    }
  }
  return to.size() < kPiece ? absl::OkStatus() : Compress(false);
}

absl::Status ArchiveWriter::Finish(const Seal& seal) {
  stream_->pending.push_back(kEnd);
  SCALELAB_RETURN_IF_ERROR(Compress(true));
  std::string sealed = seal(absl::BytesToHexString(stream_->hash.Now()));
  sealed.resize(kSealSize, ' ');
  SCALELAB_RETURN_IF_ERROR(WriteOut(sealed));
  return WriteOut(stream_->hash.Now());
}

absl::Status ArchiveWriter::Compress(bool end) {
  Stream& s = *stream_;
  ZSTD_inBuffer in{s.pending.data(), s.pending.size(), 0};
  for (bool more = true; more;) {
    ZSTD_outBuffer out{s.out.data(), s.out.size(), 0};
    const size_t left = ZSTD_compressStream2(s.context, &out, &in, end ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0)
      return absl::InternalError(absl::StrCat("cannot compress: ", ZSTD_getErrorName(left)));
    SCALELAB_RETURN_IF_ERROR(WriteOut({s.out.data(), out.pos}));
    more = end ? left > 0 : in.pos < in.size;
  }
  s.pending.clear();
  return absl::OkStatus();
}

absl::Status ArchiveWriter::WriteOut(absl::string_view bytes) {
  stream_->hash.Add(bytes);
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot write the archive into the data directory: ", std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

struct ArchiveReader::Stream {
  ZSTD_DCtx* context = ZSTD_createDCtx();
  std::string in = std::string(kPiece, 0);  // compressed bytes
  ZSTD_inBuffer unread{nullptr, 0, 0};      // of `in`
  // Position in the file of the first byte that `in` does not have yet.
  int64_t offset = 0;
  std::string content;  // decompressed
  size_t taken = 0;     // of `content`
  ~Stream() { ZSTD_freeDCtx(context); }
};

ArchiveReader::ArchiveReader(int fd) : fd_(fd) {}
ArchiveReader::~ArchiveReader() = default;

absl::Status ArchiveReader::CheckWhole() {
  bytes_ = lseek(fd_, 0, SEEK_END);
  const auto least = static_cast<int64_t>(kMagic.size() + kSealSize + kHashSize);
  if (bytes_ < least) return Damaged(absl::StrCat("it has ", std::max<int64_t>(bytes_, 0), " bytes"));
  ArchiveHash hash;
  std::string piece(kPiece, '\0');
  const int64_t seal_at = bytes_ - static_cast<int64_t>(kSealSize + kHashSize);
  const auto hash_up_to = [&](int64_t from, int64_t to) -> absl::Status {
    while (from < to) {
      const auto want = static_cast<size_t>(std::min<int64_t>(to - from, kPiece));
      const auto got = ReadAt(fd_, piece.data(), want, from);
      if (!got.ok()) return got.status();
      if (*got < want) return Damaged("it became shorter");
      hash.Add({piece.data(), want});
      from += static_cast<int64_t>(want);
    }
    return absl::OkStatus();
  };
  SCALELAB_RETURN_IF_ERROR(hash_up_to(0, seal_at));
  sealed_ = absl::BytesToHexString(hash.Now());
  SCALELAB_RETURN_IF_ERROR(hash_up_to(seal_at, seal_at + static_cast<int64_t>(kSealSize)));
  seal_.assign(piece, 0, kSealSize);
  const auto stored = ReadAt(fd_, piece.data(), kHashSize, bytes_ - static_cast<int64_t>(kHashSize));
  if (!stored.ok()) return stored.status();
  if (*stored < kHashSize || piece.compare(0, kHashSize, hash.Now()) != 0)
    return Damaged("its checksum is not that of its content");
  const auto magic = ReadAt(fd_, piece.data(), kMagic.size(), 0);
  if (!magic.ok()) return magic.status();
  if (absl::string_view(piece).substr(0, kMagic.size()) != kMagic)
    return Damaged("it does not begin as an archive does");
  return absl::OkStatus();
}

absl::Status ArchiveReader::Begin(int schema) {
  stream_ = std::make_unique<Stream>();
  stream_->offset = static_cast<int64_t>(kMagic.size());
  content_bytes_ = 0;
  const auto size = Take(sizeof(uint32_t));
  if (!size.ok()) return size.status();
  uint32_t length = 0;
  std::memcpy(&length, size->data(), sizeof length);
  if (length > kPiece) return Damaged("its header is too long");
  const auto text = Take(length);
  if (!text.ok()) return text.status();
  const auto header =
      nlohmann::ordered_json::parse(text->begin(), text->end(), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object() || !header.contains("schema") || !header["schema"].is_number_integer() ||
      !header.contains("tables"))
    return Damaged("its header is not one of an archive");
  const bool newer = header["schema"].get<int64_t>() > schema;
  if (!newer && ReadLayouts(header["tables"])) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the archive is from schema ", header["schema"].dump(),
                   " of the database, and this version of scalelab reads schema ", schema, "; ",
                   newer ? "upgrade scalelab, or use the version that wrote the archive"
                         : "use the version that wrote the archive"));
}

bool ArchiveReader::ReadLayouts(const nlohmann::ordered_json& tables) {
  layouts_.clear();
  const std::vector<ArchiveTable>& known = ArchiveTables();
  // Tables must have the order of ArchiveTables(), because rows refer to rows of earlier tables.
  size_t next = 0;
  for (const auto& of_table : tables) {
    if (!of_table.is_object() || !of_table.contains("name") || !of_table.contains("columns")) return false;
    while (next < known.size() && of_table["name"] != known[next].name) ++next;
    if (next == known.size()) return false;
    std::vector<bool> present(known[next].columns.size());
    Layout layout{next, {}};
    for (const auto& name : of_table["columns"]) {
      const auto& columns = known[next].columns;
      const auto found =
          std::ranges::find_if(columns, [&](const ArchiveColumn& c) { return name == c.name; });
      if (found == columns.end() || present[found - columns.begin()]) return false;
      layout.columns.push_back(static_cast<size_t>(found - columns.begin()));
      present[layout.columns.back()] = true;
    }
    for (size_t i = 0; i < present.size(); ++i)
      if (!present[i] && !known[next].columns[i].before.has_value()) return false;
    layouts_.push_back(std::move(layout));
    ++next;
  }
  return !layouts_.empty() && layouts_[0].table == 0;
}

absl::Status ArchiveReader::Fill(size_t count) {
  Stream& s = *stream_;
  if (s.taken > 0 && s.content.size() - s.taken < count) {
    s.content.erase(0, s.taken);
    s.taken = 0;
  }
  const int64_t end = bytes_ - static_cast<int64_t>(kSealSize + kHashSize);
  while (s.content.size() - s.taken < count) {
    if (s.unread.pos == s.unread.size) {
      const auto want = static_cast<size_t>(std::min<int64_t>(end - s.offset, kPiece));
      const auto got = ReadAt(fd_, s.in.data(), want, s.offset);
      if (!got.ok()) return got.status();
      if (*got == 0) return Damaged("its content ends early");
      s.unread = {s.in.data(), *got, 0};
      s.offset += static_cast<int64_t>(*got);
    }
    const size_t before = s.content.size();
    s.content.resize(before + kPiece);
    ZSTD_outBuffer out{s.content.data() + before, kPiece, 0};
    const size_t left = ZSTD_decompressStream(s.context, &out, &s.unread);
    s.content.resize(before + out.pos);
    if (ZSTD_isError(left) != 0) return Damaged(ZSTD_getErrorName(left));
    content_bytes_ += static_cast<int64_t>(out.pos);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> ArchiveReader::Take(size_t count) {
  SCALELAB_RETURN_IF_ERROR(Fill(count));
  const absl::string_view taken(stream_->content.data() + stream_->taken, count);
  stream_->taken += count;
  return taken;
}

absl::StatusOr<bool> ArchiveReader::Next(ArchiveRow& row) {
  const auto table = Take(1);
  if (!table.ok()) return table.status();
  if (table->front() == kEnd) return false;
  const auto index = static_cast<size_t>(static_cast<unsigned char>(table->front()));
  if (index >= layouts_.size()) return Damaged("it has a row of an unknown table");
  const Layout& layout = layouts_[index];
  const std::vector<ArchiveColumn>& columns = ArchiveTables()[layout.table].columns;
  row.table = layout.table;
  row.values.resize(columns.size());
  for (size_t i = 0; layout.columns.size() < columns.size() && i < columns.size(); ++i) {
    row.values[i] = columns[i].before.value_or(Value());
  }
  size_t room = kMaxRowBytes;
  for (const size_t column : layout.columns) {
    SCALELAB_RETURN_IF_ERROR(ReadValue(std::min(kMaxBytes, room), row.values[column]));
    room -= row.values[column].bytes.size();
  }
  return true;
}

absl::Status ArchiveReader::ReadValue(size_t most_bytes, Value& value) {
  const auto type = Take(1);
  if (!type.ok()) return type.status();
  value.type = static_cast<Value::Type>(type->front());
  value.bytes.clear();
  // Free the memory of a large value of an earlier row.
  if (value.bytes.capacity() > kPiece) value.bytes = std::string();
  const auto read = [this](auto& number) -> absl::Status {
    const auto bytes = Take(sizeof number);
    if (bytes.ok()) std::memcpy(&number, bytes->data(), sizeof number);
    return bytes.status();
  };
  switch (value.type) {
    case Value::Type::kNull:
      return absl::OkStatus();
    case Value::Type::kInteger:
      return read(value.integer);
    case Value::Type::kReal:
      return read(value.real);
    case Value::Type::kText:
    case Value::Type::kBlob: {
      uint32_t size = 0;
      SCALELAB_RETURN_IF_ERROR(read(size));
      if (size > most_bytes) return Damaged("it has a value or a row that is too long");
      const auto bytes = Take(size);
      if (bytes.ok()) value.bytes.assign(bytes->data(), bytes->size());
      return bytes.status();
    }
  }
  return Damaged("it has a value of an unknown type");
}

}  // namespace scalelab::db
