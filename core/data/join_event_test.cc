#include "data/join_event.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace monolith {
namespace {

// request "r", item 7, time 5: as protoc writes them.
const std::string kHead("\x0a\x01r\x11\x07\0\0\0\0\0\0\0\x18\x05", 14);

TEST(JoinEvent, TakesListsOfActionsPackedAndOneByOneAndPassesOverUnknownFields) {
  JoinEvent event;
  const std::string minus_two("\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10);
  const std::string record = kHead + "\x22\x0b\x03" + minus_two + "\x20\x09" + "\x78\x01" + "\x2a\x03" + "abc";
  EXPECT_EQ(ReadJoinEvent(record, &event), "");
  EXPECT_EQ(event.request, "r");
  EXPECT_EQ(event.item, 7u);
  EXPECT_EQ(event.time_ms, 5);
  EXPECT_EQ(event.sample, "abc");
  EXPECT_EQ(event.actions, (std::vector<int32_t>{3, -2, 9}));
  EXPECT_EQ(ReadJoinEvent(kHead + "\x20\x01", &event), "");
  EXPECT_EQ(event.sample, "");  // nothing of the previous event
  EXPECT_EQ(event.actions, (std::vector<int32_t>{1}));
}

TEST(JoinEvent, SaysWhatIsWrong) {
  JoinEvent event;
  const std::string whole = kHead + "\x22\x02\x03\x04" + "\x2a\x01s";
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string reason = ReadJoinEvent(whole.substr(0, size), &event);
    EXPECT_EQ(reason.empty(), size == 18) << size;  // then it is an action
  }
  EXPECT_EQ(ReadJoinEvent(whole, &event), "");
  EXPECT_EQ(ReadJoinEvent(kHead + "\x22\x01\xff", &event), "17 bytes that are no JoinEvent");
  EXPECT_EQ(ReadJoinEvent("\x18\x05\x20\x01", &event), "an event without request_id, by which it is joined");
  EXPECT_EQ(ReadJoinEvent("\x0a\x01r\x20\x01", &event), "an event with time_ms 0; expected milliseconds since 1970");
  EXPECT_NE(ReadJoinEvent(kHead, &event).find("neither sample nor actions"), std::string::npos);
}

}  // namespace
}  // namespace monolith
