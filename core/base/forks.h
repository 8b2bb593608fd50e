// What must be at rest while the process forks, so that the child gets it whole.
//
// A child has the thread that forked and no other: a lock that another thread held stays locked there for ever, and
// what it guards stays half done. So a fork waits until every object here is at rest, keeps it so, and lets go on both
// sides. Whoever forks may not be inside one of them.
//
// Thread-safe. An object takes part from its construction to its destruction, neither of which may happen inside a call
// that another object of the registry waits for.
#pragma once

namespace monolith {

class AtRestInForks {
 public:
  // Calls wait for each other and for memory, never the other way round: that is the order in which they are stopped.
  enum class Kind { kCalls, kMemory };

  AtRestInForks(const AtRestInForks&) = delete;
  AtRestInForks& operator=(const AtRestInForks&) = delete;

 protected:
  explicit AtRestInForks(Kind kind);
  ~AtRestInForks();

 private:
  friend struct ForkHandlers;

  // Waits until nobody is inside, and lets nobody in.
  virtual void Rest() = 0;
  virtual void GoOnInParent() = 0;
  // The threads that waited meanwhile do not exist here.
  virtual void GoOnInChild() = 0;

  const Kind kind_;
};

}  // namespace monolith
