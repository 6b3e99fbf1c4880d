// The images of a run for programs in other languages, decoded and augmented as TrainLoader has them: data
// sets whose images are files would hardly come out the same, pixel for pixel, from another library.
#pragma once

#include <iosfwd>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// First a line {"side":224,"classes":1000,"train":N,"test":M} and N + M labels of 16 bits, training images
// first. Then for every line of `requests`, until there is no more, the images it asks for:
//   train EPOCH LAYOUT SAMPLE...    as that epoch trains on them, so augmented if spec.augment
//   test 0 LAYOUT SAMPLE...         as they are evaluated
// as float in LAYOUT, NCHW or NHWC, in the order asked for; SAMPLE counts from 0. Numbers are little-endian.
// Throws TrainerError of kind data for an image that cannot be decoded, of kind configuration for a request
// that is none of these.
void ServeImages(const TrainingSpec& spec, std::istream& requests, std::ostream& out);

}  // namespace scalelab::trainer
