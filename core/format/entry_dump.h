// Converts one row of a table to ByteDance Monolith's EntryDump message, and back. Message layout:
// docs/formats/entry_dump.md.
//
// A codec is immutable and thread-safe. "Payload" is that of a training row: weights f32[dim], then the optimizer state
// of each segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/kinds.h"

namespace monolith {

struct DumpSegment {
  int dim;
  std::string optimizer;  // name of its kind
  int state_bytes;
};

class EntryDumpCodec {
 public:
  // `initial_state` is the state of a new row, for members that a record omits. `weights_only` skips the optimizer
  // dumps of records, whatever they are: a serving table has no use for them. Throws Error(kInvalidArgument) for an
  // optimizer whose state has no dump message, or state that does not fit its kind. A segment without state and without
  // a message adds nothing to a record.
  // `shared_table`: the name of a table that slots share, whose negative keys are no ids (table/slot_keys.h): both
  // directions reject them with kInvalidArgument. Empty for any other table.
  EntryDumpCodec(const std::vector<DumpSegment>& segments, std::string initial_state, bool weights_only = false,
                 std::string shared_table = "");

  int dim() const { return dim_; }
  size_t payload_bytes() const { return 4 * static_cast<size_t>(dim_) + initial_state_.size(); }

  // Replaces *record.
  void Encode(int64_t key, uint32_t time, const std::byte* payload, std::string* record) const;
  // Writes the same message without its id, the form in which upstream returns single entries.
  void EncodeWithoutId(uint32_t time, const std::byte* payload, std::string* record) const;

  // Returns false iff the bytes are not an EntryDump message at all. Throws Error(kInvalidArgument) for a message that
  // does not fit the table: other dimensions, another optimizer, a time outside 32 bits. *payload is written in both
  // cases.
  bool Decode(std::string_view record, int64_t* key, uint32_t* time, std::byte* payload) const;

 private:
  using Form = StateMember::Form;
  struct Member {  // one field of an optimizer's dump message
    uint32_t field;
    Form form;
    size_t offset;  // in the payload
    uint32_t count;
  };
  struct SegmentDump {
    size_t segment;
    std::string optimizer;
    uint32_t field;               // of the optimizer's message inside SingleOptimizerDump
    std::vector<Member> members;  // by field
  };

  static std::vector<Member> MembersOf(const DumpSegment& segment, const DumpMessage& message, size_t state_offset);
  static size_t MessageBytes(const SegmentDump& dump, const std::byte* payload);
  static bool DecodeSegment(const SegmentDump& dump, std::string_view message, std::byte* payload);
  static bool DecodeMembers(const SegmentDump& dump, std::string_view message, std::byte* payload);
  bool DecodeOptimizer(std::string_view message, size_t* decoded, std::byte* payload) const;
  void EncodeOptimizer(const std::byte* payload, std::string* record) const;
  void CheckKey(int64_t key) const;
  void AppendRow(uint32_t time, const std::byte* payload, std::string* record) const;

  int dim_ = 0;
  bool weights_only_;
  std::string initial_state_;
  std::string shared_table_;
  std::vector<SegmentDump> dumps_;  // of the segments that have one
};

}  // namespace monolith
