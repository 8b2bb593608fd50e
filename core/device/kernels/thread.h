// What every kernel uses: its place among the threads of a launch, memory that other threads change, and packs of
// floats that move together.
//
// Kernels are CUDA C++, compiled by NVRTC for a GPU and, through device/on_cpu.h, by the compiler of the core. NVRTC is
// called such that functions without a specifier run on the GPU; kernels include nothing but each other and headers of
// the core that compile as they are. Threads of a launch communicate through atomic operations on integers only, or
// between barriers, so that no result depends on the order in which threads run.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MONOLITH_UNROLL _Pragma("unroll")
#else
#include "device/on_cpu.h"
#define MONOLITH_UNROLL
#endif

namespace monolith::device {

inline constexpr uint32_t kBlock = 256;  // threads of a block, of every kernel

inline uint64_t ThreadNumber() { return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

#ifdef __CUDACC__
// A word that other threads of the launch may change.
template <typename Word>
inline Word Peek(const Word* word) {
  return *static_cast<const volatile Word*>(word);
}
#endif

// Several neighbouring threads share an item, a power of two of them: its lanes.
struct Lane {
  uint64_t item;
  uint32_t number;
};
inline Lane LaneOf(uint32_t lane_bits) {
  const uint64_t thread = ThreadNumber();
  return {thread >> lane_bits, static_cast<uint32_t>(thread) & ((1u << lane_bits) - 1)};
}
// Bits of the number of lanes for items of this many packs: a lane for each pack, but not more than a warp has.
inline constexpr uint32_t LaneBitsFor(uint32_t num_packs) {
  uint32_t bits = 0;
  while (bits < 5 && (1u << bits) < num_packs) ++bits;
  return bits;
}

// One float, or four that are read and written by one instruction. Where every dim and offset is a multiple of four,
// kernels for packs of four are used, else those for packs of one.
template <int kWidth>
struct alignas(kWidth * sizeof(float)) Pack {
  static_assert(kWidth == 1 || kWidth == 4);
  float at[kWidth];
};

template <int kWidth>
inline Pack<kWidth> LoadPack(const float* from) {
  return *reinterpret_cast<const Pack<kWidth>*>(from);
}
template <int kWidth>
inline void StorePack(const Pack<kWidth>& pack, float* to) {
  *reinterpret_cast<Pack<kWidth>*>(to) = pack;
}

inline bool IsFinite(float x) { return x - x == 0.0f; }

}  // namespace monolith::device
