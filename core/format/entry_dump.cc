#include "format/entry_dump.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

// Field numbers of EntryDump, OptimizerDump and SingleOptimizerDump.
constexpr uint32_t kIdTag = TagOf(1, WireType::kFixed64);
constexpr uint32_t kWeightTag = TagOf(2, WireType::kFixed32);
constexpr uint32_t kPackedWeightsTag = TagOf(2, WireType::kBytes);
constexpr uint32_t kOptimizerTag = TagOf(3, WireType::kBytes);
constexpr uint32_t kTimeTag = TagOf(4, WireType::kVarint);
constexpr uint32_t kDumpTag = TagOf(1, WireType::kBytes);

std::string NameOfMessage(uint32_t field) {
  for (const RowOptimizerKind& kind : RowOptimizerKinds()) {
    if (field != 0 && kind.dump.field == field) return std::string(kind.name);
  }
  return "unknown (field " + std::to_string(field) + ")";
}

[[noreturn]] void DoesNotFit(const std::string& reason) { throw Error(Code::kInvalidArgument, reason); }

// Number of 4-byte words of a member; 0 for one per run, which takes the remaining words.
uint32_t WordsOf(StateMember::Form form, int dim) {
  if (form == StateMember::Form::kPerWeight) return static_cast<uint32_t>(dim);
  if (form == StateMember::Form::kPerRun) return 0;
  return form == StateMember::Form::kInteger ? 2 : 1;
}

bool IsRepeated(StateMember::Form form) {
  return form == StateMember::Form::kPerWeight || form == StateMember::Form::kPerRun;
}

// Collects the values of a repeated float field into memory of fixed size.
class FloatFill {
 public:
  FloatFill(std::byte* place, size_t count) : place_(place), count_(count) {}

  void Add(float value) {
    if (filled_ < count_) std::memcpy(place_ + 4 * filled_, &value, 4);
    ++filled_;
  }
  bool AddPacked(std::string_view floats) {
    if (floats.size() % 4 != 0) return false;
    for (size_t at = 0; at < floats.size(); at += 4) {
      float value;
      std::memcpy(&value, floats.data() + at, 4);
      Add(value);
    }
    return true;
  }
  size_t filled() const { return filled_; }

 private:
  std::byte* place_;
  size_t count_;
  size_t filled_ = 0;
};

}  // namespace

EntryDumpCodec::EntryDumpCodec(const std::vector<DumpSegment>& segments, std::string initial_state, bool weights_only,
                               std::string shared_table)
    : weights_only_(weights_only), initial_state_(std::move(initial_state)), shared_table_(std::move(shared_table)) {
  for (const DumpSegment& segment : segments) dim_ += segment.dim;
  size_t state_offset = 4 * static_cast<size_t>(dim_);
  for (size_t i = 0; i < segments.size(); ++i) {
    const DumpSegment& segment = segments[i];
    const RowOptimizerKind* kind = weights_only ? nullptr : FindRowOptimizerKind(segment.optimizer);
    if (kind != nullptr && kind->dump.field != 0) {
      dumps_.push_back({i, segment.optimizer, kind->dump.field, MembersOf(segment, kind->dump, state_offset)});
    } else if (!weights_only && (kind == nullptr || segment.state_bytes != 0)) {
      DoesNotFit("optimizer '" + segment.optimizer + "' has no EntryDump message");
    }
    state_offset += static_cast<size_t>(segment.state_bytes);
  }
  MONOLITH_CHECK(state_offset == payload_bytes());
}

std::vector<EntryDumpCodec::Member> EntryDumpCodec::MembersOf(const DumpSegment& segment, const DumpMessage& message,
                                                              size_t state_offset) {
  const auto words = static_cast<uint32_t>(segment.state_bytes / 4);
  uint32_t known = 0;
  bool has_runs = false;
  for (const StateMember& member : message.members) {
    known += WordsOf(member.form, segment.dim);
    has_runs = has_runs || member.form == Form::kPerRun;
  }
  if (known > words || (known < words && !has_runs)) {
    DoesNotFit("optimizer '" + segment.optimizer + "': " + std::to_string(segment.state_bytes) +
               " bytes of state do not fit");
  }
  std::vector<Member> members;
  for (const auto& [field, form] : message.members) {
    const uint32_t count = form == Form::kPerRun ? words - known : WordsOf(form, segment.dim);
    members.push_back({field, form, state_offset, count});
    state_offset += 4 * static_cast<size_t>(count);
  }
  std::ranges::sort(members, {}, &Member::field);
  return members;
}

size_t EntryDumpCodec::MessageBytes(const SegmentDump& dump, const std::byte* payload) {
  size_t size = 0;
  for (const Member& member : dump.members) {
    if (member.form == Form::kInteger) {
      uint64_t value;
      std::memcpy(&value, payload + member.offset, 8);
      size += 1 + VarintBytes(value);
    } else {
      size += 5 * static_cast<size_t>(member.count);
    }
  }
  return size;
}

void EntryDumpCodec::EncodeOptimizer(const std::byte* payload, std::string* record) const {
  for (const SegmentDump& dump : dumps_) {
    const size_t size = MessageBytes(dump, payload);
    PutVarint(kDumpTag, record);
    PutVarint(1 + VarintBytes(size) + size, record);
    PutVarint(TagOf(dump.field, WireType::kBytes), record);
    PutVarint(size, record);
    for (const Member& member : dump.members) {
      if (member.form != Form::kInteger) {
        PutFloats(member.field, payload + member.offset, member.count, record);
        continue;
      }
      uint64_t value;
      std::memcpy(&value, payload + member.offset, 8);
      PutVarint(TagOf(member.field, WireType::kVarint), record);
      PutVarint(value, record);
    }
  }
}

