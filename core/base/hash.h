// The one hash of the project: files, placement and the tables' index depend on it, so it may never change. Constants
// and test vectors: docs/formats/buckets.md.
#pragma once

#include <cstdint>

namespace monolith {

inline constexpr int kBucketBits = 10;
inline constexpr int kNumBuckets = 1 << kBucketBits;
inline constexpr int kBelowBucketBits = 64 - kBucketBits;  // bits of a hash that the bucket does not determine
inline constexpr uint64_t kBelowBucket = (uint64_t{1} << kBelowBucketBits) - 1;

// Bijective 64-bit mix (the finalizer of splitmix64).
inline constexpr uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Its inverse: Unmix64(Mix64(x)) == x.
inline constexpr uint64_t Unmix64(uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ull;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ull;
  return x ^ (x >> 30) ^ (x >> 60);
}

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ull;

// Hash of a feature id. The added constant keeps id 0 from hashing to 0.
inline constexpr uint64_t HashId(int64_t id) { return Mix64(static_cast<uint64_t>(id) + kGoldenGamma); }

// Returns the id that has this hash.
inline constexpr int64_t IdOfHash(uint64_t hash) { return static_cast<int64_t>(Unmix64(hash) - kGoldenGamma); }

inline constexpr uint32_t BucketOfHash(uint64_t hash) { return static_cast<uint32_t>(hash >> kBelowBucketBits); }
inline constexpr uint32_t BucketOf(int64_t id) { return BucketOfHash(HashId(id)); }

// Returns the hash by which the index of a bucket finds a key. For a key that is an id, in the id's own bucket, it
// equals HashId(); other keys do not determine their bucket (table/slot_keys.h).
inline constexpr uint64_t HashInBucket(uint32_t bucket, int64_t key) {
  return uint64_t{bucket} << kBelowBucketBits | (HashId(key) & kBelowBucket);
}

// Order-dependent combination of two words, for seeds and digests.
inline constexpr uint64_t Combine(uint64_t a, uint64_t b) { return Mix64(a + kGoldenGamma * (b + 1)); }

}  // namespace monolith
