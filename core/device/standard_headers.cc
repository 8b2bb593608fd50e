#include "device/source_file.h"

namespace monolith::device {
namespace {

// Only what headers of the core use. NVRTC itself defines size_t, memcpy, std::move and the functions of C's <math.h>.
// uint64_t is the type for which CUDA has atomic operations.
constexpr SourceFile kFiles[] = {
    {"cstdint", R"(#pragma once
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;
#define UINT32_MAX 0xffffffffu
)"},
    {"cstddef", R"(#pragma once
namespace std {
enum class byte : unsigned char {};
using size_t = ::size_t;
}  // namespace std
)"},
    {"cfloat", R"(#pragma once
#define FLT_MIN 0x1p-126f
#define FLT_MAX 0x1.fffffep127f
#define FLT_EPSILON 0x1p-23f
#define DBL_MIN 0x1p-1022
#define DBL_MAX 0x1.fffffffffffffp1023
#define DBL_EPSILON 0x1p-52
)"},
    {"cmath", R"(#pragma once
namespace std {
inline float sqrt(float x) { return ::sqrtf(x); }
inline double sqrt(double x) { return ::sqrt(x); }
inline float fabs(float x) { return ::fabsf(x); }
inline double fabs(double x) { return ::fabs(x); }
inline float abs(float x) { return ::fabsf(x); }
inline double abs(double x) { return ::fabs(x); }
inline float floor(float x) { return ::floorf(x); }
inline double floor(double x) { return ::floor(x); }
inline bool isfinite(float x) { return x - x == 0.0f; }
inline bool isfinite(double x) { return x - x == 0.0; }
inline bool isnan(float x) { return x != x; }
inline bool isnan(double x) { return x != x; }
inline bool signbit(float x) { return __builtin_bit_cast(unsigned int, x) >> 31 != 0; }
inline float copysign(float x, float sign) { return ::copysignf(x, sign); }
inline double copysign(double x, double sign) { return ::copysign(x, sign); }
}  // namespace std
)"},
    {"bit", R"(#pragma once
namespace std {
template <typename To, typename From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
}  // namespace std
)"},
    {"cstring", R"(#pragma once
namespace std {
using ::memcpy;
using ::memset;
}  // namespace std
)"},
    {"algorithm", R"(#pragma once
namespace std {
template <typename T>
constexpr const T& min(const T& a, const T& b) {
  return b < a ? b : a;
}
template <typename T>
constexpr const T& max(const T& a, const T& b) {
  return a < b ? b : a;
}
template <typename T>
constexpr const T& clamp(const T& x, const T& low, const T& high) {
  return x < low ? low : high < x ? high : x;
}
template <typename Out, typename Count, typename T>
constexpr Out fill_n(Out out, Count count, const T& value) {
  for (; count > 0; --count) *out++ = value;
  return out;
}
template <typename In, typename Count, typename Out>
constexpr Out copy_n(In in, Count count, Out out) {
  for (; count > 0; --count) *out++ = *in++;
  return out;
}
}  // namespace std
)"},
};

}  // namespace

const std::span<const SourceFile> kStandardHeaders = kFiles;

}  // namespace monolith::device
