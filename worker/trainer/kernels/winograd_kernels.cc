#include "worker/trainer/kernels/winograd_kernels.h"

#include <algorithm>

// One copy of each function for each generation of vector units. The dynamic loader chooses the copy before a
// sanitizer is initialized, so sanitizer builds have one copy only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SCALELAB_SANITIZED)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define WIDE_CPU __builtin_cpu_supports("avx512f")
#else
#define FOR_EACH_CPU
#define WIDE_CPU false
#endif
#define INLINE __attribute__((always_inline)) inline

namespace scalelab::trainer {
namespace {

// The compiler uses one or more registers for it, depending on the processor.
typedef float Lanes __attribute__((vector_size(4 * kConvLanes), aligned(4), may_alias));

INLINE Lanes& At(float* data) { return *reinterpret_cast<Lanes*>(data); }
INLINE const Lanes& At(const float* data) { return *reinterpret_cast<const Lanes*>(data); }

struct Corner {
  int64_t image, y, x;  // the tile's upper left pixel
};

INLINE Corner CornerOf(const TileGrid& grid, int64_t tile) {
  const int64_t column = tile % grid.columns(), above = tile / grid.columns();
  return {above / grid.rows(), 2 * (above % grid.rows()), 2 * column};
}

INLINE Corner Next(const TileGrid& grid, Corner at) {
  at.x += 2;
  if (at.x >= grid.width) at.x = 0, at.y += 2;
  if (at.y >= grid.height) at.y = 0, ++at.image;
  return at;
}

// Loads 16 channels, starting with channel c, of the side x side pixels whose upper left corner is (y, x).
// Pixels outside of the image are 0.
template <int side>
INLINE void LoadPixels(const float* image, const TileGrid& grid, int64_t channels, int64_t c, int64_t y,
                       int64_t x, Lanes d[side][side]) {
  const float* corner = image + (y * grid.width + x) * channels + c;
  if (y >= 0 && x >= 0 && y + side <= grid.height && x + side <= grid.width) {
#pragma GCC unroll 4
    for (int i = 0; i < side; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < side; ++j) d[i][j] = At(corner + (i * grid.width + j) * channels);
    }
    return;
  }
#pragma GCC unroll 4
  for (int i = 0; i < side; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < side; ++j) {
      const bool inside = y + i >= 0 && y + i < grid.height && x + j >= 0 && x + j < grid.width;
      d[i][j] = inside ? At(corner + (i * grid.width + j) * channels) : Lanes{};
    }
  }
}

// Multiplies `rows` tiles by `vectors` x 16 channels in registers. v, u and m point to the first panels of
// these tiles and channels.
template <int rows, int vectors>
INLINE void MultiplyBlock(const float* v, const float* u, int64_t room, int64_t in, float* m) {
  Lanes sum[rows][vectors] = {};
  for (int64_t panel = 0; panel < in / kConvLanes; ++panel, v += room * kConvLanes) {
    for (int64_t c = 0; c < kConvLanes; ++c, u += kConvLanes) {
      Lanes right[vectors];
#pragma GCC unroll 4
      for (int k = 0; k < vectors; ++k) right[k] = At(u + k * in * kConvLanes);
#pragma GCC unroll 16
      for (int t = 0; t < rows; ++t) {
        const float left = v[t * kConvLanes + c];
#pragma GCC unroll 4
        for (int k = 0; k < vectors; ++k) sum[t][k] += left * right[k];
      }
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < rows; ++t) {
#pragma GCC unroll 4
    for (int k = 0; k < vectors; ++k) At(m + (k * room + t) * kConvLanes) = sum[t][k];
  }
}

template <int rows, int vectors>
INLINE void MultiplyColumns(const float* v, const float* u, int64_t count, int64_t room, int64_t in,
                            float* m) {
  for (int64_t t = 0; t < count; t += rows)
    MultiplyBlock<rows, vectors>(v + t * kConvLanes, u, room, in, m + t * kConvLanes);
}

// Sums `rows` output channels x 16 input channels in registers, over the tiles.
template <int rows>
INLINE void AddGradientBlock(const float* v, const float* m, int64_t count, float* u) {
  Lanes sum[rows];
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) sum[i] = At(u + i * kConvLanes);
  for (int64_t t = 0; t < count; ++t, v += kConvLanes, m += kConvLanes) {
    const Lanes right = At(v);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) sum[i] += m[i] * right;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i) At(u + i * kConvLanes) = sum[i];
}

