#include "catalog/images/jpeg.h"

#include <csetjmp>
// Each of these headers needs the previous one.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

namespace scalelab {
namespace {

// Handles errors of libjpeg. libjpeg calls error_exit on an error. This function must not return; it calls
// longjmp, as libjpeg's manual recommends.
struct ErrorHandler {
  jpeg_error_mgr base;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void Leave(j_common_ptr info) {
  auto* handler = reinterpret_cast<ErrorHandler*>(info->err);
  info->err->format_message(info, handler->message);
  std::longjmp(handler->jump, 1);
}

// Returns whether a warning of libjpeg means that the file is damaged. After these warnings libjpeg continues
// with gray pixels. Other warnings do not change the picture.
bool MeansDamage(int code) {
  switch (code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_NOT_SEQUENTIAL:
      return true;
    default:
      return false;
  }
}

void OnMessage(j_common_ptr info, int level) {
  if (level < 0 && MeansDamage(info->err->msg_code)) Leave(info);
}

// Decompresses one image. Calls of libjpeg that may fail run inside Guard. longjmp skips destructors, so this
// code must not own objects.
class Decompressor {
 public:
  Decompressor() {
    info.err = jpeg_std_error(&handler_.base);
    handler_.base.error_exit = Leave;
    handler_.base.emit_message = OnMessage;
  }
  ~Decompressor() { jpeg_destroy_decompress(&info); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  template <typename Work>
  absl::Status Guard(const Work& work) {
    if (setjmp(handler_.jump) != 0) return absl::DataLossError(handler_.message);
    work();
    return absl::OkStatus();
  }

  absl::Status ReadHeader(absl::string_view file) {
    return Guard([&] {
      jpeg_create_decompress(&info);
      jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
      jpeg_read_header(&info, TRUE);
    });
  }

  jpeg_decompress_struct info{};

 private:
  ErrorHandler handler_{};
};

// Adobe's programs, which write nearly all CMYK files, store inverted values: 255 is no ink.
void CmykToRgb(const uint8_t* cmyk, int64_t pixels, bool inverted, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int black = inverted ? cmyk[3] : 255 - cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const int light = inverted ? cmyk[c] : 255 - cmyk[c];
      rgb[c] = static_cast<uint8_t>((light * black + 127) / 255);
    }
  }
}

}  // namespace

absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file) {
  Decompressor jpeg;
  if (absl::Status read = jpeg.ReadHeader(file); !read.ok()) return read;
  return ImageSize{static_cast<int>(jpeg.info.image_width), static_cast<int>(jpeg.info.image_height)};
}

absl::StatusOr<Image> DecodeJpeg(absl::string_view file, int eighths) {
  Decompressor jpeg;
  jpeg_decompress_struct& info = jpeg.info;
  if (absl::Status read = jpeg.ReadHeader(file); !read.ok()) return read;
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.scale_num = eighths;
  info.scale_denom = 8;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  if (absl::Status started = jpeg.Guard([&] { jpeg_calc_output_dimensions(&info); }); !started.ok())
    return started;
  const ImageSize size{static_cast<int>(info.output_width), static_cast<int>(info.output_height)};
  if (absl::Status possible = CheckSize(size); !possible.ok()) return possible;
  Image image;
  image.size = size;
  image.eighths = eighths;
  image.rgb.resize(int64_t{3} * size.width * size.height);
  std::vector<uint8_t> inks(cmyk ? int64_t{4} * size.width : 0);
  uint8_t* const rgb = image.rgb.data();
  uint8_t* const row_of_inks = inks.data();
  const absl::Status decoded = jpeg.Guard([&] {
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      uint8_t* out = rgb + int64_t{3} * size.width * info.output_scanline;
      JSAMPROW row = cmyk ? row_of_inks : out;
      jpeg_read_scanlines(&info, &row, 1);
      if (cmyk) CmykToRgb(row, size.width, info.saw_Adobe_marker, out);
    }
    jpeg_finish_decompress(&info);
  });
  if (!decoded.ok()) return decoded;
  return image;
}

}  // namespace scalelab
