// The client of the rows, used by workers: one call goes to all servers concurrently, and their answers into one array.
//
// Server k keeps the rows of consecutive buckets, so that each has a slice of a plan and of its flat values. Pulls and
// pushes are in flight from the call that begins them until Finish(). Any number may be in flight; each server
// processes those of one client in the order in which they were begun. Thread-safe; one pull or push belongs to one
// thread at a time. The arguments of a pull or push must outlive it, or its Finish().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ps/row_messages.h"
#include "rpc/client.h"
#include "table/distinct_ids.h"
#include "table/group.h"
#include "table/plan_parts.h"

namespace monolith::ps {

class RowClient;

// A pull of the rows of a plan, in flight.
class RowPull {
 public:
  struct Result {
    bool is_lacking = false;  // some server does not have the batch `after`: nothing was read. Begin() retries
    int64_t seen = kNothingApplied;
    int64_t newest_time = 0;
  };

  ~RowPull();
  void Begin(double timeout_seconds);
  bool is_done() const;
  // Waits for all answers; false if some were missing after `seconds`.
  bool WaitFor(double seconds) const;
  Result Finish();

 private:
  friend class RowClient;
  RowPull(RowClient& client, const Plan& plan, PullQuestion question, std::vector<int64_t> incarnations,
          std::span<float> rows);
  int64_t ElementBytes() const;

  RowClient& client_;
  const SlicedPlan plan_;
  std::vector<int32_t> counts_;
  const PullQuestion question_;
  const std::vector<int64_t> incarnations_;
  const std::span<float> rows_;
  std::vector<uint16_t> halves_;
  std::vector<std::shared_ptr<rpc::Call>> calls_;
};

struct PushOrder {
  Push push;                          // without the incarnations
  std::vector<int64_t> incarnations;  // at each server
  int64_t step = 0;
  float scale = 1.0f;
  bool known_finite = false;
  uint32_t known_time = 0;      // newest at any server before this push
  uint64_t ticket = kNoTicket;  // of the pull that used the same plan, if there was one
  std::vector<uint64_t> dropped;
  // The worker's last batch at each server when it joined. A worker resumes after the lowest of these batches, and
  // names that batch in its push; a server that had a later one gets the batch it had. Empty: all had the same.
  std::vector<int64_t> joined_behind = {};
};

// An update in flight.
class RowPush {
 public:
  struct Result {
    Applied applied;
    int64_t newest_time = 0;
    int64_t steps_of_others = 0;  // at server 0, which counts for the complete job
  };

  ~RowPush();
  void Begin(double timeout_seconds);
  bool is_done() const;
  // Waits for all answers; false if some were missing after `seconds`.
  bool WaitFor(double seconds) const;
  // Waits for all servers; sends the ids to a server that has evicted the plan. REQUIRES: this worker's earlier pushes
  // were finished. Throws kFailedPrecondition if a server still lacks the push before this one.
  Result Finish(double timeout_seconds);

 private:
  friend class RowClient;
  RowPush(RowClient& client, const Plan& plan, PushOrder order, std::span<const float> gradients,
          std::span<const float> rates, std::span<const int64_t> times, std::span<const float> latest);
  void Ask(int server, bool with_ids, rpc::Deadline deadline);
  PushAnswer AnswerOf(int server);

  RowClient& client_;
  const SlicedPlan plan_;
  const PushOrder order_;
  std::vector<int32_t> counts_;
  const std::vector<float> rates_;
  std::vector<uint32_t> times_;
  uint32_t newest_time_;
  const std::span<const float> gradients_, latest_;
  std::vector<uint16_t> halves_;
  std::vector<std::shared_ptr<rpc::Call>> calls_;
};

struct RowClientOptions {
  rpc::ClientOptions frames;
  bool half = false;        // rows and gradients are sent as 16-bit floats
  bool with_counts = true;  // send the occurrences of each id, which admission needs
};

class RowClient {
 public:
  // `tables` is a group of the same tables, with rows or without; it outlives the client.
  RowClient(std::vector<rpc::Address> servers, std::vector<std::string> words, std::vector<BucketRange> owned,
            const Group& tables, RowClientOptions options);

  rpc::Client& frames() { return frames_; }
  int num_servers() const { return frames_.num_servers(); }
  // Returns the answer of each server.
  std::vector<JoinAnswer> Join(int64_t worker, double timeout_seconds);
  std::vector<WhereAnswer> Where(int64_t worker, const std::vector<int64_t>& incarnations, double timeout_seconds);
  // Makes a pull, which is not begun. Empty `incarnations`: for readers that do not train.
  std::unique_ptr<RowPull> NewPull(const Plan& plan, PullQuestion question, std::vector<int64_t> incarnations,
                                   std::span<float> rows);
  // `times`: one for all, or one for each input position of the plan.
  std::unique_ptr<RowPush> NewPush(const Plan& plan, PushOrder order, std::span<const float> gradients,
                                   std::span<const float> rates, std::span<const int64_t> times,
                                   std::span<const float> latest);
  // Lets servers discard plans that no push will use. Does not wait.
  void Drop(int64_t worker, std::vector<uint64_t> tickets);
  void Close() { frames_.Close(); }

 private:
  friend class RowPull;
  friend class RowPush;

  std::shared_ptr<rpc::Call> Ask(int server, uint16_t kind, std::string head, rpc::Deadline deadline);
  std::vector<int32_t> CountsOf(const Plan& plan) const;
  void GiveUp(const std::vector<std::shared_ptr<rpc::Call>>& calls);

  const std::vector<BucketRange> owned_;
  const Group& tables_;
  const RowClientOptions options_;
  rpc::Client frames_;
};

}  // namespace monolith::ps
