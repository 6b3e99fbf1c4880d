// Inner loops of 3 x 3 convolution by Winograd's minimal filtering F(2x2, 3x3), which computes four
// outputs of a channel with 16 multiplications instead of 36 (Lavin, Gray 2015, "Fast Algorithms for
// Convolutional Neural Networks"). The multiplications are 16 matrix products, one for each of the 16
// places of a transformed tile.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

inline constexpr int64_t kConvLanes = 16;   // channels are a multiple of this
inline constexpr int64_t kConvPlaces = 16;  // elements of a transformed tile, 4 x 4
inline constexpr int64_t kTileStep = 48;    // the capacity of v and m in tiles is a multiple of this

// Images of height x width x channels (channels last), divided into tiles of 2 x 2 pixels. The last tile of a
// row or column may extend past the image. Tiles are numbered over all images, row by row.
struct TileGrid {
  int64_t images, height, width;

  int64_t rows() const { return (height + 1) / 2; }
  int64_t columns() const { return (width + 1) / 2; }
  int64_t tiles() const { return images * rows() * columns(); }
};

// Returns the distance in floats between places that have n floats each. It is not a multiple of a page,
// because then all places of a tile would share the same few lines of the first-level cache.
constexpr int64_t PlaceFloats(int64_t n) { return n + kConvLanes; }

// Layouts, outermost dimension first; the innermost dimension is always 16 channels:
//   filters  [out][3][3][in], the weight of a convolution, channels last
//   u        [place][out / 16][in][16]
//   v        [place][in / 16][room][16], where `room` is the capacity in tiles
//   m        [place][out / 16][room][16]

// Both functions transform the filters to u. TransformFiltersBack is for the gradient of the input: it
// rotates the filters by 180 degrees and exchanges in and out, so u is [place][in / 16][out][16].
void TransformFilters(const float* filters, int64_t in, int64_t out, float* u);
void TransformFiltersBack(const float* filters, int64_t in, int64_t out, float* u);
// Transforms gradients of u, in the layout of TransformFiltersBack but not rotated, to gradients
// of the filters.
void FilterGradients(const float* u, int64_t in, int64_t out, float* filters);

// Transforms `count` tiles, starting with tile `first`, and the pixels around them to v. Pixels outside of
// the image are 0.
void TransformInput(const float* image, const TileGrid& grid, int64_t channels, int64_t first, int64_t count,
                    int64_t room, float* v);
// Transforms the gradients of `count` output tiles to m.
void TransformOutputGradient(const float* image, const TileGrid& grid, int64_t channels, int64_t first,
                             int64_t count, int64_t room, float* m);
// Transforms m to output tiles.
void TransformOutput(const float* m, const TileGrid& grid, int64_t channels, int64_t first, int64_t count,
                     int64_t room, float* image);

// Computes m = v * u for each place. May also compute some tiles after `count`, from arbitrary values of v.
void MultiplyPlaces(const float* v, const float* u, int64_t count, int64_t room, int64_t in, int64_t out,
                    float* m);
// Adds transposed v * m over `count` tiles to u [in / 16][out][16], for each place.
void AddPlaceGradients(const float* v, const float* m, int64_t count, int64_t room, int64_t in, int64_t out,
                       float* u);

}  // namespace scalelab::trainer
