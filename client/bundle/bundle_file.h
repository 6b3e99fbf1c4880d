// The file format of bundles: a tar archive (POSIX ustar) that every tar program reads.
//
//   README.txt       what the bundle is, and how to check it
//   manifest.json    format, study, service, version
//   ...              the files of the study
//   SHA256SUMS       the SHA-256 of each file above; `sha256sum -c SHA256SUMS` checks them
//   bundle.sha256    the SHA-256 of all bytes of the bundle before this entry
//
// The entry bundle.sha256 and the end of the archive have a fixed size, so that a check of the whole file needs no parser: no
// byte can change without being found, not even in the headers.
#pragma once

#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab::client {

// Computes the SHA-256 of bytes that come in pieces.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  void Add(absl::string_view bytes);
  // Returns it in hexadecimal. Must not be called twice.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Writes a bundle to a stream. The same files give the same bytes.
class BundleWriter {
 public:
  // The size that a file of a bundle may have: 11 octal digits.
  static constexpr int64_t kMostBytes = (int64_t{8} << 30) - 1;

  explicit BundleWriter(std::ostream& out) : out_(out) {}
  // `name` has at most 90 characters, and is not the name of an earlier file.
  absl::Status Add(const std::string& name, absl::string_view content);
  // Adds a file of `size` bytes. `read` writes the next bytes to a buffer, and returns false if it cannot.
  absl::Status Add(const std::string& name, int64_t size, const std::function<bool(char*, size_t)>& read);
  // Writes the checksums. UNKNOWN if a write has failed.
  absl::Status Finish();

 private:
  void Write(absl::string_view bytes);
  absl::Status AddEntry(const std::string& name, int64_t size, const std::function<absl::Status()>& content);

  std::ostream& out_;
  Sha256Stream all_;
  std::string sums_;
};

// A bundle that is whole.
class BundleReader {
 public:
  // Reads the whole file. NOT_FOUND if it cannot be read, DATA_LOSS if any byte is damaged or missing, or if it is no bundle.
  static absl::StatusOr<BundleReader> Open(const std::string& path);

  struct Entry {
    int64_t offset = 0, size = 0;
    std::string sha256;
  };
  const std::map<std::string, Entry>& entries() const { return entries_; }
  // The checksum of the bundle in hexadecimal.
  const std::string& sha256() const { return sha256_; }
  // Returns the content of a file. DATA_LOSS if the bundle does not have it, or if it is larger than 1 GiB.
  absl::StatusOr<std::string> Read(const std::string& name);
  // Returns bytes at a position of the bundle.
  absl::StatusOr<std::string> ReadAt(int64_t offset, int64_t bytes);
  // Passes the content of a file to `take` in pieces. If `take` returns an error, stops and
  // returns this error.
  absl::Status Read(const std::string& name, const std::function<absl::Status(absl::string_view)>& take);

 private:
  absl::Status CheckWhole();
  absl::Status ReadEntries();
  absl::Status CheckSums();

  std::string path_;
  std::unique_ptr<std::ifstream> file_;
  int64_t size_ = 0;
  std::string sha256_;
  std::map<std::string, Entry> entries_;
};

}  // namespace scalelab::client
