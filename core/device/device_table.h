// The rows of one table on a device: its chunks and its index, and how they grow.
//
// Rows lie in chunks that never move. The index has 16 segments, each of which is built again in new memory when it
// fills up, at different fills, so that no call builds more than a few of them. Owned by a DeviceGroup, which calls one
// member at a time and launches everything in one stream.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "device/device_memory.h"
#include "device/launcher.h"

namespace monolith::device {

// Sizes that tests lower to reach every case with few rows.
struct TableSizes {
  int chunk_bits = -1;           // of the rows of a chunk; -1: for about a megabyte
  uint32_t segment_bits = 6;     // of the words of an empty segment
  size_t slab_bytes = 64 << 20;  // most memory that is taken from the device for chunks at a time
};

// Memory for chunks, taken from the device in larger pieces.
class ChunkMemory {
 public:
  ChunkMemory(Launcher& launcher, size_t most_bytes) : launcher_(launcher), most_bytes_(most_bytes) {}

  // On a boundary of 256 bytes; stays until Clear().
  std::byte* Take(size_t bytes);
  void Clear();
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  DeviceArray<std::byte> NewSlab(size_t needed, size_t wanted);

  Launcher& launcher_;
  const size_t most_bytes_;
  std::vector<DeviceArray<std::byte>> slabs_;  // chunks are taken from the last one
  size_t used_ = 0;                            // of it
  uint64_t size_bytes_ = 0;
};

class DeviceTable {
 public:
  // `payload_bytes`: of a row; a multiple of 4. `keeps_buckets`: keys do not determine them. Allocates nothing.
  DeviceTable(Launcher& launcher, Stream stream, ChunkMemory& chunks, uint32_t payload_bytes, bool keeps_buckets,
              const TableSizes& sizes);

  // The memory of an empty table, and the table in it. Only the former can fail, and it changes nothing.
  struct EmptyIndex {
    std::array<DeviceArray<uint64_t>, kNumSegments> segments;
    DeviceArray<uint32_t> fill_counts;
  };
  EmptyIndex NewIndex() const;
  // Becomes an empty table, whose counters the device has at this address.
  void Create(EmptyIndex index, TableCounters* device_counters);
  // Makes room for `more` new rows, and their words in the index. An error changes no row, and the call can be
  // repeated.
  void Reserve(uint32_t number, const Tables& tables, uint32_t more);
  // Makes room in the list of erased rows for `more` of them.
  void ReserveErased(uint32_t more);

  // As kernels see it; `is_view_changed` is set whenever a new copy has to be made on the device.
  const TableView& view() const { return view_; }
  bool is_view_changed = true;

  // The counters on the device, as the last call left them.
  const TableCounters& counters() const { return counters_; }
  void SetCounters(const TableCounters& counters);
  // Row numbers in use or erased: kernels over all rows go through these.
  uint32_t num_numbers() const { return counters_.next_row; }
  uint32_t size() const { return counters_.next_row - counters_.num_free; }
  uint64_t chunk_bytes() const { return chunk_addresses_.size() * ChunkBytes(); }
  uint64_t index_bytes() const;
  uint64_t other_bytes() const { return free_rows_.size() * sizeof(uint32_t) + chunk_list_.size() * sizeof(Chunk); }
  double index_load() const;

 private:
  struct Fill {
    uint32_t live;
    uint32_t erased;
  };

  size_t ChunkBytes() const;
  void AddChunk();
  void ReserveRows(uint64_t rows);
  void ReserveIndex(uint32_t number, const Tables& tables, uint32_t more);
  Fill CountSegment(uint32_t segment);
  void Rebuild(uint32_t number, const Tables& tables, uint32_t segment, uint32_t size_bits);
  uint64_t NumWords(uint32_t segment) const { return uint64_t{1} << view_.segment_bits[segment]; }
  uint64_t NumWordsOfEmpty() const { return uint64_t{1} << sizes_.segment_bits; }

  Launcher& launcher_;
  const Stream stream_;
  ChunkMemory& chunks_;
  const bool keeps_buckets_;
  const TableSizes sizes_;
  TableView view_{};
  std::array<DeviceArray<uint64_t>, kNumSegments> segments_;
  std::array<uint64_t, kNumSegments> used_{};  // upper bound of the words of each that rows have or had
  DeviceArray<Chunk> chunk_list_;
  std::vector<Chunk> chunk_addresses_;
  size_t num_listed_ = 0;  // of them, on the device
  DeviceArray<uint32_t> free_rows_;
  TableCounters counters_{};
  DeviceArray<uint32_t> fill_counts_;
};

}  // namespace monolith::device
