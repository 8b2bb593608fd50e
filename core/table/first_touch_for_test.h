// Memory that calls back in the middle of a read or write of it: makes concurrent changes deterministic, without
// threads.
//
// The first access to the second half makes the half accessible and calls `meanwhile`, in the thread that made the
// access and once. That thread must hold no lock that `meanwhile` takes. One object at a time.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <span>
#include <utility>

namespace monolith {

class FirstTouch {
 public:
  FirstTouch(size_t pages_of_each_half, std::function<void()> meanwhile)
      : half_bytes_(pages_of_each_half * static_cast<size_t>(getpagesize())), meanwhile_(std::move(meanwhile)) {
    void* memory = mmap(nullptr, 2 * half_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    memory_ = static_cast<std::byte*>(memory);
    current_ = this;
    struct sigaction action = {};
    action.sa_sigaction = &Handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before_);
  }
  ~FirstTouch() {
    sigaction(SIGSEGV, &before_, nullptr);
    current_ = nullptr;
    munmap(memory_, 2 * half_bytes_);
  }
  FirstTouch(const FirstTouch&) = delete;
  FirstTouch& operator=(const FirstTouch&) = delete;

  // Both halves end to end; filled before Arm(), or left zero.
  template <typename T>
  std::span<T> As() {
    return {reinterpret_cast<T*>(memory_), 2 * half_bytes_ / sizeof(T)};
  }
  // From now on an access to the second half is caught.
  void Arm() { mprotect(memory_ + half_bytes_, half_bytes_, PROT_NONE); }
  bool was_touched() const { return was_touched_; }

 private:
  static void Handle(int, siginfo_t* info, void*) {
    FirstTouch& self = *current_;
    const std::byte* at = static_cast<std::byte*>(info->si_addr);
    const std::byte* half = self.memory_ + self.half_bytes_;
    if (self.was_touched_ || at < half || at >= half + self.half_bytes_) {  // a fault of the code under test
      sigaction(SIGSEGV, &self.before_, nullptr);
      return;
    }
    self.was_touched_ = true;
    mprotect(self.memory_ + self.half_bytes_, self.half_bytes_, PROT_READ | PROT_WRITE);
    self.meanwhile_();
  }

  static inline FirstTouch* current_ = nullptr;
  const size_t half_bytes_;
  const std::function<void()> meanwhile_;
  std::byte* memory_ = nullptr;
  bool was_touched_ = false;
  struct sigaction before_ = {};
};

}  // namespace monolith
