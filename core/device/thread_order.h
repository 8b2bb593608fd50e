// The order in which a processor runs what a GPU would run concurrently: ascending, or another one each time. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace monolith::device {

class ThreadOrder {
 public:
  // A seed of 0 is for the ascending order.
  ThreadOrder(uint32_t count, uint64_t seed) : is_shuffled_(seed != 0), random_(seed), numbers_(count) {
    std::iota(numbers_.begin(), numbers_.end(), 0u);
  }

  // Returns the numbers below `count`, each once; valid until the next call.
  std::span<const uint32_t> Next() {
    if (is_shuffled_) std::shuffle(numbers_.begin(), numbers_.end(), random_);
    return numbers_;
  }

 private:
  const bool is_shuffled_;
  std::mt19937_64 random_;
  std::vector<uint32_t> numbers_;
};

}  // namespace monolith::device
