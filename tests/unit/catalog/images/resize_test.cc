#include "catalog/images/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "tests/fakes/image_folder.h"

namespace scalelab {
namespace {

std::vector<uint8_t> Resize(const Image& image, const ImageRegion& region, int side) {
  std::vector<uint8_t> out(size_t{3} * side * side);
  ResizeRegion(image, region, side, out.data());
  return out;
}

TEST(ResizeRegion, OfTheSameSizeIsACopy) {
  const Image picture = MakePicture(64, 48, 1);
  const std::vector<uint8_t> out = Resize(picture, {10, 5, 32, 32}, 32);
  for (int y = 0; y < 32; ++y) {
    for (int x = 0; x < 32; ++x) {
      for (int c = 0; c < 3; ++c)
        ASSERT_EQ(out[3 * (y * 32 + x) + c], picture.rgb[3 * ((y + 5) * 64 + x + 10) + c]);
    }
  }
}

TEST(ResizeRegion, WeighsByATriangleAsItsDefinitionSays) {
  const Image picture = MakePicture(90, 70, 2);
  for (const auto& [region, side] :
       {std::pair(ImageRegion{3, 4, 80, 60}, 16), std::pair(ImageRegion{5.5, 7.25, 31, 44.5}, 24),
        std::pair(ImageRegion{0, 0, 90, 70}, 128), std::pair(ImageRegion{20, 20, 9, 11}, 33)}) {
    const std::vector<uint8_t> out = Resize(picture, region, side);
    const double across = region.width / side, down = region.height / side;
    for (int y = 0; y < side; ++y) {
      for (int x = 0; x < side; ++x) {
        const double at_x = region.left + (x + 0.5) * across, at_y = region.top + (y + 0.5) * down;
        double sum[3] = {}, weights = 0;
        for (int j = static_cast<int>(std::floor(region.top)); j < std::ceil(region.top + region.height);
             ++j) {
          for (int i = static_cast<int>(std::floor(region.left)); i < std::ceil(region.left + region.width);
               ++i) {
            const double weight = std::max(0.0, 1 - std::abs(i + 0.5 - at_x) / std::max(1.0, across)) *
                                  std::max(0.0, 1 - std::abs(j + 0.5 - at_y) / std::max(1.0, down));
            weights += weight;
            for (int c = 0; c < 3; ++c) sum[c] += weight * picture.rgb[3 * (j * 90 + i) + c];
          }
        }
        for (int c = 0; c < 3; ++c)
          ASSERT_NEAR(out[3 * (y * side + x) + c], sum[c] / weights, 0.51) << x << " " << y;
      }
    }
  }
}

TEST(ResizeRegion, KeepsAnEvenColourHoweverThinTheRegion) {
  Image picture = MakePicture(50, 40, 1);
  std::fill(picture.rgb.begin(), picture.rgb.end(), 77);
  for (const ImageRegion& region : {ImageRegion{0, 0, 1, 1}, ImageRegion{49, 0, 1, 40},
                                    ImageRegion{12.3, 39.5, 30, 0.4}, ImageRegion{0, 0, 50, 40}}) {
    for (uint8_t value : Resize(picture, region, 20)) ASSERT_EQ(value, 77);
  }
}

}  // namespace
}  // namespace scalelab
