// Serves the images of a run to programs in other languages, decoded and augmented as TrainLoader does it.
// Another image library would hardly produce the same pixels.
#pragma once

#include <iosfwd>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// Writes a line {"side":224,"classes":1000,"train":N,"test":M,"interleaved":true,"mean":[3 numbers],"deviation":[3 numbers]} and
// N + M labels of 16 bits, training images first. Then answers every line of `requests` until its end with the requested images:
//   train EPOCH LAYOUT SAMPLE...    images as that epoch trains on them, augmented if spec.augment is set
//   test 0 LAYOUT SAMPLE...         images as they are evaluated
// With LAYOUT NCHW or NHWC, images are normalized floats. With BYTES, the answer is a ByteBatch (byte_batch.h), which the client
// converts on its GPU with "mean" and "deviation": the pixels of all images, [3, side, side] each, or [side, side, 3] if they are
// "interleaved"; then the crops of all images. Images have the requested order; SAMPLE counts from 0. Numbers are little-endian.
// Throws TrainerError of kind data for an image that cannot be decoded, and of kind other for an invalid request.
void ServeImages(const TrainingSpec& spec, std::istream& requests, std::ostream& out);

}  // namespace scalelab::trainer
