// Lists the images of data set "imagefolder": a directory for each class, as in torchvision's ImageFolder.
//
//   DIR/train/CLASS/NAME.jpg      .jpg, .jpeg or .png, in lower or upper case
//   DIR/val/CLASS/NAME.jpg        the classes are a subset of train's
//
// Classes are numbered in the order of their names (as bytes); images of a class are ordered by name.
// Directories whose name starts with a dot, and files without an image's extension, are ignored.
//
// Listing a million files takes long on a network filesystem. WriteImageIndex therefore writes
// DIR/train.index and DIR/val.index. ListImages reads them instead, as long as all directories of the part
// have the times that the index contains:
//
//   scalelab-index 2 DIRECTORIES IMAGES
//   MTIME <tab> CTIME <tab> CLASS     one line per directory, in ns since 1970; CLASS is empty for DIR/train
//   BYTES <tab> CLASS <tab> NAME      one line per image, in order
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

enum class ImagePart { kTrain, kVal };

// The images of one part in compact form, because there may be millions.
class ImageList {
 public:
  // `directory` is the part's directory; `classes` are the names of all classes.
  ImageList(std::string directory, std::vector<std::string> classes)
      : directory_(std::move(directory)), classes_(std::move(classes)) {}

  int64_t size() const { return static_cast<int64_t>(images_.size()); }
  // The classes of the training part. The validation part may have fewer.
  const std::vector<std::string>& classes() const { return classes_; }
  int label(int64_t image) const { return images_[image].label; }
  absl::string_view name(int64_t image) const;
  std::string path(int64_t image) const;
  // Size of the file in bytes from the index; -1 without an index.
  int64_t bytes(int64_t image) const { return images_[image].bytes; }

  void Add(int label, absl::string_view name, int64_t bytes);

 private:
  struct Image {
    uint64_t name_end;  // offset in names_, where the next name begins
    int64_t bytes;
    int32_t label;
  };
  std::string directory_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
  std::string names_;  // all names, concatenated
};

// Returns the names of the classes by listing DIR/train. Opens no image.
absl::StatusOr<std::vector<std::string>> ListImageClasses(const std::string& dir);

// Returns the images of one part. Returns NOT_FOUND or INVALID_ARGUMENT with a message that contains the
// directory or file, the error and advice. A class without images is an error in the training part, but not
// in the validation part.
absl::StatusOr<ImageList> ListImages(const std::string& dir, ImagePart part);

// Writes the indexes of both parts, each atomically. Returns the number of images in them.
absl::StatusOr<int64_t> WriteImageIndex(const std::string& dir);

// Checks that both parts exist and that val's classes are among train's. Opens no image.
absl::Status CheckImageFolder(const std::string& dir);

}  // namespace scalelab
