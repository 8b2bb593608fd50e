// One-dimensional arrays of the caller as spans, without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <span>
#include <vector>

namespace monolith {

template <typename T>
using In = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
template <typename T>
using Out = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
std::span<const T> Span(const In<T>& array) {
  return {array.data(), array.size()};
}
template <typename T>
std::span<T> Span(const Out<T>& array) {
  return {array.data(), array.size()};
}
template <typename T>
std::span<const T> Span(const std::optional<In<T>>& array) {
  return array.has_value() ? Span(*array) : std::span<const T>();
}
template <typename T>
std::vector<std::span<const T>> Spans(const std::vector<In<T>>& arrays) {
  std::vector<std::span<const T>> spans;
  for (const In<T>& array : arrays) spans.push_back(Span(array));
  return spans;
}

// A view of the core's memory that keeps its owner alive.
template <typename T, typename Memory>
nanobind::ndarray<nanobind::numpy, const T, nanobind::ndim<1>, nanobind::c_contig> ViewOf(const Memory& memory,
                                                                                          nanobind::handle owner) {
  return {memory.data(), {memory.size()}, owner};
}

}  // namespace monolith
