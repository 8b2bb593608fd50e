// The messages between a worker and an owner of rows: the heads of their frames, and the layout of the bodies.
//
// Pure values; docs/formats/frames.md has the grammar. Decoders throw kDataLoss for an invalid head, kInvalidArgument
// for a body whose size does not match its head.
//
//   call    body of the question                                     body of the answer
//   pull    keys i64 [U], cells u32 [C][2], counts i32 [U] or [0]      rows f32 or f16, in plan order
//   push    the same, if the ids are sent; rates f32 [S],              -
//           times u32 [1 or U], latest f32, gradients f32 or f16
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "table/distinct_ids.h"
#include "table/group.h"
#include "table/worker_clock.h"

namespace monolith::ps {

inline constexpr uint16_t kJoin = 16, kPull = 17, kPush = 18, kDrop = 19, kWhere = 20;
inline constexpr int64_t kNobody = -1;    // a reader that is no worker
inline constexpr uint64_t kNoTicket = 0;  // no plan is kept for a push

// Sizes of the distinct ids in a body.
struct IdSizes {
  uint32_t num_cells = 0;
  uint64_t num_keys = 0;
  bool has_counts = false;
};

struct PullQuestion {
  int64_t worker = kNobody;
  int64_t incarnation = 0;  // 0: not for training, any reader may pull
  int64_t after = kNothingApplied;
  int64_t step = 0;
  uint64_t ticket = kNoTicket;  // under which the owner keeps the plan for the push
  bool half = false;
  IdSizes ids;
};
struct PullAnswer {
  bool is_lacking = false;  // `after` has not been applied: nothing was read
  int64_t seen = kNothingApplied;
  int64_t newest_time = 0;
};

struct PushQuestion {
  Push push;
  int64_t step = 0;
  float scale = 1.0f;
  bool known_finite = false;
  bool half = false;
  bool has_latest = false;
  uint32_t num_rates = 0;
  uint64_t num_times = 0;       // 1, or one for each id
  uint32_t newest_time = 0;     // of the ids at all owners
  uint32_t known_time = 0;      // newest at any owner before this push, as far as the client has learned from answers
  uint64_t num_values = 0;      // floats of the gradients
  uint64_t ticket = kNoTicket;  // of the plan that a pull left; none: the ids are in the body
  IdSizes ids;
  std::vector<uint64_t> dropped;  // tickets of pulls whose gradients are part of this push
};
enum class Outcome : uint8_t { kApplied = 0, kIsLacking = 1, kPlanIsGone = 2 };
struct PushAnswer {
  Outcome outcome = Outcome::kApplied;
  Applied applied;
  int64_t last = kNothingApplied;  // last batch of this worker that the owner has
  int64_t newest_time = 0;
  int64_t steps_of_others = 0;  // batches that the owner has of all other workers
};

struct DropQuestion {
  int64_t worker = kNobody;
  std::vector<uint64_t> tickets;
};
struct WhereQuestion {
  int64_t worker = kNobody;
  int64_t incarnation = 0;  // 0: any
};
struct WhereAnswer {
  int64_t last = kNothingApplied;
  int64_t newest_time = 0;
};
struct JoinAnswer {
  WorkerClocks::Joined joined;
  int64_t newest_time = 0;
  int64_t steps_of_others = 0;
};

std::string Encode(const PullQuestion& message);
std::string Encode(const PullAnswer& message);
std::string Encode(const PushQuestion& message);
std::string Encode(const PushAnswer& message);
std::string Encode(const DropQuestion& message);
std::string Encode(const WhereQuestion& message);
std::string Encode(const WhereAnswer& message);
std::string Encode(const JoinAnswer& message);

PullQuestion DecodePullQuestion(std::string_view head);
PullAnswer DecodePullAnswer(std::string_view head);
PushQuestion DecodePushQuestion(std::string_view head);
PushAnswer DecodePushAnswer(std::string_view head);
DropQuestion DecodeDropQuestion(std::string_view head);
WhereQuestion DecodeWhereQuestion(std::string_view head);
WhereAnswer DecodeWhereAnswer(std::string_view head);
JoinAnswer DecodeJoinAnswer(std::string_view head);

// Views of the parts of a body. A part may be empty.
struct PushBody {
  DistinctIds ids;
  std::span<const float> rates;
  std::span<const uint32_t> times;
  std::span<const uint8_t> gradients;  // f32 or f16
  std::span<const float> latest;
};
DistinctIds PullBodyOf(const PullQuestion& question, std::span<const uint8_t> body);
PushBody PushBodyOf(const PushQuestion& question, std::span<const uint8_t> body);

}  // namespace monolith::ps
