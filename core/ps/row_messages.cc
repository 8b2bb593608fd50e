#include "ps/row_messages.h"

#include <string>

#include "base/error.h"
#include "rpc/message.h"

namespace monolith::ps {
namespace {

using rpc::MessageReader;
using rpc::MessageWriter;

void WriteSizes(MessageWriter& writer, const IdSizes& sizes) {
  writer.Number(sizes.num_cells).Number(sizes.num_keys).Number(static_cast<uint8_t>(sizes.has_counts));
}

IdSizes ReadSizes(MessageReader& reader) {
  IdSizes sizes;
  sizes.num_cells = reader.Number<uint32_t>();
  sizes.num_keys = reader.Number<uint64_t>();
  sizes.has_counts = reader.Number<uint8_t>() != 0;
  return sizes;
}

void WriteTickets(MessageWriter& writer, const std::vector<uint64_t>& tickets) {
  writer.Number(static_cast<uint32_t>(tickets.size()));
  for (const uint64_t ticket : tickets) writer.Number(ticket);
}

std::vector<uint64_t> ReadTickets(MessageReader& reader) {
  std::vector<uint64_t> tickets;
  for (auto left = reader.Number<uint32_t>(); left > 0; --left) tickets.push_back(reader.Number<uint64_t>());
  return tickets;
}

void WriteStamp(MessageWriter& writer, const BatchStamp& stamp) {
  writer.Number(stamp.worker).Number(stamp.seq).Text(stamp.position).Number(stamp.event_time_ms);
}

BatchStamp ReadStamp(MessageReader& reader) {
  BatchStamp stamp;
  stamp.worker = reader.Number<int64_t>();
  stamp.seq = reader.Number<int64_t>();
  stamp.position = reader.Text();
  stamp.event_time_ms = reader.Number<int64_t>();
  return stamp;
}

// Reads the parts of a body, one after another.
class BodyReader {
 public:
  explicit BodyReader(std::span<const uint8_t> body) : rest_(body) {}

  template <typename T>
  std::span<const T> Next(uint64_t count) {
    if (count > rest_.size() / sizeof(T)) {
      throw Error(Code::kInvalidArgument, "message: a body of " + std::to_string(rest_.size()) + " bytes more has no " +
                                              std::to_string(count) + " elements of " + std::to_string(sizeof(T)));
    }
    const std::span<const T> part(reinterpret_cast<const T*>(rest_.data()), count);
    rest_ = rest_.subspan(count * sizeof(T));
    return part;
  }
  DistinctIds Ids(const IdSizes& sizes) {
    DistinctIds ids;
    ids.keys = Next<int64_t>(sizes.num_keys);
    ids.cells = Next<CellCount>(sizes.num_cells);
    ids.counts = Next<int32_t>(sizes.has_counts ? sizes.num_keys : 0);
    return ids;
  }
  void End() const {
    if (!rest_.empty())
      throw Error(Code::kInvalidArgument,
                  "message: " + std::to_string(rest_.size()) + " bytes of its body are left over");
  }

