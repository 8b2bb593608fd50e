// Loads the blocks of a snapshot into a group. Blocks its caller; safe with concurrent calls of the group, which see a
// bucket's rows appear one by one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/snapshot_io.h"
#include "table/group.h"

namespace monolith {

struct RestorePlan {
  std::vector<SnapshotFileInfo> files;
  uint32_t begin = 0;  // buckets [begin, end) of the snapshot are read
  uint32_t end = 0;
  std::vector<int> tables;  // by table number of the snapshot: number in the group, or -1 to skip
  std::vector<std::string>
      source_schemas;  // by table number of the group: schema text of its rows in the snapshot, or empty
  int threads = 1;
};

// Reads and checks every block, and that the group can load it; changes nothing. Throws Error with file, offset and
// reason.
void CheckSnapshot(Group& group, const RestorePlan& plan, TransferProgress* progress);

// Writes every block and returns the rows by table of the group. The group must be empty in these buckets, otherwise
// rows that are not in the snapshot stay.
std::vector<int64_t> LoadSnapshot(Group& group, const RestorePlan& plan, TransferProgress* progress);

}  // namespace monolith
