// An array whose elements are left uninitialised: batches are written before they are read. Owned by one object at a
// time.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "memory/recycled.h"

namespace monolith {

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(static_cast<T*>(TakeRecycled(size * sizeof(T)))), size_(size) {}
  ~Buffer() {
    if (data_ != nullptr) GiveRecycled(data_, size_ * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace monolith
