// Memory of a device with an owner.
//
// Each object is used by one thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/launcher.h"

namespace monolith::device {

// An array whose elements are left uninitialised.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(Launcher& launcher, size_t size)
      : launcher_(&launcher),
        data_(size == 0 ? nullptr : static_cast<T*>(launcher.Allocate(size * sizeof(T)))),
        size_(size) {}
  ~DeviceArray() {
    if (data_ != nullptr) launcher_->Free(data_);
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(launcher_, other.launcher_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  T* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Launcher* launcher_ = nullptr;
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Memory for one call at a time, taken piece by piece. It is kept for the next call: calls follow each other in one
// stream, so that the next one does not write before the last one has read.
class Scratch {
 public:
  explicit Scratch(Launcher& launcher) : launcher_(launcher) {}

  // Begins a call: what was taken before is free. Allocates nothing: memory that was reserved stays.
  void Reset() {
    if (blocks_.size() > 1) {  // the last call did not fit: the next block is for all of it
      for (const DeviceArray<std::byte>& block : blocks_) next_bytes_ += block.size();
      next_bytes_ -= blocks_.back().size();
      blocks_.erase(blocks_.begin(), blocks_.end() - 1);
    }
    used_ = 0;
  }

  // Allocates what is missing, so that this call can take pieces of this many bytes in total without an error; each
  // piece counts up to a multiple of kBoundary.
  void Reserve(size_t bytes) {
    if (!blocks_.empty() && used_ + bytes <= blocks_.back().size()) return;
    const size_t wanted = std::max({bytes, kLeastBytes, std::exchange(next_bytes_, 0)});
    blocks_.emplace_back(launcher_, wanted);
    used_ = 0;
  }

  template <typename T>
  T* Take(size_t count) {
    const size_t bytes = (count * sizeof(T) + kBoundary - 1) / kBoundary * kBoundary;
    Reserve(bytes);
    auto* piece = reinterpret_cast<T*>(blocks_.back().data() + used_);
    used_ += bytes;
    return piece;
  }

  // The same in device memory as in `host`.
  template <typename T>
  T* Upload(std::span<const T> host, Stream stream) {
    T* copy = Take<T>(host.size());
    launcher_.Copy(copy, host.data(), host.size_bytes(), stream);
    return copy;
  }

  static constexpr size_t kBoundary = 256;

 private:
  static constexpr size_t kLeastBytes = size_t{1} << 16;

  Launcher& launcher_;
  std::vector<DeviceArray<std::byte>> blocks_;  // the call takes from the last one
  size_t used_ = 0;                             // of it
  size_t next_bytes_ = 0;                       // least size of the next block
};

}  // namespace monolith::device
