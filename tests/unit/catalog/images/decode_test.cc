#include "catalog/images/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/fakes/image_folder.h"

namespace scalelab {
namespace {

using testing::HasSubstr;

// Mean and maximum difference of two images of the same size, in units of 1/255.
struct Difference {
  double mean = 0;
  int largest = 0;
};

Difference Compare(const Image& a, const Image& b) {
  EXPECT_EQ(a.rgb.size(), b.rgb.size());
  Difference difference;
  for (size_t i = 0; i < a.rgb.size() && i < b.rgb.size(); ++i) {
    const int d = std::abs(int{a.rgb[i]} - int{b.rgb[i]});
    difference.mean += d / static_cast<double>(a.rgb.size());
    difference.largest = std::max(difference.largest, d);
  }
  return difference;
}

Image Gray(Image image) {
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    const double luma = 0.299 * image.rgb[i] + 0.587 * image.rgb[i + 1] + 0.114 * image.rgb[i + 2];
    image.rgb[i] = image.rgb[i + 1] = image.rgb[i + 2] = static_cast<uint8_t>(std::lround(luma));
  }
  return image;
}

Image Decode(const std::string& file, int eighths = 8) {
  const absl::StatusOr<Image> image = DecodeImage(file, eighths);
  EXPECT_TRUE(image.ok()) << image.status();
  return image.ok() ? *image : Image{};
}

std::string Problem(const std::string& file) { return std::string(DecodeImage(file).status().message()); }

const Image& Picture() {
  static const auto& picture = *new Image(MakePicture(150, 97, 3));
  return picture;
}

TEST(DecodeImage, BringsBackEveryKindOfJpeg) {
  for (JpegKind kind : {JpegKind::kColour, JpegKind::kProgressive, JpegKind::kGray, JpegKind::kCmyk}) {
    const Image expected = kind == JpegKind::kGray ? Gray(Picture()) : Picture();
    const std::string file = EncodeJpeg(Picture(), kind);
    const absl::StatusOr<ImageSize> size = ReadImageSize(file);
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(size->width, 150);
    EXPECT_EQ(size->height, 97);
    const Difference difference = Compare(Decode(file), expected);
    EXPECT_LT(difference.mean, 1.5) << static_cast<int>(kind);
    EXPECT_LT(difference.largest, 20) << static_cast<int>(kind);
  }
}

TEST(DecodeImage, BringsBackPngWithoutLoss) {
  EXPECT_EQ(Compare(Decode(EncodePng(Picture())), Picture()).largest, 0);
  EXPECT_EQ(Compare(Decode(EncodePng(Picture(), false, true)), Picture()).largest, 0)
      << "transparency is passed over";
  EXPECT_LE(Compare(Decode(EncodePng(Picture(), true)), Gray(Picture())).largest, 1);
  EXPECT_EQ(Decode(EncodePng(Picture()), 1).size.width, 150) << "there is nothing to scale by";
}

TEST(DecodeImage, ScalesAJpegByEighthsToTheMeansOfItsPixels) {
  const std::string file = EncodeJpeg(Picture());
  const Image whole = Decode(file);
  for (int eighths = 1; eighths <= 8; ++eighths) {
    const Image image = Decode(file, eighths);
    EXPECT_EQ(image.eighths, eighths);
    EXPECT_EQ(image.size.width, (150 * eighths + 7) / 8);
    EXPECT_EQ(image.size.height, (97 * eighths + 7) / 8);
    // The picture is smooth, so a scaled pixel is close to the original one at its place.
    double mean = 0;
    for (int y = 0; y < image.size.height; ++y) {
      for (int x = 0; x < image.size.width; ++x) {
        const int from_x = std::min(149, static_cast<int>((x + 0.5) * 8 / eighths));
        const int from_y = std::min(96, static_cast<int>((y + 0.5) * 8 / eighths));
        for (int c = 0; c < 3; ++c) {
          mean += std::abs(image.rgb[3 * (y * image.size.width + x) + c] -
                           whole.rgb[3 * (from_y * 150 + from_x) + c]);
        }
      }
    }
    EXPECT_LT(mean / static_cast<double>(image.rgb.size()), 5) << eighths;
  }
}

TEST(DecodeImage, SaysWhatIsWrongWithAFile) {
  const std::string jpeg = EncodeJpeg(Picture()), png = EncodePng(Picture());
  EXPECT_EQ(Problem(""), "the file is empty");
  EXPECT_EQ(Problem("GIF89a etc."), "this is neither JPEG nor PNG, judging by its first bytes");
  EXPECT_THAT(Problem(jpeg.substr(0, jpeg.size() / 2)), HasSubstr("remature end"));
  EXPECT_NE(Problem(jpeg.substr(0, 30)), "");
  std::string holes = jpeg;
  for (size_t i = jpeg.size() / 2; i < jpeg.size() / 2 + 40; ++i) holes[i] = '\xff';
  EXPECT_NE(Problem(holes), "");
  EXPECT_NE(Problem(png.substr(0, png.size() / 2)), "");
  std::string flipped = png;
  flipped[png.size() / 2] ^= 1;
  EXPECT_NE(Problem(flipped), "") << "its check sum is wrong";
  std::string huge = png;
  huge[16] = huge[20] = '\x10';  // width and height of hundreds of millions
  EXPECT_NE(Problem(huge), "");
}

TEST(SmallestScale, IsNotBelowWhatIsWanted) {
  EXPECT_EQ(SmallestScale(800, 100), 1);
  EXPECT_EQ(SmallestScale(799, 100), 2);
  EXPECT_EQ(SmallestScale(500, 224), 4);
  EXPECT_EQ(SmallestScale(224, 224), 8);
  EXPECT_EQ(SmallestScale(50, 224), 8);
}

}  // namespace
}  // namespace scalelab
