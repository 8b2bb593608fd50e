// An array whose elements are left uninitialised: batches are written before they are read. Owned by one object at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace monolith {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size) : data_(std::make_unique_for_overwrite<T[]>(size)), size_(size) {}
  Buffer(Buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  std::unique_ptr<T[]> data_;
  size_t size_ = 0;
};

}  // namespace monolith
