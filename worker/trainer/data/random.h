// Random numbers that depend only on their key: the same on every rank, machine and standard library.
#pragma once

#include <cstdint>

namespace scalelab::trainer {

// SplitMix64 (Steele, Lea, Flood 2014): 64 bits a call, sufficient for shuffling and augmentation,
// cheap to seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Makes a different generator for each (seed, a, b).
  Random(uint64_t seed, uint64_t a, uint64_t b) : state_(Mix(Mix(Mix(seed) ^ a) ^ b)) {}

  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15u); }
  // Returns a number from 0 to bound - 1 by Lemire's multiplication. Its bias of bound / 2^64 does
  // not matter here.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<uint128>(Next()) * bound) >> 64);
  }

 private:
  __extension__ typedef unsigned __int128 uint128;

  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

}  // namespace scalelab::trainer
