#include "rpc/channel.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "rpc/protocol.h"

namespace monolith::rpc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kGreetingCall = 0;

uint64_t BytesOf(const OutgoingFrame& frame) { return kHeaderBytes + frame.head.size() + frame.NumBodyBytes(); }

}  // namespace

Channel::Channel(int epoll, uint64_t event_id, Address address, std::string words, const ClientOptions& options,
                 OnEnd on_end, OnReply on_reply)
    : epoll_(epoll),
      event_id_(event_id),
      address_(std::move(address)),
      words_(std::move(words)),
      options_(options),
      on_end_(std::move(on_end)),
      on_reply_(std::move(on_reply)) {}

void Channel::Begin(std::shared_ptr<Call> call) {
  if (waiting_.empty() && broken_since_) broken_since_ = Clock::now();  // the timeout runs while a call waits
  waiting_.push_back(std::move(call));
  Attend(0);
}

void Channel::GiveUp(const std::shared_ptr<Call>& call) {
  const auto found = std::find(waiting_.begin(), waiting_.end(), call);
  if (found == waiting_.end()) return;  // it has already ended
  const bool was_sent = static_cast<size_t>(found - waiting_.begin()) < num_sent_;
  // Its question may be half sent, its answer half received: only a new connection discards it.
  if (was_sent) Disconnect();
  waiting_.erase(found);
  on_end_(BytesOf(call->question_));
  call->End(Error(Code::kDeadlineExceeded, Named("the call was cancelled")));
  Attend(0);
}

void Channel::Move(Address address, std::string words) {
  address_ = std::move(address);
  words_ = std::move(words);
  Disconnect();
  backoff_ = 0.0;
  retry_at_ = Deadline::min();
  broken_since_.reset();
  Attend(0);
}

void Channel::Attend(uint32_t events) {
  try {
    if (state_ == State::kConnecting && events != 0) Settle(events);
    if (state_ == State::kShaking) Shake();
    if (state_ == State::kIdle && !waiting_.empty() && Clock::now() >= retry_at_) Connect();
    if (state_ == State::kGreeting || state_ == State::kReady) ReceiveAll();
    if (state_ == State::kGreeting || state_ == State::kReady) SendAll();
  } catch (const Error& error) {  // invalid bytes, or another version: a retry does not help
    Fail(Error(error.code(), Named(error.what())));
  }
  EndLate();
  Watch();
}

Deadline Channel::next_look() const {
  Deadline next = Deadline::max();
  for (const auto& call : waiting_) next = std::min(next, call->deadline_);
  if (!waiting_.empty()) next = std::min(next, lost_at());
  if (state_ == State::kShaking) next = std::min(next, shaken_until_);
  return state_ == State::kIdle && !waiting_.empty() ? std::min(next, retry_at_) : next;
}

void Channel::Fail(const Error& error) {
  Disconnect();
  while (!waiting_.empty()) EndFirst(error);
}

void Channel::Connect() {
  try {
    stream_ = Stream(BeginConnect(address_, attempt_++), address_.tls, address_.host);
    state_ = State::kConnecting;
  } catch (const Error& error) {
    Break(error.what());
  }
}

void Channel::Settle(uint32_t events) {
  if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0) return;
  const std::string trouble = ConnectError(stream_.socket());
  if (!trouble.empty()) return Break("cannot be reached: " + trouble);
  if (!stream_.is_shaking()) return Greet();
  state_ = State::kShaking;
  shaken_until_ = InSeconds(options_.handshake_seconds);
}

void Channel::Shake() {
  const Transfer transfer = stream_.Shake();
  if (transfer.kind == Transfer::kMoved) return Greet();
  if (transfer.kind == Transfer::kBroken) return BreakStream();
  if (Clock::now() >= shaken_until_) {
    Break("TLS: no handshake in time; does the other side speak TLS, and is it up?");
  }
}

void Channel::Greet() {
  state_ = State::kGreeting;
  sender_.Add({kGreeting, kGreetingCall, EncodeGreeting({options_.token, words_}), {}, nullptr});
}

void Channel::SendAll() {
  if (state_ == State::kReady) {
    for (; num_sent_ < waiting_.size(); ++num_sent_) {
      const OutgoingFrame& question = waiting_[num_sent_]->question_;
      sender_.Add(question);
    }
  }
  if (sender_.Send(stream_) == FrameSender::State::kBroken) BreakStream();
}