INLINE void TransformFilter(const Lanes g[3][3], int64_t place, float* u) {
  Lanes t[4][3];
#pragma GCC unroll 4
  for (int j = 0; j < 3; ++j) {
    const Lanes ends = 0.5f * (g[0][j] + g[2][j]), middle = 0.5f * g[1][j];
    t[0][j] = g[0][j], t[1][j] = ends + middle, t[2][j] = ends - middle, t[3][j] = g[2][j];
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Lanes ends = 0.5f * (t[i][0] + t[i][2]), middle = 0.5f * t[i][1];
    float* row = u + 4 * i * place;
    At(row) = t[i][0], At(row + place) = ends + middle, At(row + 2 * place) = ends - middle;
    At(row + 3 * place) = t[i][2];
  }
}

}  // namespace

FOR_EACH_CPU void TransformFilters(const float* filters, int64_t in, int64_t out, float* u) {
  float block[9][kConvLanes][kConvLanes];  // a copy, because rows of `filters` may share the same cache lines
  for (int64_t o = 0; o < out; o += kConvLanes) {
    for (int64_t i = 0; i < in; i += kConvLanes) {
      for (int tap = 0; tap < 9; ++tap) {
        for (int lane = 0; lane < kConvLanes; ++lane)
          At(block[tap][lane]) = At(filters + ((o + lane) * 9 + tap) * in + i);
      }
      for (int c = 0; c < kConvLanes; ++c, u += kConvLanes) {
        Lanes g[3][3] = {};
        for (int tap = 0; tap < 9; ++tap) {
          for (int lane = 0; lane < kConvLanes; ++lane) g[tap / 3][tap % 3][lane] = block[tap][lane][c];
        }
        TransformFilter(g, PlaceFloats(in * out), u);
      }
    }
  }
}

FOR_EACH_CPU void TransformFiltersBack(const float* filters, int64_t in, int64_t out, float* u) {
  for (int64_t i = 0; i < in; i += kConvLanes) {
    for (int64_t o = 0; o < out; ++o, u += kConvLanes) {
      Lanes g[3][3];
      for (int tap = 0; tap < 9; ++tap) g[tap / 3][tap % 3] = At(filters + (o * 9 + 8 - tap) * in + i);
      TransformFilter(g, PlaceFloats(in * out), u);
    }
  }
}

FOR_EACH_CPU void FilterGradients(const float* u, int64_t in, int64_t out, float* filters) {
  const int64_t place = PlaceFloats(in * out);
  for (int64_t i = 0; i < in; i += kConvLanes) {
    for (int64_t o = 0; o < out; ++o, u += kConvLanes) {
      Lanes t[3][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Lanes first = At(u + j * place), second = At(u + (4 + j) * place),
                    third = At(u + (8 + j) * place);
        const Lanes sum = 0.5f * (second + third);
        t[0][j] = first + sum, t[1][j] = 0.5f * (second - third), t[2][j] = sum + At(u + (12 + j) * place);
      }
#pragma GCC unroll 4
      for (int tap = 0; tap < 3; ++tap) {
        const Lanes sum = 0.5f * (t[tap][1] + t[tap][2]);
        float* row = filters + (o * 9 + 3 * tap) * in + i;
        At(row) = t[tap][0] + sum, At(row + in) = 0.5f * (t[tap][1] - t[tap][2]);
        At(row + 2 * in) = sum + t[tap][3];
      }
    }
  }
}

FOR_EACH_CPU void TransformInput(const float* image, const TileGrid& grid, int64_t channels, int64_t first,
                                 int64_t count, int64_t room, float* v) {
  const int64_t place = PlaceFloats(room * channels);
  Corner at = CornerOf(grid, first);
  for (int64_t tile = 0; tile < count; ++tile, at = Next(grid, at)) {
    const float* whole = image + at.image * grid.height * grid.width * channels;
    for (int64_t c = 0; c < channels; c += kConvLanes) {
      Lanes d[4][4];
      LoadPixels<4>(whole, grid, channels, c, at.y - 1, at.x - 1, d);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const Lanes second = d[1][j], third = d[2][j];
        d[0][j] -= third, d[1][j] = second + third, d[2][j] = third - second, d[3][j] = second - d[3][j];
      }
      float* out = v + c * room + tile * kConvLanes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        float* row = out + 4 * i * place;
        At(row) = d[i][0] - d[i][2];
        At(row + place) = d[i][1] + d[i][2];
        At(row + 2 * place) = d[i][2] - d[i][1];
        At(row + 3 * place) = d[i][1] - d[i][3];
      }
    }
  }
}

