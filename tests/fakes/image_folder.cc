#include "tests/fakes/image_folder.h"

#include <png.h>

#include <cmath>
#include <cstdlib>
// jpeglib.h needs cstdio first.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace scalelab {
namespace {

uint8_t Luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
}

}  // namespace

Image MakePicture(int width, int height, uint32_t seed) {
  Image picture;
  picture.size = {width, height};
  picture.rgb.resize(size_t{3} * width * height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const double u = static_cast<double>(x) / width, v = static_cast<double>(y) / height;
      const double wave = std::sin(6.28 * (u * (1 + seed % 3) + v * (1 + seed % 2) + seed * 0.1));
      uint8_t* pixel = &picture.rgb[3 * (size_t(y) * width + x)];
      pixel[0] = static_cast<uint8_t>(40 + 170 * u + 20 * wave);
      pixel[1] = static_cast<uint8_t>(40 + 170 * v - 20 * wave);
      pixel[2] = static_cast<uint8_t>(128 + 100 * wave);
    }
  }
  return picture;
}

std::string EncodeJpeg(const Image& picture, JpegKind kind, int quality) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* buffer = nullptr;
  unsigned long size = 0;  // NOLINT: libjpeg's type
  jpeg_mem_dest(&info, &buffer, &size);
  info.image_width = picture.size.width;
  info.image_height = picture.size.height;
  const int channels = kind == JpegKind::kGray ? 1 : kind == JpegKind::kCmyk ? 4 : 3;
  info.input_components = channels;
  info.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 4 ? JCS_CMYK : JCS_RGB;
  jpeg_set_defaults(&info);
  if (kind == JpegKind::kCmyk) jpeg_set_colorspace(&info, JCS_YCCK);  // with Adobe's marker
  jpeg_set_quality(&info, quality, TRUE);
  if (kind == JpegKind::kProgressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> line(size_t(picture.size.width) * channels);
  for (int y = 0; y < picture.size.height; ++y) {
    for (int x = 0; x < picture.size.width; ++x) {
      const uint8_t* pixel = &picture.rgb[3 * (size_t(y) * picture.size.width + x)];
      uint8_t* out = &line[size_t(x) * channels];
      if (channels == 1) {
        out[0] = Luma(pixel);
      } else {
        for (int c = 0; c < 3; ++c) out[c] = pixel[c];
        if (channels == 4) out[3] = 255;  // no black ink; Adobe's programs store inverted values
      }
    }
    JSAMPROW row = line.data();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string bytes(reinterpret_cast<char*>(buffer), size);
  jpeg_destroy_compress(&info);
  std::free(buffer);
  return bytes;
}

std::string EncodePng(const Image& picture, bool gray, bool transparent) {
  std::vector<uint8_t> pixels;
  for (size_t i = 0; i < picture.rgb.size(); i += 3) {
    if (gray) {
      pixels.push_back(Luma(&picture.rgb[i]));
    } else {
      pixels.insert(pixels.end(), &picture.rgb[i], &picture.rgb[i] + 3);
      if (transparent) pixels.push_back(static_cast<uint8_t>(i % 256));
    }
  }
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = picture.size.width;
  image.height = picture.size.height;
  image.format = gray ? PNG_FORMAT_GRAY : transparent ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB;
  png_alloc_size_t size = 0;
  if (!png_image_write_get_memory_size(image, size, 0, pixels.data(), 0, nullptr))
    throw std::runtime_error(image.message);
  std::string bytes(size, '\0');
  if (!png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, nullptr))
    throw std::runtime_error(image.message);
  bytes.resize(size);
  return bytes;
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

void MakeImageFolder(const std::string& dir, int train, int val) {
  uint32_t number = 0;
  for (const auto& [part, images] : {std::pair("train", train), std::pair("val", val)}) {
    for (const char* name : {"ant", "bee", "cat"}) {
      for (int i = 0; i < images; ++i, ++number) {
        const Image picture = MakePicture(40 + static_cast<int>(number * 37 % 120),
                                          40 + static_cast<int>(number * 53 % 90), number);
        const std::string path = dir + "/" + part + "/" + name + "/" + std::to_string(1000 + i);
        if (number % 5 == 4) {
          WriteBytes(path + ".png", EncodePng(picture, number % 2 == 0));
        } else {
          const JpegKind kind = number % 7 == 6     ? JpegKind::kGray
                                : number % 11 == 10 ? JpegKind::kCmyk
                                : number % 3 == 2   ? JpegKind::kProgressive
                                                    : JpegKind::kColour;
          WriteBytes(path + (number % 2 == 0 ? ".jpg" : ".JPEG"), EncodeJpeg(picture, kind));
        }
      }
    }
  }
}

}  // namespace scalelab
