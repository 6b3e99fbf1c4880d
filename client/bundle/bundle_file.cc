#include "client/bundle/bundle_file.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace scalelab::client {
namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kMostInMemory = 1 << 30;
constexpr size_t kPiece = 256 << 10;
constexpr size_t kLongestName = 90;
constexpr char kSums[] = "SHA256SUMS", kSeal[] = "bundle.sha256";
constexpr int64_t kTail = 4 * kBlock;  // header and content of kSeal, and the end of the archive

// Returns the header of a file of a tar archive.
std::string TarHeader(const std::string& name, int64_t size) {
  std::string header(kBlock, '\0');
  const auto put = [&header](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, absl::StrFormat("%011o", size));
  put(136, "00000000000");  // no time: the same study gives the same bytes
  put(148, "        ");
  put(156, "0");
  put(257, "ustar");
  put(263, "00");
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, absl::StrFormat("%06o", sum));
  header[154] = '\0';
  return header;
}

std::string Padding(int64_t size) { return std::string((kBlock - size % kBlock) % kBlock, '\0'); }

// Returns the last bytes of a bundle: the entry kSeal with the checksum of all bytes before it, and the end
// of the archive.
std::string TailOf(const std::string& sha256) {
  const std::string content = absl::StrCat(sha256, "\n");
  const auto size = static_cast<int64_t>(content.size());
  return absl::StrCat(TarHeader(kSeal, size), content, Padding(size), std::string(2 * kBlock, '\0'));
}

}  // namespace

struct Sha256Stream::Context {
  Context() : digest(EVP_MD_CTX_new()) { EVP_DigestInit_ex(digest, EVP_sha256(), nullptr); }
  ~Context() { EVP_MD_CTX_free(digest); }
  EVP_MD_CTX* const digest;
};

Sha256Stream::Sha256Stream() : context_(std::make_unique<Context>()) {}
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Add(absl::string_view bytes) {
  EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size());
}

std::string Sha256Stream::Finish() {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  EVP_DigestFinal_ex(context_->digest, reinterpret_cast<unsigned char*>(digest.data()), &size);
  return absl::BytesToHexString(digest.substr(0, size));
}

void BundleWriter::Write(absl::string_view bytes) {
  all_.Add(bytes);
  out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

absl::Status BundleWriter::AddEntry(const std::string& name, int64_t size,
                                    const std::function<absl::Status()>& content) {
  if (name.size() > kLongestName || size > kMostBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " has ", size, " bytes; a bundle can have files of at most 8 GiB"));
  }
  Write(TarHeader(name, size));
  if (const absl::Status status = content(); !status.ok()) return status;
  Write(Padding(size));
  return out_ ? absl::OkStatus() : absl::UnknownError("cannot write the bundle");
}

absl::Status BundleWriter::Add(const std::string& name, absl::string_view content) {
  Sha256Stream sum;
  sum.Add(content);
  absl::StrAppend(&sums_, sum.Finish(), "  ", name, "\n");
  return AddEntry(name, static_cast<int64_t>(content.size()), [&] {
    Write(content);
    return absl::OkStatus();
  });
}

absl::Status BundleWriter::Add(const std::string& name, int64_t size,
                               const std::function<bool(char*, size_t)>& read) {
  Sha256Stream sum;
  const absl::Status status = AddEntry(name, size, [&]() -> absl::Status {
    std::string piece;
    for (int64_t left = size; left > 0; left -= static_cast<int64_t>(piece.size())) {
      piece.resize(static_cast<size_t>(std::min<int64_t>(left, kPiece)));
      if (!read(piece.data(), piece.size()))
        return absl::UnknownError(absl::StrCat("cannot read the data of ", name));
      sum.Add(piece);
      Write(piece);
    }
    return absl::OkStatus();
  });
  absl::StrAppend(&sums_, sum.Finish(), "  ", name, "\n");
  return status;
}

absl::Status BundleWriter::Finish() {
  const std::string sums = std::move(sums_);
  if (const absl::Status status = Add(kSums, sums); !status.ok()) return status;
  out_ << TailOf(all_.Finish());
  return out_ ? absl::OkStatus() : absl::UnknownError("cannot write the bundle");
}

