#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace monolith {

void AbortOnBrokenInvariant(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "monolith: broken invariant %s at %s:%d; please report this as a bug\n", expression, file, line);
  std::abort();
}

}  // namespace monolith
