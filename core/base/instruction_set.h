// Code that is compiled for several instruction sets of one architecture and chosen at run time: one source, the same
// bits, fewer instructions if the processor has wider registers.
//
// WithInstructions(body) runs body() compiled for the set in use, with everything that can be inlined into it; what
// cannot (a function of another file, a virtual one) runs as the baseline of the architecture, unless it calls
// WithInstructions() itself. No set has fused multiply-add: results must not depend on it. On aarch64 there is only the
// baseline, whose vectors are as wide as those of the processors on which it was measured.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace monolith {

// In the order of x86-64's levels. From v3 and v4 the parts that compilers use for this code: AVX2 and BMI, AVX-512.
enum class InstructionSet { kBaseline, kV3, kV4 };

// Names of the sets that this build has and this processor can run, the baseline first.
std::vector<std::string> AvailableInstructionSets();

// Name of the set in use; initially the one that was measured to be fastest among the available ones.
std::string InstructionSetInUse();

// Thread-safe: calls in flight continue in either set. Throws kInvalidArgument when there is no such set, or this
// processor or build lacks it.
void UseInstructionSet(std::string_view name);

#if defined(__x86_64__) && !defined(MONOLITH_BASELINE_ONLY)
#define MONOLITH_HAS_INSTRUCTION_SETS 1
#endif

namespace internal {

extern std::atomic<InstructionSet> instruction_set;

#ifdef MONOLITH_HAS_INSTRUCTION_SETS
template <typename Body>
[[gnu::target("avx2,bmi,bmi2,popcnt"), gnu::flatten, gnu::noinline]] auto RunV3(const Body& body) {
  return body();
}
template <typename Body>
[[gnu::target("avx2,bmi,bmi2,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"), gnu::flatten, gnu::noinline]] auto
RunV4(const Body& body) {
  return body();
}
#endif

}  // namespace internal

template <typename Body>
inline auto WithInstructions(const Body& body) {
#ifdef MONOLITH_HAS_INSTRUCTION_SETS
  const InstructionSet set = internal::instruction_set.load(std::memory_order_relaxed);
  if (set == InstructionSet::kV3) return internal::RunV3(body);
  if (set == InstructionSet::kV4) return internal::RunV4(body);
#endif
  return body();
}

}  // namespace monolith