void EntryDumpCodec::CheckKey(int64_t key) const {
  if (shared_table_.empty() || key >= 0) return;
  DoesNotFit("table '" + shared_table_ + "': slots share it, and an EntryDump message can hold their ids in [0, 2^48)" +
             " alone, below the slot's number: key " + std::to_string(key) + " is of another id");
}

void EntryDumpCodec::Encode(int64_t key, uint32_t time, const std::byte* payload, std::string* record) const {
  CheckKey(key);
  record->clear();
  PutVarint(kIdTag, record);
  record->append(reinterpret_cast<const char*>(&key), 8);
  AppendRow(time, payload, record);
}

void EntryDumpCodec::EncodeWithoutId(uint32_t time, const std::byte* payload, std::string* record) const {
  record->clear();
  AppendRow(time, payload, record);
}

void EntryDumpCodec::AppendRow(uint32_t time, const std::byte* payload, std::string* record) const {
  PutFloats(2, payload, static_cast<size_t>(dim_), record);
  size_t size = 0;
  for (const SegmentDump& dump : dumps_) {
    const size_t message = MessageBytes(dump, payload);
    const size_t single = 1 + VarintBytes(message) + message;
    size += 1 + VarintBytes(single) + single;
  }
  PutVarint(kOptimizerTag, record);
  PutVarint(size, record);
  EncodeOptimizer(payload, record);
  PutVarint(kTimeTag, record);
  PutVarint(time, record);
}

bool EntryDumpCodec::Decode(std::string_view record, int64_t* key, uint32_t* time, std::byte* payload) const {
  std::memcpy(payload + 4 * static_cast<size_t>(dim_), initial_state_.data(), initial_state_.size());
  FloatFill weights(payload, static_cast<size_t>(dim_));
  uint64_t id = 0;
  uint64_t seconds = 0;  // a record without time: 0
  size_t decoded = 0;
  bool has_optimizer = false;
  WireReader reader(record);
  while (reader.Next()) {
    if (reader.tag() == kWeightTag) {
      weights.Add(reader.real());
    } else if (reader.tag() == kIdTag) {
      id = reader.number();
    } else if (reader.tag() == kTimeTag) {
      seconds = reader.number();
    } else if (reader.tag() == kOptimizerTag) {
      has_optimizer = !weights_only_;
      if (has_optimizer && !DecodeOptimizer(reader.bytes(), &decoded, payload)) return false;
    } else if (reader.tag() == kPackedWeightsTag && !weights.AddPacked(reader.bytes())) {
      return false;
    }
  }
  if (!reader.ok()) return false;
  *key = static_cast<int64_t>(id);
  CheckKey(*key);
  const std::string subject = "id " + std::to_string(*key) + ": ";
  if (weights.filled() != static_cast<size_t>(dim_)) {
    DoesNotFit(subject + std::to_string(weights.filled()) + " weights, the table has " + std::to_string(dim_));
  }
  if (has_optimizer && decoded != dumps_.size()) {
    DoesNotFit(subject + std::to_string(decoded) + " optimizer dumps, the table has " + std::to_string(dumps_.size()));
  }
  if (seconds > 0xffffffffu) DoesNotFit(subject + "time " + std::to_string(seconds) + " does not fit into 32 bits");
  *time = static_cast<uint32_t>(seconds);
  return true;
}

bool EntryDumpCodec::DecodeOptimizer(std::string_view message, size_t* decoded, std::byte* payload) const {
  WireReader reader(message);
  while (reader.Next()) {
    if (reader.tag() != kDumpTag) continue;
    if (*decoded < dumps_.size() && !DecodeSegment(dumps_[*decoded], reader.bytes(), payload)) return false;
    ++*decoded;
  }
  return reader.ok();
}

bool EntryDumpCodec::DecodeSegment(const SegmentDump& dump, std::string_view message, std::byte* payload) {
  WireReader reader(message);
  while (reader.Next()) {
    if (reader.tag() != TagOf(dump.field, WireType::kBytes)) {
      DoesNotFit("segment " + std::to_string(dump.segment) + ": optimizer dump is '" +
                 NameOfMessage(reader.tag() >> 3) + "', the table has '" + dump.optimizer + "'");
    }
    if (!DecodeMembers(dump, reader.bytes(), payload)) return false;
  }
  return reader.ok();
}

bool EntryDumpCodec::DecodeMembers(const SegmentDump& dump, std::string_view message, std::byte* payload) {
  for (const Member& member : dump.members) {  // at most five; each pass is over a few hundred bytes
    FloatFill floats(payload + member.offset, member.count);
    WireReader reader(message);
    while (reader.Next()) {
      if (reader.tag() >> 3 != member.field) continue;
      if (member.form == Form::kInteger && reader.tag() == TagOf(member.field, WireType::kVarint)) {
        const uint64_t value = reader.number();
        std::memcpy(payload + member.offset, &value, 8);
      } else if (member.form != Form::kInteger && reader.tag() == TagOf(member.field, WireType::kFixed32)) {
        floats.Add(reader.real());
      } else if (!IsRepeated(member.form) || reader.tag() != TagOf(member.field, WireType::kBytes) ||
                 !floats.AddPacked(reader.bytes())) {
        return false;
      }
    }
    if (!reader.ok()) return false;
    if (IsRepeated(member.form) && floats.filled() != 0 && floats.filled() != member.count) {
      DoesNotFit("segment " + std::to_string(dump.segment) + ": optimizer '" + dump.optimizer + "' dumps " +
                 std::to_string(floats.filled()) + " values, the table has " + std::to_string(member.count));
    }
  }
  return true;
}

}  // namespace monolith
