// One event for the joiner, read from its record: the message JoinEvent of
// src/monolith/online/joiner/protos/join_event.proto. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace monolith {

struct JoinEvent {
  std::string_view request;  // view of the record, like `sample`
  uint64_t item = 0;
  int64_t time_ms = 0;
  std::string_view sample;
  std::vector<int32_t> actions;
};

// Reads a record into `event`, whose memory is reused; returns the problem, or an empty text.
std::string ReadJoinEvent(std::string_view record, JoinEvent* event);

}  // namespace monolith
