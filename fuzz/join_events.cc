// Events of the joiner. Input: a record. Decoded fields must point into it, and reused memory must not change them.
#include <string>

#include "data/join_event.h"
#include "input.h"

namespace monolith {
namespace {

void CheckInside(std::string_view part, std::string_view record) {
  if (part.empty()) return;
  Expect(part.data() >= record.data() && part.data() + part.size() <= record.data() + record.size());
}

}  // namespace
}  // namespace monolith

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace monolith;
  const std::string_view record(reinterpret_cast<const char*>(data), size);
  JoinEvent event, again;
  again.actions = {1, 2, 3};
  again.sample = "left by the one before";
  const std::string wrong = ReadJoinEvent(record, &event);
  Expect(ReadJoinEvent(record, &again) == wrong);
  if (!wrong.empty()) return 0;
  CheckInside(event.request, record);
  CheckInside(event.sample, record);
  Expect(!event.request.empty() && event.time_ms > 0);
  Expect(again.request == event.request && again.item == event.item && again.time_ms == event.time_ms);
  Expect(again.sample == event.sample && again.actions == event.actions);
  return 0;
}
