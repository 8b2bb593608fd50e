#include "ps/row_client.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/half.h"
#include "rpc/message.h"

namespace monolith::ps {
namespace {

template <typename T>
std::span<const uint8_t> BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}
template <typename T>
std::span<const uint8_t> BytesOf(const std::vector<T>& values) {
  return BytesOf(std::span<const T>(values));
}
template <typename T>
std::span<uint8_t> WritableBytesOf(std::span<T> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size_bytes()};
}

template <typename T>
std::span<const T> Slice(const std::vector<T>& values, int64_t first, int64_t count) {
  return values.empty() ? std::span<const T>() : std::span<const T>(values).subspan(first, count);
}

// Converts to a 16-bit float; finite values stay finite.
uint16_t ToHalf(float value) {
  constexpr float kLargest = 65504.0f;
  return FloatToHalf(value > kLargest && value <= std::numeric_limits<float>::max()     ? kLargest
                     : value < -kLargest && value >= -std::numeric_limits<float>::max() ? -kLargest
                                                                                        : value);
}

void RequireSize(const char* what, size_t got, int64_t expected) {
  if (static_cast<int64_t>(got) == expected) return;
  throw Error(Code::kInvalidArgument,
              std::string(what) + ": expected " + std::to_string(expected) + " floats, got " + std::to_string(got));
}

bool AreDone(const std::vector<std::shared_ptr<rpc::Call>>& calls) {
  return std::all_of(calls.begin(), calls.end(), [](const auto& call) { return call->is_done(); });
}

bool AreDoneBy(const std::vector<std::shared_ptr<rpc::Call>>& calls, rpc::Deadline deadline) {
  return std::all_of(calls.begin(), calls.end(), [&](const auto& call) { return call->WaitUntil(deadline); });
}

IdSizes SizesOf(const PlanSlice& slice, bool has_counts) {
  return {static_cast<uint32_t>(slice.cells.size()), slice.keys.size(), has_counts};
}

}  // namespace

RowPull::RowPull(RowClient& client, const Plan& plan, PullQuestion question, std::vector<int64_t> incarnations,
                 std::span<float> rows)
    : client_(client),
      plan_(plan, client.tables_.DimsOf(plan), client.owned_),
      question_(std::move(question)),
      incarnations_(std::move(incarnations)),
      rows_(rows) {
  RequireSize("rows", rows.size(), plan_.num_values());
  if (question_.ticket != kNoTicket) counts_ = client.CountsOf(plan);
  if (client.options_.half) halves_.resize(rows.size());
}

RowPull::~RowPull() { client_.GiveUp(calls_); }

void RowPull::Begin(double timeout_seconds) {
  client_.GiveUp(std::exchange(calls_, {}));
  const rpc::Deadline deadline = rpc::InSeconds(timeout_seconds);
  for (int server = 0; server < client_.num_servers(); ++server) {
    const PlanSlice& slice = plan_.at(server);
    PullQuestion question = question_;
    question.incarnation = incarnations_.empty() ? 0 : incarnations_[static_cast<size_t>(server)];
    question.half = client_.options_.half;
    question.ids = SizesOf(slice, !counts_.empty());
    const auto counts = Slice(counts_, slice.first_key, static_cast<int64_t>(slice.keys.size()));
    const std::span<uint8_t> place =
        question.half
            ? WritableBytesOf(std::span(halves_).subspan(slice.first_value, static_cast<size_t>(slice.num_values)))
            : WritableBytesOf(
                  rows_.subspan(static_cast<size_t>(slice.first_value), static_cast<size_t>(slice.num_values)));
    calls_.push_back(client_.frames_.Begin(
        server, {kPull, 0, Encode(question), {BytesOf(slice.keys), BytesOf(slice.cells), BytesOf(counts)}, nullptr},
        place, deadline));
  }
}

int64_t RowPull::ElementBytes() const { return client_.options_.half ? sizeof(uint16_t) : sizeof(float); }

bool RowPull::is_done() const { return AreDone(calls_); }
bool RowPull::WaitFor(double seconds) const { return AreDoneBy(calls_, rpc::InSeconds(seconds)); }

RowPull::Result RowPull::Finish() {
  Result result{false, std::numeric_limits<int64_t>::max(), 0};
  int server = 0;
  for (const auto& call : calls_) {
    const rpc::Frame& frame = call->Wait();
    const PullAnswer answer = DecodePullAnswer(frame.head);
    const int64_t expected = answer.is_lacking ? 0 : plan_.at(server).num_values * ElementBytes();
    if (static_cast<int64_t>(frame.body.size()) != expected)
      throw Error(Code::kDataLoss, "server " + std::to_string(server) + ": the rows have the wrong size");
    ++server;
    result.is_lacking |= answer.is_lacking;
    result.seen = std::min(result.seen, answer.seen);
    result.newest_time = std::max(result.newest_time, answer.newest_time);
  }
  calls_.clear();
  if (!result.is_lacking) {
    for (size_t i = 0; i < halves_.size(); ++i) rows_[i] = HalfToFloat(halves_[i]);
  }
  return result;
}

