#include "worker/trainer/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/datasets.h"
#include "catalog/image_folder.h"
#include "catalog/models.h"
#include "worker/trainer/data/image_files.h"
#include "worker/trainer/data/random.h"
#include "worker/trainer/data/synthetic_images.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr int64_t kSyntheticTrain = 50'000;       // at most
constexpr int64_t kSyntheticBytes = 200LL << 20;  // of training images, unless train_samples is set

ImageSet Allocate(const ImageShape& shape, int64_t size) {
  ImageSet set;
  set.shape = shape;
  set.size = size;
  set.pixels = std::make_unique_for_overwrite<uint8_t[]>(size * shape.bytes());
  set.labels.resize(size);
  return set;
}

ImageSet ReadRecords(const std::vector<RecordFile>& files, int64_t limit) {
  int64_t available = 0;
  for (const RecordFile& file : files) available += file.records;
  ImageSet set = Allocate(ImageShape(), std::min(available, limit));
  std::vector<char> chunk(1000 * kCifar10RecordBytes);
  int64_t image = 0;
  for (const RecordFile& file : files) {
    std::ifstream in(file.path, std::ios::binary);
    for (int64_t left = std::min(file.records, set.size - image); left > 0;) {
      const int64_t records = std::min<int64_t>(left, 1000);
      if (!in.read(chunk.data(), records * kCifar10RecordBytes)) {
        throw TrainerError(file.path + ": cannot read from record " + std::to_string(file.records - left) +
                               " on: download the data set again",
                           ErrorKind::kData);
      }
      for (int64_t r = 0; r < records; ++r, ++image) {
        const char* record = chunk.data() + r * kCifar10RecordBytes;
        set.labels[image] = static_cast<uint8_t>(record[0]);
        if (set.labels[image] >= set.shape.classes) {
          throw TrainerError(file.path + ": label " + std::to_string(set.labels[image]) +
                                 " is not in 0 to 9: use the binary version of CIFAR-10",
                             ErrorKind::kData);
        }
        std::memcpy(set.pixels.get() + image * set.shape.bytes(), record + 1, set.shape.bytes());
      }
      left -= records;
    }
  }
  return set;
}

ImageSet MakeSynthetic(const ImageShape& shape, int64_t size, uint64_t first) {
  const auto images = std::make_shared<SyntheticImages>(shape, size, first);
  ImageSet set;
  set.shape = shape;
  set.size = size;
  set.labels.resize(size);
  for (int64_t i = 0; i < size; ++i) set.labels[i] = images->label(i);
  set.synthetic = images;
  return set;
}

int64_t TrainLimit(const TrainingSpec& spec) {
  return spec.train_samples == 0 ? INT64_MAX : spec.train_samples;
}

ImageShape Cifar10Shape(const TrainingSpec& spec) {
  if (spec.image_size != 0 || spec.classes != 0) {
    throw TrainerError("image_size and classes are not supported by data set \"cifar10\": remove them",
                       ErrorKind::kData);
  }
  return {};
}

Dataset LoadCifar10(const TrainingSpec& spec) {
  Cifar10Shape(spec);
  absl::StatusOr<RecordFiles> files = FindCifar10(spec.data_dir);
  if (!files.ok()) throw TrainerError(std::string(files.status().message()), ErrorKind::kData);
  Dataset data;
  data.train = ReadRecords(files->train, TrainLimit(spec));
  if (spec.evaluate) data.test = ReadRecords(files->test, INT64_MAX);
  return data;
}

ImageShape SyntheticShape(const TrainingSpec& spec) {
  ImageShape shape;
  if (spec.image_size != 0) shape.side = static_cast<int>(spec.image_size);
  if (spec.classes != 0) shape.classes = static_cast<int>(spec.classes);
  return shape;
}

Dataset LoadSynthetic(const TrainingSpec& spec) {
  const ImageShape shape = SyntheticShape(spec);
  const int64_t fit = std::min(kSyntheticTrain, kSyntheticBytes / shape.bytes());
  Dataset data;
  data.train =
      MakeSynthetic(shape, spec.train_samples == 0 ? fit : std::min(kSyntheticTrain, spec.train_samples), 0);
  if (spec.evaluate) data.test = MakeSynthetic(shape, fit / 5, 1);
  return data;
}

constexpr int kFolderSide = 224;

ImageShape FolderShape(const TrainingSpec& spec) {
  if (spec.classes != 0) {
    throw TrainerError("classes is not supported by data set \"imagefolder\": remove it", ErrorKind::kData);
  }
  const absl::StatusOr<std::vector<std::string>> classes = ListImageClasses(spec.data_dir);
  if (!classes.ok()) throw TrainerError(std::string(classes.status().message()), ErrorKind::kData);
  ImageShape shape;
  shape.side = spec.image_size == 0 ? kFolderSide : static_cast<int>(spec.image_size);
  shape.classes = static_cast<int>(classes->size());
  return shape;
}

ImageSet LoadFiles(const TrainingSpec& spec, const ImageShape& shape, ImagePart part, int64_t samples) {
  absl::StatusOr<ImageList> list = ListImages(spec.data_dir, part);
  if (!list.ok()) throw TrainerError(std::string(list.status().message()), ErrorKind::kData);
  const auto files = std::make_shared<ImageFiles>(*std::move(list), samples, shape.side,
                                                  static_cast<int>(spec.cpus_per_rank));
  ImageSet set;
  set.shape = shape;
  set.size = files->size();
  set.labels.resize(set.size);
  for (int64_t i = 0; i < set.size; ++i) set.labels[i] = static_cast<uint16_t>(files->label(i));
  set.files = files;
  return set;
}

