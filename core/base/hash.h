// The one hash of the project: files, placement and the tables' index all rest on it, so it may never change.
// Constants and test vectors: docs/formats/buckets.md.
#pragma once

#include <cstdint>

namespace monolith {

inline constexpr int kBucketBits = 10;
inline constexpr int kNumBuckets = 1 << kBucketBits;

// Bijective 64-bit mix (the finalizer of splitmix64).
inline constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;

// Hash of a feature id. The added constant keeps id 0 from hashing to 0.
inline constexpr uint64_t HashId(int64_t id) { return Mix64(static_cast<uint64_t>(id) + kGoldenGamma); }

inline constexpr uint32_t BucketOfHash(uint64_t hash) { return static_cast<uint32_t>(hash >> (64 - kBucketBits)); }
inline constexpr uint32_t BucketOf(int64_t id) { return BucketOfHash(HashId(id)); }

// Order-dependent combination of two words, for seeds and digests.
inline constexpr uint64_t Combine(uint64_t a, uint64_t b) { return Mix64(a + kGoldenGamma * (b + 1)); }

}  // namespace monolith
