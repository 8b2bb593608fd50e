// Rows that workers of other processes pull and push: some buckets of one store. Thread-safe.
//
// A call is answered by the thread that received it. The core's thread pool helps a call only while it is the only one
// here: with several in progress each has a thread already.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "ps/kept_plans.h"
#include "ps/push_gate.h"
#include "ps/row_messages.h"
#include "rpc/server.h"
#include "table/distinct_ids.h"
#include "table/group.h"

namespace monolith::ps {

class RowHost {
 public:
  static constexpr uint64_t kKeptBytes = uint64_t{256} << 20;

  // The group outlives this object, or Close(). `agreement` is the text that workers must send in their greeting: the
  // update rules of the rows.
  RowHost(Group& group, BucketRange buckets, std::string agreement, std::function<void()> on_open,
          uint64_t kept_bytes = kKeptBytes);

  BucketRange buckets() const { return buckets_; }
  const std::string& agreement() const { return agreement_; }
  PushGate& gate() { return gate_; }
  size_t num_kept() const { return kept_.size(); }
  // Answers a frame. Throws rpc::NotNow for a push while the gate is held.
  rpc::Answer Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body);
  // Waits for calls in progress and rejects all later ones.
  void Close();

 private:
  class Visit;

  rpc::Answer Join(const std::string& head);
  rpc::Answer Pull(const std::string& head, std::span<const uint8_t> body);
  rpc::Answer Push(const std::string& head, std::span<const uint8_t> body);
  rpc::Answer Drop(const std::string& head);
  rpc::Answer Where(const std::string& head);
  Outcome Apply(const PushQuestion& question, std::span<const uint8_t> body, Applied* applied);
  Applied ApplyTo(const Plan& plan, const PushQuestion& question, const PushBody& body);

  Group& group_;
  const BucketRange buckets_;
  const std::string agreement_;
  KeptPlans kept_;
  PushGate gate_;

  std::atomic<int> inside_{0};
  Mutex mutex_;
  CondVar left_;
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace monolith::ps
