#include "base/forks.h"

#include <pthread.h>

#include <algorithm>
#include <vector>

#include "base/mutex.h"

namespace monolith {
namespace {

struct Registry {
  Mutex mutex;  // held by a fork from its beginning to its end
  std::vector<AtRestInForks*> members GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static auto* registry = new Registry;  // never destroyed: members with static lifetime deregister at exit
  return *registry;
}

}  // namespace

struct ForkHandlers {
  template <typename Visit>
  static void ForKind(AtRestInForks::Kind kind, Visit&& visit) REQUIRES(TheRegistry().mutex) {
    for (AtRestInForks* member : TheRegistry().members) {
      if (member->kind_ == kind) visit(*member);
    }
  }
  template <typename Visit>
  static void LetGo(Visit&& visit) RELEASE(TheRegistry().mutex) {
    ForKind(AtRestInForks::Kind::kMemory, visit);
    ForKind(AtRestInForks::Kind::kCalls, visit);
    ForKind(AtRestInForks::Kind::kOuterCalls, visit);
    TheRegistry().mutex.Unlock();
  }

  static void Before() ACQUIRE(TheRegistry().mutex) {
    TheRegistry().mutex.Lock();
    using Kind = AtRestInForks::Kind;
    for (const Kind kind : {Kind::kOuterCalls, Kind::kCalls, Kind::kMemory}) {
      ForKind(kind, [](AtRestInForks& member) { member.Rest(); });
    }
  }
  static void InParent() RELEASE(TheRegistry().mutex) {
    LetGo([](AtRestInForks& member) { member.GoOnInParent(); });
  }
  static void InChild() RELEASE(TheRegistry().mutex) {
    LetGo([](AtRestInForks& member) { member.GoOnInChild(); });
  }
};

AtRestInForks::AtRestInForks(Kind kind) : kind_(kind) {
  static const int registered = pthread_atfork(ForkHandlers::Before, ForkHandlers::InParent, ForkHandlers::InChild);
  (void)registered;
  const MutexLock lock(TheRegistry().mutex);
  TheRegistry().members.push_back(this);
}

AtRestInForks::~AtRestInForks() {
  const MutexLock lock(TheRegistry().mutex);
  std::erase(TheRegistry().members, this);
}

}  // namespace monolith
