#include "worker/trainer/checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <streambuf>
#include <system_error>
#include <vector>

#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

[[noreturn]] void FailToWrite(const std::string& path, int error) {
  throw TrainerError("cannot write " + path + ": " + std::strerror(error) +
                     "; check the space and the permissions of its directory");
}

// A descriptor that is closed at the end of the scope.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0666)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

// Writes to a descriptor and computes the checksum of the bytes.
class SummingBuffer : public std::streambuf {
 public:
  explicit SummingBuffer(int descriptor) : descriptor_(descriptor), buffer_(kBufferBytes) {
    setp(buffer_.data(), buffer_.data() + buffer_.size());
  }
  int error() const { return error_; }
  FileSum sum() const { return {bytes_, sum_.Hex()}; }

 protected:
  int sync() override {
    const std::string_view filled(pbase(), pptr() - pbase());
    setp(buffer_.data(), buffer_.data() + buffer_.size());
    return Write(filled) ? 0 : -1;
  }
  int_type overflow(int_type c) override {
    if (sync() != 0) return traits_type::eof();
    if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
    return traits_type::not_eof(c);
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    if (count < epptr() - pptr()) return std::streambuf::xsputn(text, count);
    if (sync() != 0) return 0;
    return Write({text, static_cast<size_t>(count)}) ? count : 0;  // large blocks are not copied
  }

 private:
  bool Write(std::string_view bytes) {
    sum_.Add(bytes);
    bytes_ += std::ssize(bytes);
    while (!bytes.empty() && error_ == 0) {
      const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
      if (written >= 0) {
        bytes.remove_prefix(written);
      } else if (errno != EINTR) {
        error_ = errno;
      }
    }
    return error_ == 0;
  }

  const int descriptor_;
  std::vector<char> buffer_;
  ByteSum sum_;
  int64_t bytes_ = 0;
  int error_ = 0;
};

}  // namespace

// For a given word, the new state is a bijective function of the old state. For a given state, it is a
// bijective function of the word. So two texts that differ in one word have different sums.
void ByteSum::AddWord(uint64_t word) {
  state_ = (state_ ^ word) * 0xff51afd7ed558ccdu;
  state_ ^= state_ >> 32;
}

void ByteSum::Add(std::string_view bytes) {
  const auto take = [&](size_t place, size_t count) {
    std::memcpy(rest_ + place, bytes.data(), count);
    bytes.remove_prefix(count);
    length_ += count;
  };
  if (const size_t filled = length_ % 8; filled > 0 && !bytes.empty()) {
    take(filled, std::min(8 - filled, bytes.size()));
    if (length_ % 8 != 0) return;
    uint64_t word = 0;
    std::memcpy(&word, rest_, 8);
    AddWord(word);
  }
  const size_t whole = bytes.size() / 8 * 8;
  for (size_t at = 0; at < whole; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    AddWord(word);
  }
  bytes.remove_prefix(whole);
  length_ += whole;
  if (!bytes.empty()) take(0, bytes.size());
}

std::string ByteSum::Hex() const {
  ByteSum last = *this;
  uint64_t word = 0;
  std::memcpy(&word, rest_, length_ % 8);
  last.AddWord(word);
  last.AddWord(length_);
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(last.state_));
  return text;
}

FileSum SumOf(std::string_view bytes) {
  ByteSum sum;
  sum.Add(bytes);
  return {std::ssize(bytes), sum.Hex()};
}

FileSum WriteDurably(const std::string& path, const std::function<void(std::ostream&)>& write) {
  const std::string temporary = path + ".new";
  const auto fail = [&](int error) {
    std::remove(temporary.c_str());  // do not leave a partial file
    FailToWrite(temporary, error);
  };
  const Descriptor file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.get() < 0) FailToWrite(temporary, errno);
  SummingBuffer buffer(file.get());
  std::ostream out(&buffer);
  try {
    write(out);
  } catch (...) {
    if (buffer.error() != 0) fail(buffer.error());
    std::remove(temporary.c_str());
    throw;
  }
  if (!out.flush()) fail(buffer.error() != 0 ? buffer.error() : EIO);
  // Sync before renaming: otherwise a power failure could leave an empty file.
  if (fsync(file.get()) != 0 || std::rename(temporary.c_str(), path.c_str()) != 0) fail(errno);
  const size_t slash = path.rfind('/');
  SyncDirectory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
  return buffer.sum();
}

std::string ReadWhole(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  struct stat status {};
  const auto fail = [&](int error) {
    const std::string what = "cannot read " + path + ": " + std::strerror(error);
    if (error == ENOENT) throw TrainerError(what, ErrorKind::kData);
    throw TrainerError(what + "; start again when its file system works");
  };
  if (file.get() < 0 || fstat(file.get(), &status) != 0) fail(errno);
  if (!S_ISREG(status.st_mode)) fail(EINVAL);
  std::string text(status.st_size, '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t got = read(file.get(), text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(errno);
    if (got == 0) text.resize(at);
    at += got;
  }
  return text;
}

void SyncDirectory(const std::string& path) {
  const Descriptor directory(path, O_RDONLY | O_DIRECTORY);
  if (directory.get() >= 0 && fsync(directory.get()) == 0) return;
  // Some file systems cannot sync directories, and have no cache of names to lose.
  if (directory.get() >= 0 && errno == EINVAL) return;
  FailToWrite(path, errno);
}

void SyncDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::path directory = std::filesystem::canonical(path, error);
  if (error) FailToWrite(path, error.value());
  struct stat first {
  }, now{};
  if (stat(directory.c_str(), &first) != 0) FailToWrite(path, errno);
  while (stat(directory.c_str(), &now) == 0 && now.st_dev == first.st_dev) {
    if (access(directory.c_str(), R_OK) == 0) SyncDirectory(directory);
    if (!directory.has_relative_path()) return;
    directory = directory.parent_path();
  }
}

}  // namespace scalelab::trainer