void Channel::ReceiveAll() {
  for (;;) {
    const FrameReceiver::State state = receiver_.Receive(
        stream_, options_.limits, [this](const FrameHeader& header, const std::string&) { return PlaceOf(header); });
    if (state == FrameReceiver::State::kBroken) return BreakStream();
    if (state == FrameReceiver::State::kWaits) return;
    Frame frame = std::move(receiver_.frame());
    receiver_.Reset();
    TakeFrame(std::move(frame));
    if (state_ != State::kGreeting && state_ != State::kReady) return;
  }
}

std::span<uint8_t> Channel::PlaceOf(const FrameHeader& header) const {
  if (header.kind == kError || state_ != State::kReady || num_sent_ == 0) return {};
  const Call& call = *waiting_.front();
  if (call.place_.empty() || header.body_bytes == 0) return {};  // some answers give a reason for having no body
  if (call.place_.size() != header.body_bytes) {
    throw Error(Code::kDataLoss, "an answer of " + std::to_string(call.place_.size()) + " bytes was expected, got " +
                                     std::to_string(header.body_bytes));
  }
  return call.place_;
}

void Channel::TakeFrame(Frame frame) {
  if (state_ == State::kGreeting) {
    if (frame.header.kind == kError) throw DecodeError(frame.head);
    if (frame.header.kind != kGreeting) throw Error(Code::kDataLoss, "the greeting was not answered as one");
    state_ = State::kReady;
    backoff_ = 0.0;
    last_trouble_.clear();
    broken_since_.reset();
    return on_reply_(frame.head);
  }
  if (num_sent_ == 0 || frame.header.call != waiting_.front()->question_.call) {
    throw Error(Code::kDataLoss, "an answer arrived without a pending call");
  }
  if (frame.header.kind == kError) {
    const Error error = DecodeError(frame.head);
    return EndFirst(Error(error.code(), Named(error.what())));
  }
  EndFirst(std::move(frame));
}

void Channel::EndFirst(Frame answer) {
  const std::shared_ptr<Call> call = std::move(waiting_.front());
  waiting_.pop_front();
  --num_sent_;
  on_end_(BytesOf(call->question_));
  call->End(std::move(answer));
}

void Channel::EndFirst(const Error& error) {
  const std::shared_ptr<Call> call = std::move(waiting_.front());
  waiting_.pop_front();
  num_sent_ -= num_sent_ > 0;
  on_end_(BytesOf(call->question_));
  call->End(error);
}

Deadline Channel::lost_at() const {
  if (!broken_since_ || !std::isfinite(options_.lost_after_seconds)) return Deadline::max();
  return *broken_since_ +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.lost_after_seconds));
}

void Channel::EndLate() {
  const Deadline now = Clock::now();
  const bool is_lost = lost_at() <= now;
  const auto is_late = [&](const std::shared_ptr<Call>& call) { return is_lost || call->deadline_ <= now; };
  if (std::none_of(waiting_.begin(), waiting_.end(), is_late)) return;
  const Error error = last_trouble_.empty() ? Error(Code::kDeadlineExceeded, Named("no answer came in time"))
                                            : Error(Code::kUnreachable, Named(last_trouble_));
  for (size_t place = 0; place < waiting_.size();) {
    if (!is_late(waiting_[place])) {
      ++place;
      continue;
    }
    if (place < num_sent_) Disconnect();  // as in GiveUp()
    const std::shared_ptr<Call> call = waiting_[place];
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(place));
    on_end_(BytesOf(call->question_));
    call->End(error);
  }
  if (is_lost) broken_since_ = now;  // the next calls get the full timeout
}

void Channel::Break(const std::string& reason) {
  last_trouble_ = reason;
  if (!broken_since_) broken_since_ = Clock::now();
  Disconnect();
  backoff_ = std::clamp(2 * backoff_, options_.first_backoff_seconds, options_.last_backoff_seconds);
  retry_at_ = InSeconds(backoff_);
}

void Channel::BreakStream() {
  const std::string trouble = stream_.Trouble();
  Break(trouble.empty() ? "the connection broke" : trouble);
}

void Channel::Disconnect() {
  if (watched_ != 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, stream_.socket().descriptor(), nullptr);
  watched_ = 0;
  stream_.SayGoodbye();
  stream_.Close();
  receiver_ = FrameReceiver();
  sender_.Clear();
  num_sent_ = 0;
  state_ = State::kIdle;
}

void Channel::Watch() {
  if (state_ == State::kIdle) return;
  const uint32_t wanted =
      state_ == State::kConnecting ? EPOLLOUT : stream_.EventsToReceive() | (sender_.empty() ? 0u : EPOLLOUT);
  if (wanted == watched_) return;
  epoll_event event{wanted, {.u64 = event_id_}};
  epoll_ctl(epoll_, watched_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, stream_.socket().descriptor(), &event);
  watched_ = wanted;
}

}  // namespace monolith::rpc
