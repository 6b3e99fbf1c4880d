#include "worker/trainer/data/image_server.h"

#include <bit>
#include <istream>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/data/byte_batch.h"
#include "worker/trainer/data/dataset.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

static_assert(std::endian::native == std::endian::little);

void WriteLabels(const ImageSet& set, std::ostream& out) {
  out.write(reinterpret_cast<const char*>(set.labels.data()),
            static_cast<std::streamsize>(set.labels.size() * sizeof(uint16_t)));
}

struct Request {
  bool of_test = false;
  int64_t epoch = 0;
  bool bytes = false;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  std::vector<int32_t> samples;
};

Request Parse(const std::string& line, const Dataset& data) {
  std::istringstream words(line);
  std::string set, layout;
  Request request;
  words >> set >> request.epoch >> layout;
  for (int32_t sample; words >> sample;) request.samples.push_back(sample);
  const ImageSet& images = set == "test" ? data.test : data.train;
  request.bytes = layout == "BYTES";
  bool valid = words.eof() && (set == "train" || set == "test") && !request.samples.empty() &&
               (layout == "NCHW" || layout == "NHWC" || request.bytes);
  for (const int32_t sample : request.samples) valid = valid && sample >= 0 && sample < images.size;
  if (!valid) {
    throw TrainerError("request \"" + line.substr(0, 100) +
                       "\": use \"train EPOCH LAYOUT SAMPLE...\" or \"test 0 LAYOUT SAMPLE...\" with "
                       "samples of that set");
  }
  request.of_test = set == "test";
  if (layout == "NHWC") request.format = at::MemoryFormat::ChannelsLast;
  return request;
}

void Write(const at::Tensor& tensor, std::ostream& out) {
  // The storage has the order of the layout and no gaps.
  out.write(static_cast<const char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
}

}  // namespace

void ServeImages(const TrainingSpec& spec, std::istream& requests, std::ostream& out) {
  const at::NoGradGuard no_grad;
  const Dataset data = LoadDataset(spec);
  const Normalization& normalization = NormalizationOf(data.train);
  out << nlohmann::json{{"side", data.train.shape.side},
                        {"classes", data.train.shape.classes},
                        {"train", data.train.size},
                        {"test", data.test.size},
                        {"interleaved", data.train.files != nullptr},
                        {"mean", normalization.mean},
                        {"deviation", normalization.deviation}}
      << "\n";
  WriteLabels(data.train, out);
  WriteLabels(data.test, out);
  out.flush();
  for (std::string line; std::getline(requests, line);) {
    const Request request = Parse(line, data);
    const ImageSet& set = request.of_test ? data.test : data.train;
    const Augmentation augmentation{static_cast<uint64_t>(spec.seed), request.epoch};
    const Augmentation* const applied = !request.of_test && spec.augment ? &augmentation : nullptr;
    const int64_t count = std::ssize(request.samples);
    if (request.bytes) {
      ByteBatch batch = AllocateByteBatch(count, set.shape, at::kCPU);
      at::Tensor labels = at::empty({count}, at::kLong);  // the client has them
      LoadBytes(set, request.samples, applied, batch, labels);
      Write(batch.pixels, out);
      Write(batch.crops, out);
    } else {
      Batch batch = AllocateBatch(count, set.shape.side, request.format);
      LoadBatch(set, request.samples, applied, batch);
      Write(batch.images, out);
    }
    out.flush();
    if (!out) return;  // the client has closed the pipe
  }
}

}  // namespace scalelab::trainer
