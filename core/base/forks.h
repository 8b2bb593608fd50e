// Objects that must be at rest while the process forks, so that the child gets them in a consistent state.
//
// A child has the thread that forked and no other: a lock that another thread held stays locked there forever, and the
// data it guards stays half changed. So a fork waits until every object here is at rest, keeps it so, and releases it
// on both sides. The forking thread must not be inside one of them.
//
// Thread-safe. An object is registered from its construction to its destruction, neither of which may happen inside a
// call that another object of the registry waits for.
#pragma once

namespace monolith {

class AtRestInForks {
 public:
  // Calls wait for the calls that they make, and these for each other and for memory, never the other way round, so
  // they are stopped in this order.
  enum class Kind { kOuterCalls, kCalls, kMemory };

  AtRestInForks(const AtRestInForks&) = delete;
  AtRestInForks& operator=(const AtRestInForks&) = delete;

 protected:
  explicit AtRestInForks(Kind kind);
  ~AtRestInForks();

 private:
  friend struct ForkHandlers;

  // Waits until no thread is inside, and blocks new ones.
  virtual void Rest() = 0;
  virtual void GoOnInParent() = 0;
  // The threads that waited meanwhile do not exist in the child.
  virtual void GoOnInChild() = 0;

  const Kind kind_;
};

}  // namespace monolith
