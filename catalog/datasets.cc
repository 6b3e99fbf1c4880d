#include "catalog/datasets.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "catalog/image_folder.h"

namespace scalelab {
namespace {

constexpr int kMaxTrainFiles = 5;
constexpr char kGetIt[] =
    "the binary version of CIFAR-10 is cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html";

bool Exists(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0;
}

// Opens the file instead of calling access(2), which may be wrong on network filesystems and
// with root squash.
absl::StatusOr<RecordFile> CheckRecordFile(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read: ", std::strerror(errno),
                                                   "; check the permissions of the file and its directory"));
  }
  struct stat st;
  int rc = fstat(fd, &st);
  int error = errno;
  close(fd);
  if (rc != 0)
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read: ", std::strerror(error)));
  if (!S_ISREG(st.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file; ", kGetIt));
  }
  int64_t size = st.st_size;
  int64_t rest = size % kCifar10RecordBytes;
  if (size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty; copy or unpack it again"));
  }
  if (rest != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", size, " bytes, which is ", rest, " bytes too many or ", kCifar10RecordBytes - rest,
        " too few for whole records of ", kCifar10RecordBytes, " bytes; copy or unpack it again"));
  }
  return RecordFile{path, size / kCifar10RecordBytes};
}

// Returns advice for a user whose `dir` contains the same data in another layout.
std::string MissingHint(const std::string& dir) {
  std::string inner = absl::StrCat(dir, "/cifar-10-batches-bin");
  if (Exists(inner + "/data_batch_1.bin"))
    return absl::StrCat("the data are in ", inner, ": set data_dir to it");
  if (Exists(dir + "/data_batch_1") || Exists(dir + "/cifar-10-batches-py")) {
    return absl::StrCat("this is the Python version; ", kGetIt);
  }
  return kGetIt;
}

}  // namespace

absl::StatusOr<RecordFiles> FindCifar10(const std::string& dir) {
  if (dir.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no directory is given for data set cifar10; set data_dir, ", kGetIt));
  }
  struct stat st;
  if (stat(dir.c_str(), &st) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) {
      return absl::InvalidArgumentError(absl::StrCat(
          "directory ", dir, " cannot be read: ", std::strerror(errno), "; check its permissions"));
    }
    return absl::NotFoundError(
        absl::StrCat("directory ", dir, " does not exist; check data_dir, as the nodes see it"));
  }
  if (!S_ISDIR(st.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " is not a directory; data_dir names the directory of data_batch_1.bin"));
  }
  if (access(dir.c_str(), X_OK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "directory ", dir, " cannot be read: ", std::strerror(errno), "; check its permissions"));
  }

  RecordFiles files;
  std::optional<std::string> gap;
  for (int i = 1; i <= kMaxTrainFiles; ++i) {
    std::string path = absl::StrCat(dir, "/data_batch_", i, ".bin");
    if (!Exists(path)) {
      if (!gap) gap = path;
      continue;
    }
    if (gap) {
      if (files.train.empty()) break;  // the first file is missing: reported below
      return absl::InvalidArgumentError(
          absl::StrCat(*gap, " is missing although ", path, " is there; copy or unpack it again"));
    }
    absl::StatusOr<RecordFile> file = CheckRecordFile(path);
    if (!file.ok()) return file.status();
    files.train.push_back(*std::move(file));
  }
  if (files.train.empty()) {
    return absl::NotFoundError(absl::StrCat(dir, " has no data_batch_1.bin; ", MissingHint(dir)));
  }
  std::string test = absl::StrCat(dir, "/test_batch.bin");
  if (!Exists(test)) {
    return absl::NotFoundError(absl::StrCat(dir, " has no test_batch.bin; ", MissingHint(dir)));
  }
  absl::StatusOr<RecordFile> file = CheckRecordFile(test);
  if (!file.ok()) return file.status();
  files.test.push_back(*std::move(file));
  return files;
}

absl::StatusOr<TokenFiles> FindTokens(const std::string& dir) {
  constexpr char kMakeThem[] = "they hold tokens as little-endian numbers of 16 bits";
  TokenFiles files;
  for (const auto& [file, name] : {std::pair(&files.train, "train.bin"), {&files.val, "val.bin"}}) {
    const std::string path = absl::StrCat(dir, "/", name);
    struct stat st;
    if (dir.empty() || stat(path.c_str(), &st) != 0) {
      return absl::NotFoundError(absl::StrCat(
          path, " does not exist; data_dir names the directory of train.bin and val.bin, ", kMakeThem));
    }
    if (!S_ISREG(st.st_mode) || st.st_size % 2 != 0 || access(path.c_str(), R_OK) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is not a readable file of an even number of bytes; ", kMakeThem));
    }
    *file = {path, st.st_size / 2};
  }
  return files;
}

bool HasTokens(absl::string_view name) { return name == "tokens" || name == "synthetic-tokens"; }

absl::Status CheckDataset(absl::string_view name, const std::string& dir) {
  if (name == "synthetic" || name == "synthetic-tokens") return absl::OkStatus();
  if (name == "tokens") return FindTokens(dir).status();
  if (name == "cifar10") return FindCifar10(dir).status();
  if (name == "imagefolder") return CheckImageFolder(dir);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown data set '", name, "'; known: cifar10, imagefolder, synthetic, tokens, synthetic-tokens"));
}

}  // namespace scalelab
