#include "worker/trainer/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "proto/datasets.h"
#include "worker/trainer/data/random.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kSyntheticTrain = 50'000, kSyntheticTest = 10'000;

ImageSet Allocate(int64_t size) {
  ImageSet set;
  set.size = size;
  set.pixels = std::make_unique_for_overwrite<uint8_t[]>(size * kImageBytes);
  set.labels.resize(size);
  return set;
}

ImageSet ReadRecords(const std::vector<RecordFile>& files, int64_t limit) {
  int64_t available = 0;
  for (const RecordFile& file : files) available += file.records;
  ImageSet set = Allocate(std::min(available, limit));
  std::vector<char> chunk(1000 * kCifar10RecordBytes);
  int64_t image = 0;
  for (const RecordFile& file : files) {
    std::ifstream in(file.path, std::ios::binary);
    for (int64_t left = std::min(file.records, set.size - image); left > 0;) {
      const int64_t records = std::min<int64_t>(left, 1000);
      if (!in.read(chunk.data(), records * kCifar10RecordBytes)) {
        throw TrainerError(
            file.path + ": cannot read record " + std::to_string(file.records - left) + " and after",
            ErrorKind::kData);
      }
      for (int64_t r = 0; r < records; ++r, ++image) {
        const char* record = chunk.data() + r * kCifar10RecordBytes;
        set.labels[image] = static_cast<uint8_t>(record[0]);
        if (set.labels[image] >= kClasses) {
          throw TrainerError(file.path + ": label " + std::to_string(set.labels[image]) +
                                 " is none of 0 to 9: this is no CIFAR-10 file in its binary version",
                             ErrorKind::kData);
        }
        std::memcpy(set.pixels.get() + image * kImageBytes, record + 1, kImageBytes);
      }
      left -= records;
    }
  }
  return set;
}

// `first` keeps training and test images apart.
ImageSet MakeSynthetic(int64_t size, uint64_t first) {
  uint8_t patterns[kClasses][kImageBytes];
  for (int c = 0; c < kClasses; ++c) {
    // One random value for each 8 x 8 square, so that the pattern survives cropping.
    for (int64_t i = 0; i < kImageBytes; ++i) {
      const int64_t square = i / kPlane * 16 + i % kPlane / kSide / 8 * 4 + i % kSide / 8;
      patterns[c][i] = static_cast<uint8_t>(64 + Random(7, c, square).Below(128));
    }
  }
  ImageSet set = Allocate(size);
  for (int64_t i = 0; i < size; ++i) {
    Random random(11, first, i);
    const int label = static_cast<int>(random.Below(kClasses));
    set.labels[i] = static_cast<uint8_t>(label);
    uint8_t* out = set.pixels.get() + i * kImageBytes;
    for (int64_t p = 0; p < kImageBytes; p += 8) {
      const uint64_t noise = random.Next() & 0x7f7f7f7f7f7f7f7fu;
      uint8_t bytes[8];
      std::memcpy(bytes, &noise, 8);
      for (int k = 0; k < 8; ++k) out[p + k] = static_cast<uint8_t>(patterns[label][p + k] / 2 + bytes[k]);
    }
  }
  return set;
}

int64_t TrainLimit(const TrainingSpec& spec) {
  return spec.train_samples == 0 ? INT64_MAX : spec.train_samples;
}

Dataset LoadCifar10(const TrainingSpec& spec) {
  absl::StatusOr<RecordFiles> files = FindCifar10(spec.data_dir);
  if (!files.ok()) throw TrainerError(std::string(files.status().message()), ErrorKind::kData);
  Dataset data;
  data.train = ReadRecords(files->train, TrainLimit(spec));
  if (spec.evaluate) data.test = ReadRecords(files->test, INT64_MAX);
  return data;
}

Dataset LoadSynthetic(const TrainingSpec& spec) {
  Dataset data;
  data.train = MakeSynthetic(std::min(kSyntheticTrain, TrainLimit(spec)), 0);
  if (spec.evaluate) data.test = MakeSynthetic(kSyntheticTest, 1);
  return data;
}

struct Entry {
  std::string_view name;
  Dataset (*load)(const TrainingSpec&);
};

constexpr Entry kDatasets[] = {{"cifar10", LoadCifar10}, {"synthetic", LoadSynthetic}};

}  // namespace

Dataset LoadDataset(const TrainingSpec& spec) {
  std::string known;
  for (const Entry& entry : kDatasets) {
    if (entry.name == spec.dataset) return entry.load(spec);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw TrainerError("this trainer has no data set \"" + spec.dataset + "\": it has " + known,
                     ErrorKind::kData);
}

}  // namespace scalelab::trainer
