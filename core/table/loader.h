// Writes row blocks into a group: for a restore, a delta, or a bucket that moves.
//
// Check() changes nothing and is thread-safe. Several threads may call Write() concurrently for different buckets;
// blocks of one bucket must come in order, in one call or in several. While a loader exists, other calls of the
// group proceed, and cuts wait.
//
// A block fits if its table's schema text equals this group's, or that of its serving (or training) twin. Otherwise the
// source's text decides, segment by segment in order: dims must be equal; the state is kept if optimizer and state size
// are equal, and reset otherwise; segments that only this group has are initialised; a segment that only the source has
// is rejected. Wide keys (table/slot_keys.h) get the index of their slot in this group; rows of slots that only the
// source has are skipped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/row_block.h"
#include "table/group.h"

namespace monolith {

class Loader {
 public:
  // source_schemas[t]: schema text of the blocks' table t; empty or missing = this group's. Throws kInvalidArgument
  // when one does not fit.
  Loader(Group& group, uint32_t begin, uint32_t end, const std::vector<std::string>& source_schemas);

  // Whether Clear() would leave the group as it is: without rows, counts, tombstones or times.
  static bool IsBlank(const Group& group);

  // True iff the block's bucket is one of those to be loaded.
  bool Covers(const RowBlockView& block) const {
    return block.header().bucket >= begin_ && block.header().bucket < end_;
  }
  // Throws kInvalidArgument with the reason; kFailedPrecondition when the group does not have the block's table and no
  // schema of its source was given.
  void Check(const RowBlockView& block) const;
  // Writes blocks one after another; returns the number of rows written. REQUIRES: Check() passed all of them.
  int64_t Write(std::span<const RowBlockView> blocks);

 private:
  struct Copy {  // from bytes of the source's payload to bytes of this group's
    int from;
    int to;
    int bytes;
  };
  struct RowMap {                   // conversion of a full payload to this group's
    bool schema_given;              // a schema of the source was given; otherwise this group's is used
    std::vector<uint64_t> digests;  // blocks with one of these digests come from that source
    int source_bytes;
    bool identical;
    bool same_compressors;
    std::vector<Copy> copies;
    std::vector<int32_t> wide_slots;  // numbers of the source's wide slots, by index
    std::vector<int32_t> our_index;   // this group's index of each of them; kDropped if it does not have the slot
    bool same_keys;                   // keys are the same in the source and here
  };
  static constexpr int32_t kDropped = -1;

  RowMap MapFrom(const Table& table, const std::string& source_schema) const;
  // The table of the block. Throws as Check() does when there is none, or when its rows have another layout.
  const Table& TableFor(const RowBlockView& block) const;
  bool Fits(const Table& table, const RowBlockView& block) const;
  // Throws as Check() does for a key that does not belong to the block's bucket, or that the table cannot store.
  void CheckKey(const Table& table, const RowBlockHeader& header, int64_t key) const;
  // False iff the key is of a slot that this group does not have; otherwise converts *key to this group's key.
  static bool TakesKey(const RowMap& map, int64_t* key);
  struct Piece;
  struct Place {  // position of a row in a sequence of blocks
    size_t block;
    uint32_t row;
  };
  void Ask(std::span<const RowBlockView> blocks, Place* next, Piece* piece) const;
  void Guess(Piece* piece) const;
  int64_t WritePiece(const Piece& piece);
  int64_t WriteRows(const Piece& piece);
  // Whether a serving table can omit a row: it would read as zeros without it.
  static bool IsLeftOut(const Table& table, const RowBlockView& block, uint32_t row);
  void WriteTombstones(const RowBlockView& block);
  void WriteFilter(const RowBlockView& block);
  // `key` is this group's.
  void WritePayload(const Table& table, const RowBlockView& block, uint32_t row, int64_t key, std::byte* payload) const;

  Group& group_;
  const Gate::Writing call_;
  const uint32_t begin_;
  const uint32_t end_;
  std::vector<RowMap> maps_;  // by table
};

}  // namespace monolith
