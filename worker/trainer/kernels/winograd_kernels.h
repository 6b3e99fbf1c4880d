// Inner loops of 3 x 3 convolution by Winograd's minimal filtering F(2x2, 3x3): four outputs of a channel
// take 16 multiplications instead of 36. (Lavin, Gray 2015, "Fast Algorithms for Convolutional Neural
// Networks".) Every product of a step of it is one of plain matrices, one for each of the 16 places of a
// transformed tile.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

inline constexpr int64_t kConvLanes = 16;   // channels are a multiple of it
inline constexpr int64_t kConvPlaces = 16;  // of a transformed tile, 4 x 4
inline constexpr int64_t kTileStep = 48;    // room for tiles is a multiple of it

// Images of height x width x channels (channels last), cut into tiles of 2 x 2 pixels; the last tile of a row
// or column may hang over. Tiles count over all images, row by row.
struct TileGrid {
  int64_t images, height, width;

  int64_t rows() const { return (height + 1) / 2; }
  int64_t columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * rows() * columns(); }
};

// Floats from one place to the next where each has n: not a multiple of a page, or all places of a tile would
// fall into the same few lines of the first cache.
constexpr int64_t PlaceFloats(int64_t n) { return n + kConvLanes; }

// Layouts, outermost first; the last is always 16 channels side by side:
//   filters  [out][3][3][in], a convolution's weight, channels last
//   u        [place][out / 16][in][16]
//   v        [place][in / 16][room][16], `room` being the tiles there is room for
//   m        the same with out

// Forward: of `filters`. For the gradient of the input: of the filters turned by 180 degrees, from out to in,
// hence u [place][in / 16][out][16].
void TransformFilters(const float* filters, int64_t in, int64_t out, float* u);
void TransformFiltersBack(const float* filters, int64_t in, int64_t out, float* u);
// Gradients of u as TransformFiltersBack lays it out (not turned) -> of filters.
void FilterGradients(const float* u, int64_t in, int64_t out, float* filters);

// `count` tiles from `first` with the pixels around them, 0 outside of the image -> v.
void TransformInput(const float* image, const TileGrid& grid, int64_t channels, int64_t first, int64_t count,
                    int64_t room, float* v);
// Gradients of `count` output tiles -> m.
void TransformOutputGradient(const float* image, const TileGrid& grid, int64_t channels, int64_t first,
                             int64_t count, int64_t room, float* m);
// m -> output tiles.
void TransformOutput(const float* m, const TileGrid& grid, int64_t channels, int64_t first, int64_t count,
                     int64_t room, float* image);

// For each place m = v * u. Some tiles behind `count` may be computed too, from whatever v has there.
void MultiplyPlaces(const float* v, const float* u, int64_t count, int64_t room, int64_t in, int64_t out,
                    float* m);
// For each place u [in / 16][out][16] += transposed v * m, over `count` tiles.
void AddPlaceGradients(const float* v, const float* m, int64_t count, int64_t room, int64_t in, int64_t out,
                       float* u);

}  // namespace scalelab::trainer