 private:
  std::span<const uint8_t> rest_;
};

}  // namespace

std::string Encode(const PullQuestion& message) {
  MessageWriter writer;
  writer.Number(message.worker).Number(message.incarnation).Number(message.after).Number(message.step);
  writer.Number(message.ticket).Number(static_cast<uint8_t>(message.half));
  WriteSizes(writer, message.ids);
  return writer.Take();
}

PullQuestion DecodePullQuestion(std::string_view head) {
  MessageReader reader(head);
  PullQuestion message;
  message.worker = reader.Number<int64_t>();
  message.incarnation = reader.Number<int64_t>();
  message.after = reader.Number<int64_t>();
  message.step = reader.Number<int64_t>();
  message.ticket = reader.Number<uint64_t>();
  message.half = reader.Number<uint8_t>() != 0;
  message.ids = ReadSizes(reader);
  reader.End();
  return message;
}

std::string Encode(const PullAnswer& message) {
  MessageWriter writer;
  return writer.Number(static_cast<uint8_t>(message.is_lacking))
      .Number(message.seen)
      .Number(message.newest_time)
      .Take();
}

PullAnswer DecodePullAnswer(std::string_view head) {
  MessageReader reader(head);
  PullAnswer message;
  message.is_lacking = reader.Number<uint8_t>() != 0;
  message.seen = reader.Number<int64_t>();
  message.newest_time = reader.Number<int64_t>();
  reader.End();
  return message;
}

std::string Encode(const PushQuestion& message) {
  MessageWriter writer;
  writer.Number(message.push.incarnation).Number(message.push.first_seq).Number(message.push.previous);
  WriteStamp(writer, message.push.stamp);
  writer.Number(message.step).Number(message.scale).Number(static_cast<uint8_t>(message.known_finite));
  writer.Number(static_cast<uint8_t>(message.half)).Number(static_cast<uint8_t>(message.has_latest));
  writer.Number(message.num_rates).Number(message.num_times).Number(message.newest_time);
  writer.Number(message.known_time).Number(message.num_values).Number(message.ticket);
  WriteSizes(writer, message.ids);
  WriteTickets(writer, message.dropped);
  return writer.Take();
}

PushQuestion DecodePushQuestion(std::string_view head) {
  MessageReader reader(head);
  PushQuestion message;
  message.push.incarnation = reader.Number<int64_t>();
  message.push.first_seq = reader.Number<int64_t>();
  message.push.previous = reader.Number<int64_t>();
  message.push.stamp = ReadStamp(reader);
  message.step = reader.Number<int64_t>();
  message.scale = reader.Number<float>();
  message.known_finite = reader.Number<uint8_t>() != 0;
  message.half = reader.Number<uint8_t>() != 0;
  message.has_latest = reader.Number<uint8_t>() != 0;
  message.num_rates = reader.Number<uint32_t>();
  message.num_times = reader.Number<uint64_t>();
  message.newest_time = reader.Number<uint32_t>();
  message.known_time = reader.Number<uint32_t>();
  message.num_values = reader.Number<uint64_t>();
  message.ticket = reader.Number<uint64_t>();
  message.ids = ReadSizes(reader);
  message.dropped = ReadTickets(reader);
  reader.End();
  return message;
}

std::string Encode(const PushAnswer& message) {
  MessageWriter writer;
  writer.Number(static_cast<uint8_t>(message.outcome)).Number(message.last).Number(message.newest_time);
  writer.Number(message.steps_of_others);
  const Applied& applied = message.applied;
  writer.Number(applied.updated).Number(applied.inserted).Number(applied.filtered).Number(applied.skipped);
  return writer.Number(static_cast<uint8_t>(applied.duplicate)).Take();
}

PushAnswer DecodePushAnswer(std::string_view head) {
  MessageReader reader(head);
  PushAnswer message;
  message.outcome = static_cast<Outcome>(reader.Number<uint8_t>());
  message.last = reader.Number<int64_t>();
  message.newest_time = reader.Number<int64_t>();
  message.steps_of_others = reader.Number<int64_t>();
  message.applied.updated = reader.Number<int64_t>();
  message.applied.inserted = reader.Number<int64_t>();
  message.applied.filtered = reader.Number<int64_t>();
  message.applied.skipped = reader.Number<int64_t>();
  message.applied.duplicate = reader.Number<uint8_t>() != 0;
  reader.End();
  return message;
}

std::string Encode(const DropQuestion& message) {
  MessageWriter writer;
  writer.Number(message.worker);
  WriteTickets(writer, message.tickets);
  return writer.Take();
}

DropQuestion DecodeDropQuestion(std::string_view head) {
  MessageReader reader(head);
  DropQuestion message;
  message.worker = reader.Number<int64_t>();
  message.tickets = ReadTickets(reader);
  reader.End();
  return message;
}

std::string Encode(const WhereQuestion& message) {
  MessageWriter writer;
  return writer.Number(message.worker).Number(message.incarnation).Take();
}

WhereQuestion DecodeWhereQuestion(std::string_view head) {
  MessageReader reader(head);
  WhereQuestion message;
  message.worker = reader.Number<int64_t>();
  message.incarnation = reader.Number<int64_t>();
  reader.End();
  return message;
}

std::string Encode(const WhereAnswer& message) {
  MessageWriter writer;
  return writer.Number(message.last).Number(message.newest_time).Take();
}

WhereAnswer DecodeWhereAnswer(std::string_view head) {
  MessageReader reader(head);
  WhereAnswer message;
  message.last = reader.Number<int64_t>();
  message.newest_time = reader.Number<int64_t>();
  reader.End();
  return message;
}

std::string Encode(const JoinAnswer& message) {
  MessageWriter writer;
  writer.Number(message.joined.incarnation).Number(message.newest_time).Number(message.steps_of_others);
  writer.Number(static_cast<uint8_t>(message.joined.last.has_value()));
  if (message.joined.last) WriteStamp(writer, *message.joined.last);
  return writer.Take();
}

JoinAnswer DecodeJoinAnswer(std::string_view head) {
  MessageReader reader(head);
  JoinAnswer message;
  message.joined.incarnation = reader.Number<int64_t>();
  message.newest_time = reader.Number<int64_t>();
  message.steps_of_others = reader.Number<int64_t>();
  if (reader.Number<uint8_t>() != 0) message.joined.last = ReadStamp(reader);
  reader.End();
  return message;
}

DistinctIds PullBodyOf(const PullQuestion& question, std::span<const uint8_t> body) {
  BodyReader reader(body);
  const DistinctIds ids = reader.Ids(question.ids);
  reader.End();
  return ids;
}

PushBody PushBodyOf(const PushQuestion& question, std::span<const uint8_t> body) {
  BodyReader reader(body);
  PushBody parts;
  parts.ids = reader.Ids(question.ids);
  parts.rates = reader.Next<float>(question.num_rates);
  parts.times = reader.Next<uint32_t>(question.num_times);
  parts.latest = reader.Next<float>(question.has_latest ? question.num_values : 0);
  const auto gradients = question.half ? std::as_bytes(reader.Next<uint16_t>(question.num_values))
                                       : std::as_bytes(reader.Next<float>(question.num_values));
  parts.gradients = {reinterpret_cast<const uint8_t*>(gradients.data()), gradients.size()};
  reader.End();
  return parts;
}

}  // namespace monolith::ps
