#include "device/fibers.h"

#include "base/error.h"
#include "device/on_cpu.h"

#if defined(__SANITIZE_ADDRESS__)
#define MONOLITH_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MONOLITH_ADDRESS_SANITIZER 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define MONOLITH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MONOLITH_THREAD_SANITIZER 1
#endif
#endif

#ifdef MONOLITH_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef MONOLITH_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#define MONOLITH_UNSEEN_BY_THREAD_SANITIZER __attribute__((no_sanitize("thread"), noinline))
#else
#define MONOLITH_UNSEEN_BY_THREAD_SANITIZER
#endif

namespace monolith::device {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;

thread_local Fibers* running = nullptr;

// All fibers of a thread share these variables. Each reads what was set for it, which is no race, whatever the thread
// sanitizer would conclude.
MONOLITH_UNSEEN_BY_THREAD_SANITIZER void SetThread(uint32_t number) { threadIdx = {number}; }
MONOLITH_UNSEEN_BY_THREAD_SANITIZER uint32_t CurrentThread() { return threadIdx.x; }
MONOLITH_UNSEEN_BY_THREAD_SANITIZER Fibers* Running() { return running; }

void* NewThread() {
#ifdef MONOLITH_THREAD_SANITIZER
  return __tsan_create_fiber(0);
#else
  return nullptr;
#endif
}

void DeleteThread([[maybe_unused]] void* thread) {
#ifdef MONOLITH_THREAD_SANITIZER
  __tsan_destroy_fiber(thread);
#endif
}

// What happened before Release() happens before what follows an Acquire() of the same address.
void Release([[maybe_unused]] char* address) {
#ifdef MONOLITH_THREAD_SANITIZER
  __tsan_release(address);
#endif
}

void Acquire([[maybe_unused]] char* address) {
#ifdef MONOLITH_THREAD_SANITIZER
  __tsan_acquire(address);
#endif
}

}  // namespace

void __syncthreads() { Fibers::WaitAtBarrier(); }

Fibers::Fibers(uint32_t count)
    : memory_(std::make_unique_for_overwrite<std::byte[]>(kStackBytes * count)), fibers_(count) {
#ifdef MONOLITH_THREAD_SANITIZER
  caller_.thread = __tsan_get_current_fiber();
#endif
  for (uint32_t number = 0; number < count; ++number) Prepare(number);
}

void Fibers::Prepare(uint32_t number) {
  Stack& stack = fibers_[number].stack;
  std::byte* const bottom = memory_.get() + kStackBytes * number;
  stack.bottom = bottom;
  stack.size = kStackBytes;
  stack.thread = NewThread();
  MONOLITH_CHECK(getcontext(&stack.context) == 0);
  stack.context.uc_stack.ss_sp = bottom;
  stack.context.uc_stack.ss_size = kStackBytes;
  stack.context.uc_link = nullptr;
  makecontext(&stack.context, reinterpret_cast<void (*)()>(&Fibers::Enter), 1, static_cast<int>(number));
}

// Every fiber leaves its loop, so that the address sanitizer releases what it holds for its stack.
Fibers::~Fibers() {
  running = this;
  is_ending_ = true;
  Release(&begin_of_round_);
  for (uint32_t i = 0; i < fibers_.size(); ++i) {
    Resume(i);
    DeleteThread(fibers_[i].stack.thread);
  }
}

void Fibers::Run(Body body, const void* argument, ThreadOrder& order) {
  running = this;
  body_ = body;
  argument_ = argument;
  for (size_t num_waiting = fibers_.size(); num_waiting != 0;) {
    num_waiting = 0;
    Release(&begin_of_round_);
    for (const uint32_t number : order.Next()) {
      Resume(number);
      num_waiting += !fibers_[number].has_ended;
    }
    MONOLITH_CHECK(num_waiting == 0 || num_waiting == fibers_.size());
  }
}

void Fibers::WaitAtBarrier() { Running()->Leave(CurrentThread(), kOut); }

// The stack that is left continues after the switch when another one switches to it. For the thread sanitizer, what a
// fiber has done happens before what its caller does next, but not the other way round: the fibers of a round are
// concurrent.
inline void Fibers::Switch(Stack& from, Stack& to, [[maybe_unused]] Direction direction) {
#ifdef MONOLITH_ADDRESS_SANITIZER
  __sanitizer_start_switch_fiber(direction == kLastOut ? nullptr : &from.fake_stack, to.bottom, to.size);
#endif
#ifdef MONOLITH_THREAD_SANITIZER
  __tsan_switch_to_fiber(to.thread, direction == kIn ? __tsan_switch_to_fiber_no_sync : 0);
#endif
  swapcontext(&from.context, &to.context);
#ifdef MONOLITH_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void Fibers::Enter(int number) {
#ifdef MONOLITH_ADDRESS_SANITIZER
  __sanitizer_finish_switch_fiber(nullptr, &Running()->caller_.bottom, &Running()->caller_.size);
#endif
  Running()->Work(static_cast<uint32_t>(number));
}

void Fibers::Work(uint32_t number) {
  for (;;) {
    Acquire(&begin_of_round_);
    if (is_ending_) break;
    SetThread(number);
    fibers_[number].has_ended = false;
    body_(argument_);
    fibers_[number].has_ended = true;
    Leave(number, kOut);
  }
  Leave(number, kLastOut);
}

// Called in the fiber.
void Fibers::Leave(uint32_t number, Direction direction) {
  Switch(fibers_[number].stack, caller_, direction);
  Acquire(&begin_of_round_);
  SetThread(number);
}

// Called outside of the fibers.
void Fibers::Resume(uint32_t number) { Switch(caller_, fibers_[number].stack, kIn); }

}  // namespace monolith::device
