#include "catalog/images/decode.h"

#include <fcntl.h>
#include <png.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catalog/images/jpeg.h"

namespace scalelab {
namespace {

constexpr absl::string_view kJpegMagic = "\xff\xd8\xff", kPngMagic = "\x89PNG\r\n\x1a\n";
// Four times the size of the largest cameras' images, because a damaged header may claim any size.
constexpr int64_t kMostPixels = int64_t{1} << 29;

absl::Status NoImage(absl::string_view file) {
  if (file.empty()) return absl::DataLossError("the file is empty");
  return absl::DataLossError("this is neither JPEG nor PNG, judging by its first bytes");
}

class PngReader {
 public:
  PngReader() { image_.version = PNG_IMAGE_VERSION; }
  ~PngReader() { png_image_free(&image_); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  absl::StatusOr<ImageSize> ReadHeader(absl::string_view file) {
    if (!png_image_begin_read_from_memory(&image_, file.data(), file.size()))
      return absl::DataLossError(image_.message);
    const ImageSize size{static_cast<int>(image_.width), static_cast<int>(image_.height)};
    if (absl::Status possible = CheckSize(size); !possible.ok()) return possible;
    return size;
  }

  absl::StatusOr<Image> Decode(absl::string_view file) {
    const absl::StatusOr<ImageSize> size = ReadHeader(file);
    if (!size.ok()) return size.status();
    image_.format = PNG_FORMAT_RGBA;  // with RGB, libpng would blend transparent pixels with a background
    std::vector<uint8_t> rgba(PNG_IMAGE_SIZE(image_));
    if (!png_image_finish_read(&image_, nullptr, rgba.data(), 0, nullptr))
      return absl::DataLossError(image_.message);
    Image image;
    image.size = *size;
    image.rgb.resize(rgba.size() / 4 * 3);
    for (size_t i = 0; i < rgba.size() / 4; ++i) std::memcpy(&image.rgb[3 * i], &rgba[4 * i], 3);
    return image;
  }

 private:
  png_image image_{};
};

}  // namespace

absl::Status CheckSize(const ImageSize& size) {
  if (size.width < 1 || size.height < 1 || int64_t{size.width} * size.height > kMostPixels) {
    return absl::DataLossError(absl::StrCat("its header claims ", size.width, " x ", size.height, " pixels"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file) {
  if (absl::StartsWith(file, kJpegMagic)) return ReadJpegSize(file);
  if (absl::StartsWith(file, kPngMagic)) return PngReader().ReadHeader(file);
  return NoImage(file);
}

absl::StatusOr<Image> DecodeImage(absl::string_view file, int eighths) {
  if (absl::StartsWith(file, kJpegMagic)) return DecodeJpeg(file, eighths);
  if (absl::StartsWith(file, kPngMagic)) return PngReader().Decode(file);
  return NoImage(file);
}

int SmallestScale(double from, int to) {
  for (int eighths = 1; eighths < 8; ++eighths) {
    if (from * eighths / 8 >= to) return eighths;
  }
  return 8;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string bytes;
  bool read_all = descriptor >= 0;
  struct stat st;
  if (read_all && fstat(descriptor, &st) == 0 && S_ISREG(st.st_mode)) bytes.resize(st.st_size);
  for (size_t done = 0; read_all && done < bytes.size();) {
    const ssize_t got = read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) read_all = false;
    if (got == 0) bytes.resize(done);
    if (got > 0) done += got;
  }
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  if (!read_all) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " cannot be read: ", std::strerror(error), "; check its permissions"));
  }
  return bytes;
}

}  // namespace scalelab
