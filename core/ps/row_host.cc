#include "ps/row_host.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "memory/buffer.h"
#include "rpc/message.h"

namespace monolith::ps {
namespace {

// An answer with an array that it owns.
template <typename T>
rpc::Answer AnswerOf(std::string head, Buffer<T> values) {
  auto owner = std::make_shared<Buffer<T>>(std::move(values));
  const auto bytes = reinterpret_cast<const uint8_t*>(owner->data());
  return {std::move(head), {{bytes, owner->size() * sizeof(T)}}, owner};
}

Buffer<uint16_t> ToHalves(const Buffer<float>& values) {
  Buffer<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) halves[i] = FloatToHalf(values[i]);
  return halves;
}

Buffer<float> FromHalves(std::span<const uint8_t> bytes) {
  const auto* halves = reinterpret_cast<const uint16_t*>(bytes.data());
  Buffer<float> values(bytes.size() / sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) values[i] = HalfToFloat(halves[i]);
  return values;
}

// Returns the times per distinct id, in the order of the plan's input.
Buffer<int64_t> TimesOf(const Plan& plan, std::span<const uint32_t> times) {
  if (times.size() != 1 && static_cast<int64_t>(times.size()) != plan.num_unique()) {
    throw Error(Code::kInvalidArgument, "push: expected one time, or that of each of " +
                                            std::to_string(plan.num_unique()) + " ids, got " +
                                            std::to_string(times.size()));
  }
  Buffer<int64_t> found(times.size());
  if (times.size() == 1) {
    found[0] = times[0];
  } else {
    for (int64_t place = 0; place < plan.num_unique(); ++place) found[plan.order[place]] = times[place];
  }
  return found;
}

}  // namespace

// A call in progress.
class RowHost::Visit {
 public:
  explicit Visit(RowHost& host) : host_(host), alone_(Enter(host) > 0) {}
  ~Visit() {
    if (host_.inside_.fetch_sub(1) != 1) return;
    MutexLock lock(host_.mutex_);
    host_.left_.NotifyAll();
  }

 private:
  // Returns the number of calls that were in progress before.
  static int Enter(RowHost& host) {
    MutexLock lock(host.mutex_);
    if (host.is_closed_) throw Error(Code::kFailedPrecondition, "the server does not keep these rows any more");
    return host.inside_.fetch_add(1);
  }

  RowHost& host_;
  const AloneScope alone_;
};

RowHost::RowHost(Group& group, BucketRange buckets, std::string agreement, std::function<void()> on_open,
                 uint64_t kept_bytes)
    : group_(group), buckets_(buckets), agreement_(std::move(agreement)), kept_(kept_bytes), gate_(std::move(on_open)) {
  if (buckets.begin > buckets.end || buckets.end > kNumBuckets)
    throw Error(Code::kInvalidArgument, "buckets must be a range inside [0, 1024)");
}

rpc::Answer RowHost::Call(uint16_t kind, const std::string& head, std::span<const uint8_t> body) {
  const Visit visit(*this);
  switch (kind) {
    case kJoin: return Join(head);
    case kPull: return Pull(head, body);
    case kPush: return Push(head, body);
    case kDrop: return Drop(head);
    case kWhere: return Where(head);
    default: throw Error(Code::kInvalidArgument, "rows: there is no call " + std::to_string(kind));
  }
}

void RowHost::Close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  while (inside_.load() != 0) left_.Wait(mutex_);
}

rpc::Answer RowHost::Join(const std::string& head) {
  const WhereQuestion question = DecodeWhereQuestion(head);
  if (question.worker < 0) throw Error(Code::kInvalidArgument, "join: a worker's number must be >= 0");
  const WorkerClocks::Joined joined = group_.Join(question.worker);
  const JoinAnswer answer{joined, group_.NewestTime(-1), group_.StepsOfOthers(question.worker)};
  kept_.DropAllOf(question.worker);
  return {Encode(answer), {}, nullptr};
}

