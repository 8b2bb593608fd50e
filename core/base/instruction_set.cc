#include "base/instruction_set.h"

#include <algorithm>

#include "base/error.h"

namespace monolith {
namespace {

struct Named {
  InstructionSet set;
  const char* name;
};
constexpr Named kSets[] = {
    {InstructionSet::kBaseline, "baseline"}, {InstructionSet::kV3, "v3"}, {InstructionSet::kV4, "v4"}};

bool IsAvailable(InstructionSet set) {
  if (set == InstructionSet::kBaseline) return true;
#ifdef MONOLITH_HAS_INSTRUCTION_SETS
  __builtin_cpu_init();
  const bool has_v3 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
                      __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
  const bool has_v4 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                      __builtin_cpu_supports("avx512cd") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0;
  return has_v3 && (set == InstructionSet::kV3 || has_v4);
#else
  return false;
#endif
}

InstructionSet Fastest() { return IsAvailable(InstructionSet::kV3) ? InstructionSet::kV3 : InstructionSet::kBaseline; }

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

namespace internal {
std::atomic<InstructionSet> instruction_set{Fastest()};
}  // namespace internal

std::vector<std::string> AvailableInstructionSets() {
  std::vector<std::string> names;
  for (const Named& each : kSets) {
    if (IsAvailable(each.set)) names.emplace_back(each.name);
  }
  return names;
}

std::string InstructionSetInUse() {
  const InstructionSet set = internal::instruction_set.load(std::memory_order_relaxed);
  return std::find_if(std::begin(kSets), std::end(kSets), [&](const Named& each) { return each.set == set; })->name;
}

void UseInstructionSet(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kSets), std::end(kSets), [&](const Named& each) { return each.name == name; });
  if (found == std::end(kSets)) {
    throw Error(Code::kInvalidArgument,
                "instruction set must be one of baseline, v3, v4, got '" + std::string(name) + "'");
  }
  if (!IsAvailable(found->set)) {
    throw Error(Code::kInvalidArgument, "instruction set '" + std::string(name) +
                                            "' is not to be had from this processor and build of the core, only " +
                                            Joined(AvailableInstructionSets()));
  }
  internal::instruction_set.store(found->set, std::memory_order_relaxed);
}

}  // namespace monolith
