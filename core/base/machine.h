// Properties of the machine that the core runs on, for `monolith doctor`. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace monolith {

// The vector instruction sets that this build of the core uses, sorted. They are fixed when the core is compiled: a
// release build uses the baseline of the architecture, so that one wheel runs on every machine of it.
std::vector<std::string> CpuFeatures();

// The transparent-huge-page mode of the kernel: "always", "madvise", "never", or "unknown" if it cannot be read.
std::string HugePages();

// Returns the word in brackets in a line of the kernel such as "always [madvise] never"; "unknown" when there is none.
std::string SelectedWord(const std::string& line);

}  // namespace monolith