RowPush::RowPush(RowClient& client, const Plan& plan, PushOrder order, std::span<const float> gradients,
                 std::span<const float> rates, std::span<const int64_t> times, std::span<const float> latest)
    : client_(client),
      plan_(plan, client.tables_.DimsOf(plan), client.owned_),
      order_(std::move(order)),
      counts_(client.CountsOf(plan)),
      rates_(rates.begin(), rates.end()),
      times_(NewestTimes(plan, times)),
      newest_time_(plan.num_unique() == 0 ? 0 : *std::max_element(times_.begin(), times_.end())),
      gradients_(gradients),
      latest_(latest) {
  RequireSize("gradients", gradients.size(), plan_.num_values());
  if (!latest.empty()) RequireSize("latest", latest.size(), plan_.num_values());
  if (client.options_.half) {
    halves_.resize(gradients.size());
    for (size_t i = 0; i < gradients.size(); ++i) halves_[i] = ToHalf(gradients[i]);
  }
}

RowPush::~RowPush() { client_.GiveUp(calls_); }

void RowPush::Begin(double timeout_seconds) {
  const rpc::Deadline deadline = rpc::InSeconds(timeout_seconds);
  calls_.resize(static_cast<size_t>(client_.num_servers()));
  for (int server = 0; server < client_.num_servers(); ++server) Ask(server, order_.ticket == kNoTicket, deadline);
}

void RowPush::Ask(int server, bool with_ids, rpc::Deadline deadline) {
  const PlanSlice& slice = plan_.at(server);
  const auto num_keys = static_cast<int64_t>(slice.keys.size());
  const auto first = static_cast<size_t>(slice.first_value), count = static_cast<size_t>(slice.num_values);
  PushQuestion question;
  question.push = order_.push;
  question.push.incarnation = order_.incarnations[static_cast<size_t>(server)];
  if (!order_.joined_behind.empty()) {
    const int64_t had = order_.joined_behind[static_cast<size_t>(server)];
    if (question.push.previous < had && had < question.push.first_seq) question.push.previous = had;
  }
  question.step = order_.step;
  question.scale = order_.scale;
  question.known_finite = order_.known_finite;
  question.half = client_.options_.half;
  question.has_latest = !latest_.empty();
  question.num_rates = static_cast<uint32_t>(rates_.size());
  question.num_values = count;
  question.ticket = with_ids ? kNoTicket : order_.ticket;
  question.dropped = order_.dropped;
  std::vector<std::span<const uint8_t>> body;
  if (with_ids) {
    question.ids = SizesOf(slice, !counts_.empty());
    body = {BytesOf(slice.keys), BytesOf(slice.cells), BytesOf(Slice(counts_, slice.first_key, num_keys))};
  }
  const std::span<const uint32_t> times =
      times_.size() == 1 ? std::span<const uint32_t>(times_) : Slice(times_, slice.first_key, num_keys);
  question.num_times = times.size();
  question.newest_time = newest_time_;
  question.known_time = order_.known_time;
  body.push_back(BytesOf(rates_));
  body.push_back(BytesOf(times));
  if (question.has_latest) body.push_back(BytesOf(latest_.subspan(first, count)));
  body.push_back(question.half ? BytesOf(Slice(halves_, slice.first_value, slice.num_values))
                               : BytesOf(gradients_.subspan(first, count)));
  calls_[static_cast<size_t>(server)] =
      client_.frames_.Begin(server, {kPush, 0, Encode(question), std::move(body), nullptr}, {}, deadline);
}

bool RowPush::is_done() const { return AreDone(calls_); }
bool RowPush::WaitFor(double seconds) const { return AreDoneBy(calls_, rpc::InSeconds(seconds)); }

PushAnswer RowPush::AnswerOf(int server) { return DecodePushAnswer(calls_[static_cast<size_t>(server)]->Wait().head); }

