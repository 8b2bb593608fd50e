#include "base/machine.h"

#include "base/text_file.h"

namespace monolith {

std::vector<std::string> CpuFeatures() {
  return {
#if defined(__AVX2__)
      "avx2",
#endif
#if defined(__AVX512F__)
      "avx512f",
#endif
#if defined(__F16C__)
      "f16c",
#endif
#if defined(__ARM_NEON)
      "neon",
#endif
#if defined(__SSE2__)
      "sse2",
#endif
  };
}

std::string SelectedWord(const std::string& line) {
  const size_t open = line.find('[');
  const size_t close = line.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos || close == open + 1) return "unknown";
  return line.substr(open + 1, close - open - 1);
}

std::string HugePages() { return SelectedWord(ReadTextFile("/sys/kernel/mm/transparent_hugepage/enabled")); }

}  // namespace monolith
