// Array types of the bindings: int64 views of the caller's memory as arguments, vectors of the core as results, without
// a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace monolith {

using IdArray = nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline std::span<const int64_t> SpanOf(const IdArray& ids) { return {ids.data(), ids.size()}; }

template <typename T>
using VectorArray = nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>, nanobind::c_contig>;

// Returns a NumPy array that owns the vector. REQUIRES: the GIL is held.
template <typename T>
VectorArray<T> ArrayOf(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  const nanobind::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return VectorArray<T>(owned->data(), {owned->size()}, owner);
}

// Returns the result of `call`, computed while other Python threads run. REQUIRES: the GIL is held; `call` uses nothing
// of Python.
template <typename Call>
auto WithoutGil(const Call& call) {
  const nanobind::gil_scoped_release release;
  return call();
}

}  // namespace monolith