Dataset LoadFolder(const TrainingSpec& spec) {
  const ImageShape shape = FolderShape(spec);
  if (absl::Status sound = CheckImageFolder(spec.data_dir); !sound.ok())
    throw TrainerError(std::string(sound.message()), ErrorKind::kData);
  Dataset data;
  data.train = LoadFiles(spec, shape, ImagePart::kTrain, spec.train_samples);
  if (spec.evaluate) data.test = LoadFiles(spec, shape, ImagePart::kVal, 0);
  return data;
}

constexpr int64_t kSyntheticTokens = 1'000'000;

ImageShape TextShape(const TrainingSpec& spec) {
  if (spec.image_size != 0 || spec.classes != 0) {
    throw TrainerError(
        "image_size and classes are not supported by data set \"" + spec.dataset + "\": remove them",
        ErrorKind::kData);
  }
  const ModelInfo* model = FindModel(spec.model);
  ImageShape shape;
  shape.side = 0;
  shape.tokens = static_cast<int>(spec.sequence_length);
  shape.classes = static_cast<int>(spec.vocabulary);
  if (shape.tokens == 0) shape.tokens = model == nullptr || model->context == 0 ? 128 : model->context;
  if (shape.classes == 0)
    shape.classes = model == nullptr || model->vocabulary == 0 ? 256 : model->vocabulary;
  return shape;
}

ImageSet CutText(std::vector<uint16_t> text, const ImageShape& shape, int64_t limit) {
  ImageSet set;
  set.shape = shape;
  set.text = std::move(text);
  set.size = std::clamp<int64_t>((std::ssize(set.text) - 1) / shape.tokens, 0, limit);
  return set;
}

// Reads as many tokens as `samples` samples need.
ImageSet ReadText(const RecordFile& file, const ImageShape& shape, int64_t samples) {
  const int64_t most = (file.records - 1) / shape.tokens;
  std::vector<uint16_t> text(std::min(samples, most) * shape.tokens + 1);
  std::ifstream in(file.path, std::ios::binary);
  if (file.records == 0 || !in.read(reinterpret_cast<char*>(text.data()), std::ssize(text) * 2)) {
    throw TrainerError(file.path + ": cannot be read, or has no tokens: write it again", ErrorKind::kData);
  }
  const auto wrong = std::ranges::find_if(text, [&](uint16_t token) { return token >= shape.classes; });
  if (wrong != text.end()) {
    throw TrainerError(file.path + ": token " + std::to_string(*wrong) + " at place " +
                           std::to_string(wrong - text.begin()) + " is not in 0 to " +
                           std::to_string(shape.classes - 1) +
                           ": set vocabulary to the number of different tokens",
                       ErrorKind::kData);
  }
  return CutText(std::move(text), shape, samples);
}

Dataset LoadText(const TrainingSpec& spec) {
  const ImageShape shape = TextShape(spec);
  const absl::StatusOr<TokenFiles> files = FindTokens(spec.data_dir);
  if (!files.ok()) throw TrainerError(std::string(files.status().message()), ErrorKind::kData);
  Dataset data;
  data.train = ReadText(files->train, shape, TrainLimit(spec));
  if (!spec.evaluate) return data;
  data.test = ReadText(files->val, shape, INT64_MAX);
  if (data.test.size == 0) {
    throw TrainerError(files->val.path + ": has " + std::to_string(files->val.records) +
                           " tokens, but a sample needs " + std::to_string(shape.tokens + 1) +
                           " (sequence_length + 1): use a longer file or a smaller sequence_length, or set "
                           "evaluate to false",
                       ErrorKind::kData);
  }
  return data;
}

// `first` selects different texts for training and for testing.
ImageSet MakeText(const ImageShape& shape, int64_t samples, uint64_t first) {
  std::vector<uint16_t> text(samples * shape.tokens + 1);
  Random random(13, first, 0);
  uint64_t token = 0;
  for (uint16_t& place : text) {
    const auto vocabulary = static_cast<uint64_t>(shape.classes);
    token = random.Below(4) == 0 ? random.Below(vocabulary) : Random(17, token, 0).Below(vocabulary);
    place = static_cast<uint16_t>(token);
  }
  return CutText(std::move(text), shape, samples);
}

Dataset LoadSyntheticText(const TrainingSpec& spec) {
  const ImageShape shape = TextShape(spec);
  const int64_t fit = kSyntheticTokens / shape.tokens;
  Dataset data;
  data.train = MakeText(shape, spec.train_samples == 0 ? fit : spec.train_samples, 0);
  if (spec.evaluate) data.test = MakeText(shape, std::max<int64_t>(1, fit / 5), 1);
  return data;
}

struct Entry {
  std::string_view name;
  ImageShape (*shape)(const TrainingSpec&);
  Dataset (*load)(const TrainingSpec&);
};

constexpr Entry kDatasets[] = {{"cifar10", Cifar10Shape, LoadCifar10},
                               {"imagefolder", FolderShape, LoadFolder},
                               {"synthetic", SyntheticShape, LoadSynthetic},
                               {"tokens", TextShape, LoadText},
                               {"synthetic-tokens", TextShape, LoadSyntheticText}};

const Entry& Find(const TrainingSpec& spec) {
  std::string known;
  for (const Entry& entry : kDatasets) {
    if (entry.name == spec.dataset) return entry;
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw TrainerError("unknown data set \"" + spec.dataset + "\": use one of " + known, ErrorKind::kData);
}

}  // namespace

const uint8_t* ImageSet::image(int64_t i) const {
  return synthetic != nullptr ? synthetic->image(i) : pixels.get() + i * shape.bytes();
}

ImageShape ReadShape(const TrainingSpec& spec) { return Find(spec).shape(spec); }

Dataset LoadDataset(const TrainingSpec& spec) { return Find(spec).load(spec); }

}  // namespace scalelab::trainer
