#include "base/process_key.h"

#include <random>

namespace monolith {
namespace {

uint64_t DrawOdd() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace

const uint64_t kProcessKey = DrawOdd();

}  // namespace monolith
