#include "data/join_event.h"

#include "data/packed_list.h"
#include "format/proto_wire.h"

namespace monolith {
namespace {

constexpr uint32_t kRequest = TagOf(1, WireType::kBytes);
constexpr uint32_t kItem = TagOf(2, WireType::kFixed64);
constexpr uint32_t kTime = TagOf(3, WireType::kVarint);
constexpr uint32_t kAction = TagOf(4, WireType::kVarint);
constexpr uint32_t kActions = TagOf(4, WireType::kBytes);
constexpr uint32_t kSample = TagOf(5, WireType::kBytes);

// Only the low 32 bits of an int32's varint are used.
bool AppendPacked(std::string_view packed, std::vector<int32_t>* actions) {
  const int64_t count = CountVarints(packed);
  if (count < 0) return false;
  const char* at = packed.data();
  for (int64_t i = 0; i < count; ++i) actions->push_back(static_cast<int32_t>(TakeVarint(&at)));
  return true;
}

bool ReadFields(std::string_view record, JoinEvent* event) {
  WireReader reader(record);
  while (reader.Next()) {
    switch (reader.tag()) {
      case kRequest: event->request = reader.bytes(); break;
      case kItem: event->item = reader.number(); break;
      case kTime: event->time_ms = static_cast<int64_t>(reader.number()); break;
      case kAction: event->actions.push_back(static_cast<int32_t>(reader.number())); break;
      case kActions:
        if (!AppendPacked(reader.bytes(), &event->actions)) return false;
        break;
      case kSample: event->sample = reader.bytes(); break;
      default: break;  // of a newer version
    }
  }
  return reader.ok();
}

}  // namespace

std::string ReadJoinEvent(std::string_view record, JoinEvent* event) {
  event->request = event->sample = {};
  event->item = 0;
  event->time_ms = 0;
  event->actions.clear();
  if (!ReadFields(record, event)) return std::to_string(record.size()) + " bytes that are no JoinEvent";
  if (event->request.empty()) return "an event without request_id, by which it is joined";
  if (event->time_ms <= 0) {
    return "an event with time_ms " + std::to_string(event->time_ms) + "; expected milliseconds since 1970";
  }
  if (event->sample.empty() && event->actions.empty()) {
    return "an event with neither sample nor actions; an impression has a sample, an action has actions";
  }
  return {};
}

}  // namespace monolith
