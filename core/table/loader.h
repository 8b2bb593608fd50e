// Writes row blocks into a group: a restore, a delta, a bucket that moves.
//
// Check() touches nothing and may be called from any thread. Write() may be called by several threads at once for
// different buckets; blocks of one bucket must come in order, in one call or in several. A loader holds the group open
// to calls, and back from a cut, while it lives.
//
// A block fits if its table's schema text is ours, or that of our serving (or training) twin. Otherwise the source's
// text decides, segment by segment in order: dims must be equal; equal optimizer and state size keep the state, else
// the state starts anew; segments that only we have are initialised; a segment that only the source has is refused.
// Wide keys (table/slot_keys.h) get the index that their slot has here; rows of slots that only the source has are left
// out.
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
  // source_schemas[t]: schema text of the blocks' table t; empty or missing = ours. Throws kInvalidArgument when one
  // does not fit.
  Loader(Group& group, uint32_t begin, uint32_t end, const std::vector<std::string>& source_schemas);

  // Whether Clear() would bring back exactly what the group is now: no rows, counts, tombstones or times.
  static bool IsBlank(const Group& group);

  // True iff the block's bucket is one of those to be loaded.
  bool Covers(const RowBlockView& block) const {
    return block.header().bucket >= begin_ && block.header().bucket < end_;
  }
  // Throws kInvalidArgument with the reason; kFailedPrecondition when the block's table is not one of ours and no
  // schema of its source was given.
  void Check(const RowBlockView& block) const;
  // Writes blocks one after another; returns the rows written. REQUIRES: Check() passed all of them.
  int64_t Write(std::span<const RowBlockView> blocks);

 private:
  struct Copy {  // bytes of the source's payload to bytes of ours
    int from;
    int to;
    int bytes;
  };
  struct RowMap {                   // how a full payload becomes ours
    bool schema_given;              // the source's schema; otherwise it is ours
    std::vector<uint64_t> digests;  // blocks with one of these are from that source
    int source_bytes;
    bool identical;
    bool same_compressors;
    std::vector<Copy> copies;
    std::vector<int32_t> wide_slots;  // of the source: numbers of its wide slots, by index
    std::vector<int32_t> our_index;   // of each of them; kDropped where we do not have the slot
    bool same_keys;                   // a key of the source is a key of ours
  };
  static constexpr int32_t kDropped = -1;

  RowMap MapFrom(const Table& table, const std::string& source_schema) const;
  // The table that the block is for. Throws as Check() does when there is none, or when its rows are made otherwise.
  const Table& TableFor(const RowBlockView& block) const;
  bool Fits(const Table& table, const RowBlockView& block) const;
  // Throws as Check() does for a key that is not of the block's bucket, or that the table cannot take.
  void CheckKey(const Table& table, const RowBlockHeader& header, int64_t key) const;
  // False iff the key is of a slot that we do not have; otherwise *key becomes ours.
  static bool TakesKey(const RowMap& map, int64_t* key);
  struct Piece;
  struct Place {  // of a row in a sequence of blocks
    size_t block;
    uint32_t row;
  };
  void Ask(std::span<const RowBlockView> blocks, Place* next, Piece* piece) const;
  void Guess(Piece* piece) const;
  int64_t WritePiece(const Piece& piece);
  int64_t WriteRows(const Piece& piece);
  // Whether a serving table has no use for a row: it would read as zeros without it.
  static bool IsLeftOut(const Table& table, const RowBlockView& block, uint32_t row);
  void WriteTombstones(const RowBlockView& block);
  void WriteFilter(const RowBlockView& block);
  // `key` is ours.
  void WritePayload(const Table& table, const RowBlockView& block, uint32_t row, int64_t key, std::byte* payload) const;

  Group& group_;
  const Gate::Writing call_;
  const uint32_t begin_;
  const uint32_t end_;
  std::vector<RowMap> maps_;  // by table
};

}  // namespace monolith