rpc::Answer RowHost::Pull(const std::string& head, std::span<const uint8_t> body) {
  const PullQuestion question = DecodePullQuestion(head);
  if (question.incarnation != 0) group_.RequireCurrent(question.worker, question.incarnation);
  PullAnswer answer;
  // Read before the rows: a batch that arrives meanwhile may be in only some of them.
  answer.seen = question.worker == kNobody ? kNothingApplied : group_.LastApplied(question.worker);
  answer.newest_time = group_.NewestTime(-1);
  answer.is_lacking = question.after > answer.seen;
  if (answer.is_lacking) return {Encode(answer), {}, nullptr};
  auto plan = std::make_shared<Plan>(group_.PlanOf(PullBodyOf(question, body), buckets_));
  Buffer<float> rows(static_cast<size_t>(group_.NumValues(*plan)));
  group_.Read(*plan, {rows.data(), rows.size()}, question.step);
  if (question.ticket != kNoTicket) kept_.Keep(question.worker, question.ticket, std::move(plan));
  return question.half ? AnswerOf(Encode(answer), ToHalves(rows)) : AnswerOf(Encode(answer), std::move(rows));
}

rpc::Answer RowHost::Push(const std::string& head, std::span<const uint8_t> body) {
  const PushQuestion question = DecodePushQuestion(head);
  const BatchStamp& stamp = question.push.stamp;
  if (!gate_.Enter(stamp.worker, stamp.seq, group_.LastApplied(stamp.worker))) throw rpc::NotNow();
  struct Leaving {
    PushGate& gate;
    ~Leaving() { gate.Leave(); }
  } leaving{gate_};
  PushAnswer answer;
  answer.outcome = Apply(question, body, &answer.applied);
  if (answer.outcome == Outcome::kApplied) kept_.Drop(stamp.worker, question.dropped);
  answer.last = group_.LastApplied(stamp.worker);
  answer.newest_time = group_.NewestTime(-1);
  answer.steps_of_others = group_.StepsOfOthers(stamp.worker);
  return {Encode(answer), {}, nullptr};
}

Outcome RowHost::Apply(const PushQuestion& question, std::span<const uint8_t> body, Applied* applied) {
  const int64_t worker = question.push.stamp.worker;
  group_.RequireCurrent(worker, question.push.incarnation);
  if (question.push.previous > group_.LastApplied(worker)) return Outcome::kIsLacking;
  if (group_.IsDuplicate({&question.push, 1})) {
    kept_.Drop(worker, {question.ticket});
    applied->duplicate = true;
    return Outcome::kApplied;
  }
  const PushBody parts = PushBodyOf(question, body);
  if (question.ticket == kNoTicket) {
    *applied = ApplyTo(group_.PlanOf(parts.ids, buckets_), question, parts);
    return Outcome::kApplied;
  }
  const std::shared_ptr<const Plan> kept = kept_.Take(worker, question.ticket);
  if (kept == nullptr) return Outcome::kPlanIsGone;
  *applied = ApplyTo(*kept, question, parts);
  return Outcome::kApplied;
}

Applied RowHost::ApplyTo(const Plan& plan, const PushQuestion& question, const PushBody& body) {
  const Buffer<int64_t> times = TimesOf(plan, body.times);
  Buffer<float> widened;
  std::span<const float> gradients(reinterpret_cast<const float*>(body.gradients.data()), question.num_values);
  if (question.half) {
    widened = FromHalves(body.gradients);
    gradients = {widened.data(), widened.size()};
  }
  const Update update{.gradients = gradients,
                      .per_unique = true,
                      .gradient_rows = {},
                      .gradient_scales = {},
                      .learning_rates = body.rates,
                      .step = question.step,
                      .times = {times.data(), times.size()},
                      .newest_time = question.newest_time,
                      .scale = question.scale,
                      .known_finite = question.known_finite,
                      .latest = body.latest};
  // Rows expire by the same clock at every owner, even if a call to another owner advanced it.
  group_.RaiseNewestTime(-1, question.known_time);
  return group_.Apply(plan, update, {&question.push, 1});
}

rpc::Answer RowHost::Drop(const std::string& head) {
  const DropQuestion question = DecodeDropQuestion(head);
  kept_.Drop(question.worker, question.tickets);
  return {};
}

rpc::Answer RowHost::Where(const std::string& head) {
  const WhereQuestion question = DecodeWhereQuestion(head);
  if (question.incarnation != 0) group_.RequireCurrent(question.worker, question.incarnation);
  const WhereAnswer answer{group_.LastApplied(question.worker), group_.NewestTime(-1)};
  return {Encode(answer), {}, nullptr};
}

}  // namespace monolith::ps
