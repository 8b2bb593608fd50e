#include "base/forks.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace monolith {
namespace {

struct Registry {
  std::mutex mutex;  // guards `members`; held by a fork from its beginning to its end
  std::vector<AtRestInForks*> members;
};

Registry& TheRegistry() {
  static auto* registry = new Registry;  // never destroyed: members with static lifetime deregister at exit
  return *registry;
}

}  // namespace

struct ForkHandlers {
  template <typename Visit>
  static void ForKind(AtRestInForks::Kind kind, Visit&& visit) {
    for (AtRestInForks* member : TheRegistry().members) {
      if (member->kind_ == kind) visit(*member);
    }
  }
  template <typename Visit>
  static void LetGo(Visit&& visit) {
    ForKind(AtRestInForks::Kind::kMemory, visit);
    ForKind(AtRestInForks::Kind::kCalls, visit);
    TheRegistry().mutex.unlock();
  }

  static void Before() {
    TheRegistry().mutex.lock();
    for (const auto kind : {AtRestInForks::Kind::kCalls, AtRestInForks::Kind::kMemory}) {
      ForKind(kind, [](AtRestInForks& member) { member.Rest(); });
    }
  }
  static void InParent() {
    LetGo([](AtRestInForks& member) { member.GoOnInParent(); });
  }
  static void InChild() {
    LetGo([](AtRestInForks& member) { member.GoOnInChild(); });
  }
};

AtRestInForks::AtRestInForks(Kind kind) : kind_(kind) {
  static const int registered = pthread_atfork(ForkHandlers::Before, ForkHandlers::InParent, ForkHandlers::InChild);
  (void)registered;
  const std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().members.push_back(this);
}

AtRestInForks::~AtRestInForks() {
  const std::lock_guard lock(TheRegistry().mutex);
  std::erase(TheRegistry().members, this);
}

}  // namespace monolith
