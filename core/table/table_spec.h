// The layout of a table's rows and its treatment of ids. Filled by one thread, then owned by a Group and constant.
//
// Payload of a training row: weights f32[dim], then each segment's optimizer state, end to end. Payload of a serving
// row: each segment's compressed bytes, end to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compressor/compressor.h"
#include "initializer/initializer.h"
#include "optimizer/row_optimizer.h"
#include "table/eviction_rule.h"
#include "table/nonfinite.h"
#include "table/slot_keys.h"

namespace monolith {

enum class CapEviction { kLeastRecentlyUsed, kLeastFrequentlyUsed };

struct Kernel {  // kind and parameters of an optimizer, initializer, compressor or filter
  std::string kind;
  Params params;
};

struct Segment {
  int dim;
  std::string optimizer_kind;
  std::string compressor_kind;
  std::unique_ptr<Initializer> initializer;
  std::unique_ptr<RowOptimizer> optimizer;
  std::unique_ptr<Compressor> compressor;
  int first_dim;  // offset in the row's weights
  int state_bytes;
  int state_offset;  // from the start of a training payload
  int compressed_bytes;
  int compressed_offset;  // from the start of a serving payload
};

// A value for each slot, or one for all.
class SlotValues {
 public:
  explicit SlotValues(uint32_t all) : all_(all) {}
  // Throws kInvalidArgument for a slot outside [0, kNumSlots) or a negative value.
  void Set(uint32_t all, std::span<const int32_t> slots, std::span<const int32_t> values);
  // kNumSlots stands for an unknown slot.
  uint32_t Of(uint32_t slot) const { return slot < by_slot_.size() ? by_slot_[slot] : all_; }
  uint32_t Largest() const;
  // Whether no slot has a value of its own.
  bool is_uniform() const { return by_slot_.empty(); }

 private:
  uint32_t all_;
  std::vector<uint32_t> by_slot_;
};

class TableSpec {
 public:
  explicit TableSpec(std::string table_name) : name(std::move(table_name)) {}
  TableSpec(TableSpec&&) = default;
  TableSpec(const TableSpec&) = delete;
  TableSpec& operator=(const TableSpec&) = delete;

  void AddSegment(int dim, const Kernel& initializer, const Kernel& optimizer, const Kernel& compressor);

  std::string name;
  bool serving = false;
  bool skip_zero = false;  // serving: an all-zero vector is not stored
  uint64_t seed = 0;
  NonFinite nonfinite = NonFinite::kRaise;
  uint64_t max_rows = 0;  // 0 = no cap
  CapEviction cap_eviction = CapEviction::kLeastRecentlyUsed;
  SlotValues expire_days{36500};
  int64_t evict_every_seconds = 0;  // period of event time in which updates check every row once; 0 = they do not
  SlotValues min_counts{0};

  // Sets the numbers of the slots that accept any int64 (table/slot_keys.h); the index of a wide key is an index of
  // this list. Throws kInvalidArgument unless they ascend, are numbers of slots, and at most kMaxWideSlots.
  void SetWideSlots(std::span<const int32_t> numbers);
  const std::vector<int32_t>& wide_slots() const { return wide_slots_; }
  // Returns the slot of a key; kNumSlots for a wide key without a wide slot.
  uint32_t SlotOfKey(int64_t key) const {
    return monolith::SlotOfKey(key, wide_slots_.data(), static_cast<uint32_t>(wide_slots_.size()));
  }
  // Returns the hash by which admission counts a key; `hash` is HashInBucket(). Like RowSeed(), it depends on table,
  // slot and id only.
  uint64_t CountedHash(uint64_t hash, int64_t key) const;
  uint32_t MinCountOf(int64_t key) const { return min_counts.Of(SlotOfKey(key)); }

  const std::vector<Segment>& segments() const { return segments_; }
  int dim() const { return dim_; }
  int state_bytes() const { return state_bytes_; }
  int training_payload_bytes() const { return 4 * dim_ + state_bytes_; }
  int serving_payload_bytes() const { return compressed_bytes_; }
  int payload_bytes() const { return serving ? serving_payload_bytes() : training_payload_bytes(); }
  // Header, payload, and padding to 8 bytes.
  size_t row_bytes() const;
  // Bytes of a row, header included, that a lookup reads.
  size_t read_bytes() const;
  // True iff a lookup copies the weights as stored in the row; otherwise it calls ReadWeights().
  bool reads_raw() const { return !serving && !quantises_training_; }
  // True iff a segment's optimizer uses the weights that the worker read.
  bool uses_latest() const { return uses_latest_; }
  bool HasExpired(int64_t key, int64_t time, int64_t now) const {
    return monolith::HasExpired(time, now, expire_days.Of(SlotOfKey(key)));
  }

  // Whether a vector need not be stored because of skip_zero: its squared length is zero or denormal. NaN is stored.
  bool LeavesOut(const float* weights) const;

  // One line that describes the layout of a row; two tables with the same text can exchange rows byte by byte.
  std::string SchemaText() const { return SchemaText(serving); }
  std::string SchemaText(bool as_serving) const;

  // Seed of a row's random values. Depends on slot and id only, not on the other slots of the table.
  uint64_t RowSeed(int64_t key) const;
  // Fills the payload of a new row, padding included.
  void InitPayload(int64_t id, std::byte* payload) const;
  // Returns weights as a reader sees them: through the retriever in training, decompressed in serving.
  void ReadWeights(const std::byte* payload, float* weights, int64_t step) const;
  void Compress(const float* weights, std::byte* bytes) const;
  void Decompress(const std::byte* bytes, float* weights) const;

 private:
  std::vector<Segment> segments_;
  std::vector<int32_t> wide_slots_;
  int dim_ = 0;
  int state_bytes_ = 0;
  int compressed_bytes_ = 0;
  bool quantises_training_ = false;
  bool uses_latest_ = false;
};

// FNV-1a, 64 bits.
uint64_t DigestOf(const std::string& text);

}  // namespace monolith
