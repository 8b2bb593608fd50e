// The rows of a table in device memory, as kernels address them.
//
// A row is a header, which is the core's (table/row.h), and apart from it a payload: weights, then the optimizer's
// state, padded to 16 bytes. Rows lie in chunks of a power of two, which never move; row numbers count through them.
// The index maps the hash of an id to its row (device/kernels/index.h).
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "device/kernels/thread.h"
#include "table/row.h"

namespace monolith::device {

inline constexpr uint32_t kSegmentBits = 4;
inline constexpr uint32_t kNumSegments = 1u << kSegmentBits;

struct Chunk {
  RowHeader* headers;
  float* payloads;    // on a boundary of 16 bytes
  uint16_t* buckets;  // of each row; null: keys determine them
};

struct TableCounters {
  uint32_t next_row;  // the first row number that was never used
  uint32_t num_free;  // erased rows, whose numbers lie in `free_rows`
  uint32_t num_lost;  // ids that got no row because a segment of the index was full
};

struct TableView {
  uint64_t* segments[kNumSegments];
  uint8_t segment_bits[kNumSegments];  // of the number of words of each, at least 1
  const Chunk* chunks;
  uint32_t chunk_bits;  // of the number of rows of a chunk
  uint32_t stride;      // floats of a payload, a multiple of 4
  uint32_t* free_rows;
  TableCounters* counters;

  RowHeader* HeaderAt(uint32_t row) const { return chunks[row >> chunk_bits].headers + InChunk(row); }
  float* PayloadAt(uint32_t row) const { return chunks[row >> chunk_bits].payloads + uint64_t{InChunk(row)} * stride; }

  // For passes over all rows: how many of these row numbers were ever used. Headers of others may hold anything.
  uint32_t UsedRows(uint32_t num_rows) const { return num_rows < counters->next_row ? num_rows : counters->next_row; }

  // REQUIRES: the row has a key. Wide keys do not determine their bucket (table/slot_keys.h).
  uint32_t BucketOfRow(uint32_t row) const {
    const Chunk& chunk = chunks[row >> chunk_bits];
    return chunk.buckets == nullptr ? BucketOf(chunk.headers[InChunk(row)].key) : chunk.buckets[InChunk(row)];
  }
  void SetBucketOfRow(uint32_t row, uint32_t bucket) const {
    uint16_t* buckets = chunks[row >> chunk_bits].buckets;
    if (buckets != nullptr) buckets[InChunk(row)] = static_cast<uint16_t>(bucket);
  }

 private:
  uint32_t InChunk(uint32_t row) const { return row & ((1u << chunk_bits) - 1); }
};

// All tables of a store.
struct Tables {
  const TableView* views;
  uint64_t process_key;
};

// The distinct ids of a batch in the order of its plan (table/plan.h).
struct DistinctIds {
  uint32_t count;
  uint32_t num_tables;
  const int64_t* keys;
  const int32_t* cells;  // of each: bucket * num_tables + table

  uint32_t TableAt(uint32_t place) const { return static_cast<uint32_t>(cells[place]) % num_tables; }
  uint32_t BucketAt(uint32_t place) const { return static_cast<uint32_t>(cells[place]) / num_tables; }
};

// Where the values of each distinct id are: end to end, `dim` floats each if there is one table.
struct ValueLayout {
  uint32_t dim;
  const uint32_t* dims;    // of each table; null if there is one
  const int64_t* offsets;  // of each distinct id, in floats; null if there is one table

  uint32_t DimOf(uint32_t table) const { return dims == nullptr ? dim : dims[table]; }
  uint64_t OffsetAt(uint32_t place) const {
    return offsets == nullptr ? uint64_t{place} * dim : static_cast<uint64_t>(offsets[place]);
  }
};

}  // namespace monolith::device
