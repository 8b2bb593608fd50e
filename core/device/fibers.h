// The threads of a block on a processor, for kernels with barriers: fibers of the calling thread. Each runs until it
// waits at a barrier or ends, then the next one continues.
//
// An object belongs to the thread that makes it. The sanitizers see every fiber as a thread of its own with its own
// stack: between two barriers the thread sanitizer finds what two threads of a block do to the same memory.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/thread_order.h"

namespace monolith::device {

class Fibers {
 public:
  using Body = void (*)(const void* argument);

  explicit Fibers(uint32_t count);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Runs body(argument) in every fiber, with threadIdx its number; between two barriers they run in the next order.
  // Aborts if some fibers end where others wait at a barrier.
  void Run(Body body, const void* argument, ThreadOrder& order);

  // Called by a body: returns when all fibers have called it.
  static void WaitAtBarrier();

 private:
  // What runs, and what the sanitizers record about it. The calling thread has one, too.
  struct Stack {
    ucontext_t context;
    const void* bottom = nullptr;
    size_t size = 0;
    void* fake_stack = nullptr;  // of the address sanitizer
    void* thread = nullptr;      // of the thread sanitizer
  };
  struct Fiber {
    Stack stack;
    bool has_ended = false;
  };

  enum Direction { kIn, kOut, kLastOut };  // to a fiber, from one that continues later, from one that does not

  static void Switch(Stack& from, Stack& to, Direction direction);
  static void Enter(int number);
  void Prepare(uint32_t number);
  void Work(uint32_t number);
  void Leave(uint32_t number, Direction direction);
  void Resume(uint32_t number);

  std::unique_ptr<std::byte[]> memory_;  // of all stacks
  std::vector<Fiber> fibers_;
  Stack caller_;
  Body body_ = nullptr;
  const void* argument_ = nullptr;
  bool is_ending_ = false;
  char begin_of_round_ = 0;  // its address: by it the thread sanitizer learns that rounds follow each other
};

}  // namespace monolith::device
