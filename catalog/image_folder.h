// Data set "imagefolder": images in a directory for each class, as torchvision's ImageFolder reads them:
//
//   DIR/train/CLASS/NAME.jpg      .jpg, .jpeg or .png, in lower or upper case
//   DIR/val/CLASS/NAME.jpg        classes are some of those of train
//
// Classes are numbered in the order of their names (as bytes), images of a class ordered by theirs.
// Directories whose name starts with a dot, and files that are no images by their name, are passed over.
//
// Listing a million files takes its time on a network's file system. `WriteImageIndex` leaves DIR/train.index
// and DIR/val.index, which are read instead as long as they are newer than the directories that they list:
//
//   scalelab-index 1 IMAGES
//   BYTES <tab> CLASS <tab> NAME      a line an image, in order
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

enum class ImagePart { kTrain, kVal };

// The images of one part, held compactly: there may be millions.
class ImageList {
 public:
  // `directory` is that of the part, `classes` are the names of all classes.
  ImageList(std::string directory, std::vector<std::string> classes)
      : directory_(std::move(directory)), classes_(std::move(classes)) {}

  int64_t size() const { return static_cast<int64_t>(images_.size()); }
  // Of training; val may lack some.
  const std::vector<std::string>& classes() const { return classes_; }
  int label(int64_t image) const { return images_[image].label; }
  absl::string_view name(int64_t image) const;
  std::string path(int64_t image) const;
  // As the index has it; -1 without one.
  int64_t bytes(int64_t image) const { return images_[image].bytes; }

  void Add(int label, absl::string_view name, int64_t bytes);

 private:
  struct Image {
    uint64_t name_end;  // in names_, where the next one begins
    int64_t bytes;
    int32_t label;
  };
  std::string directory_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
  std::string names_;  // one after another
};

// Names of the classes, by listing DIR/train. Looks at no image.
absl::StatusOr<std::vector<std::string>> ListImageClasses(const std::string& dir);

// NOT_FOUND or INVALID_ARGUMENT: one sentence that names the directory or file, what is wrong with it and
// what to do. A class of training without an image is wrong, one of val is not.
absl::StatusOr<ImageList> ListImages(const std::string& dir, ImagePart part);

// Writes the indices of both parts, each atomically; returns the number of images in them.
absl::StatusOr<int64_t> WriteImageIndex(const std::string& dir);

// Whether both parts are there and their classes fit together. Looks at no image.
absl::Status CheckImageFolder(const std::string& dir);

}  // namespace scalelab