absl::StatusOr<BundleReader> BundleReader::Open(const std::string& path) {
  BundleReader reader;
  reader.path_ = path;
  reader.file_ = std::make_unique<std::ifstream>(path, std::ios::binary | std::ios::ate);
  if (!*reader.file_)
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  reader.size_ = reader.file_->tellg();
  if (const absl::Status status = reader.CheckWhole(); !status.ok()) return status;
  if (const absl::Status status = reader.ReadEntries(); !status.ok()) return status;
  if (const absl::Status status = reader.CheckSums(); !status.ok()) return status;
  return reader;
}

absl::Status BundleReader::CheckWhole() {
  const absl::Status damaged = absl::DataLossError(
      absl::StrCat(path_,
                   " is damaged, incomplete or no bundle: its checksum is not that of its content; take "
                   "another copy"));
  if (size_ < kTail || size_ % kBlock != 0) return damaged;
  Sha256Stream all;
  std::string piece;
  file_->seekg(0);
  for (int64_t left = size_ - kTail; left > 0; left -= static_cast<int64_t>(piece.size())) {
    piece.resize(static_cast<size_t>(std::min<int64_t>(left, kPiece)));
    if (!file_->read(piece.data(), static_cast<std::streamsize>(piece.size()))) return damaged;
    all.Add(piece);
  }
  sha256_ = all.Finish();
  std::string tail(kTail, '\0');
  if (!file_->read(tail.data(), kTail) || tail != TailOf(sha256_)) return damaged;
  return absl::OkStatus();
}

// The checksum is correct, so errors in the entries are not damage: somebody made them on purpose, or another
// program wrote the file.
absl::Status BundleReader::ReadEntries() {
  std::string header(kBlock, '\0');
  for (int64_t at = 0; at < size_ - kTail;) {
    file_->seekg(at);
    if (!file_->read(header.data(), kBlock)) break;
    const std::string name(header.c_str());
    const int64_t size = std::strtoll(header.substr(124, 11).c_str(), nullptr, 8);
    const bool usual = !name.empty() && size >= 0 && at + kBlock + size <= size_ - kTail;
    if (!usual || header != TarHeader(name, size) || entries_.contains(name))
      return absl::DataLossError(
          absl::StrCat(path_, " was not written by scalelab: unusual entry at byte ", at));
    entries_[name] = {at + kBlock, size, ""};
    at += kBlock + size + (kBlock - size % kBlock) % kBlock;
  }
  return absl::OkStatus();
}

absl::Status BundleReader::CheckSums() {
  const auto sums = Read(kSums);
  if (!sums.ok()) return sums.status();
  for (const absl::string_view line : absl::StrSplit(*sums, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits("  ", 1));
    const auto entry = entries_.find(std::string(parts.second));
    if (entry != entries_.end()) entry->second.sha256 = std::string(parts.first);
  }
  for (const auto& [name, entry] : entries_) {
    if (name == kSums) continue;
    Sha256Stream sum;
    const absl::Status read = Read(name, [&](absl::string_view piece) {
      sum.Add(piece);
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
    if (sum.Finish() != entry.sha256)
      return absl::DataLossError(absl::StrCat(path_, ": ", name, " is not the file that ", kSums, " names"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BundleReader::Read(const std::string& name) {
  const auto entry = entries_.find(name);
  if (entry != entries_.end() && entry->second.size > kMostInMemory)
    return absl::DataLossError(absl::StrCat(path_, ": ", name, " is larger than 1 GiB"));
  std::string content;
  const absl::Status status = Read(name, [&content](absl::string_view piece) {
    absl::StrAppend(&content, piece);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return content;
}

absl::Status BundleReader::Read(const std::string& name,
                                const std::function<absl::Status(absl::string_view)>& take) {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return absl::DataLossError(absl::StrCat(path_, " has no ", name));
  const int64_t end = entry->second.offset + entry->second.size;
  for (int64_t at = entry->second.offset; at < end;) {
    const auto piece = ReadAt(at, std::min<int64_t>(end - at, kPiece));
    if (!piece.ok()) return piece.status();
    if (const absl::Status status = take(*piece); !status.ok()) return status;
    at += static_cast<int64_t>(piece->size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BundleReader::ReadAt(int64_t offset, int64_t bytes) {
  std::string piece(static_cast<size_t>(bytes), '\0');
  file_->clear();
  file_->seekg(offset);
  if (!file_->read(piece.data(), bytes)) return absl::UnknownError(absl::StrCat("cannot read ", path_));
  return piece;
}

}  // namespace scalelab::client