RowPush::Result RowPush::Finish(double timeout_seconds) {
  Result result;
  result.applied.duplicate = true;
  for (int server = 0; server < client_.num_servers(); ++server) {
    PushAnswer answer = AnswerOf(server);
    // The server had no plan for this push, or lacks an earlier push for which it had no plan.
    for (int again = 0; answer.outcome != Outcome::kApplied && again < 2; ++again) {
      Ask(server, true, rpc::InSeconds(timeout_seconds));
      answer = AnswerOf(server);
    }
    if (answer.outcome == Outcome::kIsLacking) {
      RefuseGap(order_.push, answer.last);
    }
    result.applied.updated += answer.applied.updated;
    result.applied.inserted += answer.applied.inserted;
    result.applied.filtered += answer.applied.filtered;
    result.applied.skipped += answer.applied.skipped;
    result.applied.duplicate &= answer.applied.duplicate;
    result.newest_time = std::max(result.newest_time, answer.newest_time);
    if (server == 0) result.steps_of_others = answer.steps_of_others;
  }
  calls_.clear();
  return result;
}

RowClient::RowClient(std::vector<rpc::Address> servers, std::vector<std::string> words, std::vector<BucketRange> owned,
                     const Group& tables, RowClientOptions options)
    : owned_(std::move(owned)),
      tables_(tables),
      options_(std::move(options)),
      frames_(std::move(servers), std::move(words), options_.frames) {
  RequireAllBuckets(owned_);
  if (static_cast<int>(owned_.size()) != num_servers())
    throw Error(Code::kInvalidArgument, "expected the buckets of " + std::to_string(num_servers()) + " servers, got " +
                                            std::to_string(owned_.size()));
}

std::vector<JoinAnswer> RowClient::Join(int64_t worker, double timeout_seconds) {
  std::vector<std::shared_ptr<rpc::Call>> calls;
  const rpc::Deadline deadline = rpc::InSeconds(timeout_seconds);
  for (int server = 0; server < num_servers(); ++server)
    calls.push_back(Ask(server, kJoin, Encode(WhereQuestion{worker, 0}), deadline));
  std::vector<JoinAnswer> answers;
  for (const auto& call : calls) answers.push_back(DecodeJoinAnswer(call->Wait().head));
  return answers;
}

std::vector<WhereAnswer> RowClient::Where(int64_t worker, const std::vector<int64_t>& incarnations,
                                          double timeout_seconds) {
  std::vector<std::shared_ptr<rpc::Call>> calls;
  const rpc::Deadline deadline = rpc::InSeconds(timeout_seconds);
  for (int server = 0; server < num_servers(); ++server) {
    const int64_t incarnation = incarnations.empty() ? 0 : incarnations[static_cast<size_t>(server)];
    calls.push_back(Ask(server, kWhere, Encode(WhereQuestion{worker, incarnation}), deadline));
  }
  std::vector<WhereAnswer> answers;
  for (const auto& call : calls) answers.push_back(DecodeWhereAnswer(call->Wait().head));
  return answers;
}

std::unique_ptr<RowPull> RowClient::NewPull(const Plan& plan, PullQuestion question, std::vector<int64_t> incarnations,
                                            std::span<float> rows) {
  return std::unique_ptr<RowPull>(new RowPull(*this, plan, std::move(question), std::move(incarnations), rows));
}

std::unique_ptr<RowPush> RowClient::NewPush(const Plan& plan, PushOrder order, std::span<const float> gradients,
                                            std::span<const float> rates, std::span<const int64_t> times,
                                            std::span<const float> latest) {
  return std::unique_ptr<RowPush>(new RowPush(*this, plan, std::move(order), gradients, rates, times, latest));
}

void RowClient::Drop(int64_t worker, std::vector<uint64_t> tickets) {
  constexpr double kSeconds = 60.0;  // no caller waits for the answer
  const std::string head = Encode(DropQuestion{worker, std::move(tickets)});
  for (int server = 0; server < num_servers(); ++server) Ask(server, kDrop, head, rpc::InSeconds(kSeconds));
}

std::shared_ptr<rpc::Call> RowClient::Ask(int server, uint16_t kind, std::string head, rpc::Deadline deadline) {
  return frames_.Begin(server, {kind, 0, std::move(head), {}, nullptr}, {}, deadline);
}

std::vector<int32_t> RowClient::CountsOf(const Plan& plan) const {
  if (!options_.with_counts) return {};
  std::vector<int32_t> counts(static_cast<size_t>(plan.num_unique()));
  for (int64_t place = 0; place < plan.num_unique(); ++place) counts[place] = plan.CountOf(place);
  return counts;
}

void RowClient::GiveUp(const std::vector<std::shared_ptr<rpc::Call>>& calls) {
  for (size_t server = 0; server < calls.size(); ++server) {
    if (calls[server] != nullptr) frames_.GiveUp(static_cast<int>(server), calls[server]);
  }
}

}  // namespace monolith::ps