FOR_EACH_CPU void TransformOutputGradient(const float* image, const TileGrid& grid, int64_t channels,
                                          int64_t first, int64_t count, int64_t room, float* m) {
  const int64_t place = PlaceFloats(room * channels);
  Corner at = CornerOf(grid, first);
  for (int64_t tile = 0; tile < count; ++tile, at = Next(grid, at)) {
    const float* whole = image + at.image * grid.height * grid.width * channels;
    for (int64_t c = 0; c < channels; c += kConvLanes) {
      Lanes d[2][2];
      LoadPixels<2>(whole, grid, channels, c, at.y, at.x, d);
      const Lanes t[4][2] = {{d[0][0], d[0][1]},
                             {d[0][0] + d[1][0], d[0][1] + d[1][1]},
                             {d[0][0] - d[1][0], d[0][1] - d[1][1]},
                             {-d[1][0], -d[1][1]}};
      float* out = m + c * room + tile * kConvLanes;
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        float* row = out + 4 * i * place;
        At(row) = t[i][0];
        At(row + place) = t[i][0] + t[i][1];
        At(row + 2 * place) = t[i][0] - t[i][1];
        At(row + 3 * place) = -t[i][1];
      }
    }
  }
}

FOR_EACH_CPU void TransformOutput(const float* m, const TileGrid& grid, int64_t channels, int64_t first,
                                  int64_t count, int64_t room, float* image) {
  const int64_t place = PlaceFloats(room * channels);
  Corner at = CornerOf(grid, first);
  for (int64_t tile = 0; tile < count; ++tile, at = Next(grid, at)) {
    float* corner = image + ((at.image * grid.height + at.y) * grid.width + at.x) * channels;
    const bool right = at.x + 1 < grid.width, below = at.y + 1 < grid.height;
    for (int64_t c = 0; c < channels; c += kConvLanes) {
      const float* in = m + c * room + tile * kConvLanes;
      Lanes t[2][4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        Lanes u[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) u[i] = At(in + (4 * i + j) * place);
        t[0][j] = u[0] + u[1] + u[2], t[1][j] = u[1] - u[2] - u[3];
      }
      float* out = corner + c;
      At(out) = t[0][0] + t[0][1] + t[0][2];
      if (right) At(out + channels) = t[0][1] - t[0][2] - t[0][3];
      out += grid.width * channels;
      if (below) At(out) = t[1][0] + t[1][1] + t[1][2];
      if (below && right) At(out + channels) = t[1][1] - t[1][2] - t[1][3];
    }
  }
}

FOR_EACH_CPU void MultiplyPlaces(const float* v, const float* u, int64_t count, int64_t room, int64_t in,
                                 int64_t out, float* m) {
  const bool wide = WIDE_CPU;  // 32 registers of 16 lanes; otherwise 16 registers of 8 lanes
  for (int place = 0; place < kConvPlaces; ++place) {
    for (int64_t k = 0; k < out;) {
      if (!wide) {
        MultiplyColumns<6, 1>(v, u + k * in, count, room, in, m + k * room);
        k += kConvLanes;
      } else if (k + kConvLanes < out) {
        MultiplyColumns<12, 2>(v, u + k * in, count, room, in, m + k * room);
        k += 2 * kConvLanes;
      } else {
        MultiplyColumns<16, 1>(v, u + k * in, count, room, in, m + k * room);
        k += kConvLanes;
      }
    }
    v += PlaceFloats(room * in), u += PlaceFloats(in * out), m += PlaceFloats(room * out);
  }
}

FOR_EACH_CPU void AddPlaceGradients(const float* v, const float* m, int64_t count, int64_t room, int64_t in,
                                    int64_t out, float* u) {
  const bool wide = WIDE_CPU;
  for (int place = 0; place < kConvPlaces; ++place) {
    for (int64_t c = 0; c < in; c += kConvLanes) {
      for (int64_t k = 0; k < out; k += kConvLanes) {
        if (wide) {
          AddGradientBlock<16>(v + c * room, m + k * room, count, u + (c * out + k * kConvLanes));
          continue;
        }
        for (int part = 0; part < kConvLanes; part += 4)
          AddGradientBlock<4>(v + c * room, m + k * room + part, count,
                              u + c * out + (k + part) * kConvLanes);
      }
    }
    v += PlaceFloats(room * in), m += PlaceFloats(room * out), u += PlaceFloats(in * out);
  }
}

}  // namespace scalelab::trainer
