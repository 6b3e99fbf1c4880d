#include "catalog/images/verify.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/datasets.h"
#include "catalog/image_folder.h"
#include "catalog/images/decode.h"

namespace scalelab {
namespace {

using Progress = std::function<void(int64_t done, int64_t all)>;

constexpr int64_t kOfficialRecords = 10'000;
constexpr int kCifar10Classes = 10;

// MD5 of the files in cifar-10-binary.tar.gz.
struct OfficialFile {
  absl::string_view name, md5;
};
constexpr OfficialFile kOfficial[] = {{"data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"},
                                      {"data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"},
                                      {"data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"},
                                      {"data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"},
                                      {"data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"},
                                      {"test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"}};

std::string Md5(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  // EVP_Digest fails on systems that forbid MD5. The empty result makes the caller skip the comparison.
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_md5(), nullptr) != 1) return "";
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), length));
}

// Returns the problem of a file of complete records, or nothing.
std::optional<std::string> ProblemOf(const RecordFile& file) {
  const absl::StatusOr<std::string> bytes = ReadFile(file.path);
  if (!bytes.ok()) return std::string(bytes.status().message());
  for (int64_t record = 0; record < file.records; ++record) {
    const int label = static_cast<uint8_t>((*bytes)[record * kCifar10RecordBytes]);
    if (label >= kCifar10Classes) {
      return absl::StrCat("record ", record, " has label ", label,
                          ", which is not in 0 to 9: this is not a CIFAR-10 file in the binary version");
    }
  }
  if (file.records != kOfficialRecords) return std::nullopt;
  const std::string md5 = Md5(*bytes);
  for (const OfficialFile& official : kOfficial) {
    if (absl::EndsWith(file.path, absl::StrCat("/", official.name)) && !md5.empty() && md5 != official.md5) {
      return absl::StrCat("its MD5 is ", md5, ", that of the official file is ", official.md5,
                          ": copy or unpack it again");
    }
  }
  return std::nullopt;
}

absl::StatusOr<Verification> VerifyCifar10(const std::string& dir, const Progress& progress) {
  const absl::StatusOr<RecordFiles> found = FindCifar10(dir);
  if (!found.ok()) return found.status();
  std::vector<RecordFile> files = found->train;
  files.insert(files.end(), found->test.begin(), found->test.end());
  Verification result;
  for (const RecordFile& file : files) {
    progress(result.files++, static_cast<int64_t>(files.size()));
    result.images += file.records;
    if (std::optional<std::string> problem = ProblemOf(file))
      result.bad.push_back({file.path, *std::move(problem)});
  }
  return result;
}

std::string ProblemOf(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return std::string(bytes.status().message());
  return std::string(DecodeImage(*bytes).status().message());
}

absl::StatusOr<Verification> VerifyImageFolder(const std::string& dir, const Progress& progress) {
  std::vector<ImageList> parts;
  Verification result;
  for (ImagePart part : {ImagePart::kTrain, ImagePart::kVal}) {
    absl::StatusOr<ImageList> list = ListImages(dir, part);
    if (!list.ok()) return list.status();
    result.images += list->size();
    parts.push_back(*std::move(list));
  }
  result.files = result.images;

  std::atomic<int64_t> next = 0;
  std::mutex mutex;  // guards `done` and `bad`
  int64_t done = 0;
  std::map<int64_t, BadFile> bad;
  const auto work = [&] {
    for (int64_t i; (i = next++) < result.images;) {
      const int64_t train = parts[0].size();
      const std::string path = i < train ? parts[0].path(i) : parts[1].path(i - train);
      std::string problem = ProblemOf(path);
      const std::lock_guard lock(mutex);
      if (!problem.empty()) bad[i] = {path, std::move(problem)};
      if (++done % 1000 == 0) progress(done, result.images);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (unsigned t = 1; t < std::max(1u, std::thread::hardware_concurrency()); ++t)
      threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The process has reached its limit of threads. Fewer threads, or this one alone, do all the work.
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (auto& [index, file] : bad) result.bad.push_back(std::move(file));
  return result;
}

}  // namespace

absl::StatusOr<Verification> VerifyDataset(absl::string_view name, const std::string& dir,
                                           const Progress& progress) {
  if (name == "cifar10") return VerifyCifar10(dir, progress);
  if (name == "imagefolder") return VerifyImageFolder(dir, progress);
  return absl::InvalidArgumentError(
      absl::StrCat("data set '", name, "' has no files to verify; known: cifar10, imagefolder"));
}

}  // namespace scalelab
