// The bytes of any Python object with the buffer protocol (bytes, memoryview, arrays), borrowed until the view is
// destroyed. Created and destroyed with the GIL held.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <utility>

namespace monolith {

class BufferView {
 public:
  // Throws nanobind::python_error for an object without a contiguous buffer.
  explicit BufferView(nanobind::handle object, bool writable = false) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) != 0)
      throw nanobind::python_error();
    is_held_ = true;
  }
  BufferView(BufferView&& other) noexcept : view_(other.view_), is_held_(std::exchange(other.is_held_, false)) {}
  BufferView& operator=(BufferView&&) = delete;
  ~BufferView() {
    if (is_held_) PyBuffer_Release(&view_);
  }

  std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(view_.buf), size()}; }
  std::span<uint8_t> writable() const { return {static_cast<uint8_t*>(view_.buf), size()}; }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_{};
  bool is_held_ = false;
};

}  // namespace monolith
