#include "table/table_spec.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "table/row.h"
#include "table/row_seed.h"

namespace monolith {

void SlotValues::Set(uint32_t all, std::span<const int32_t> slots, std::span<const int32_t> values) {
  if (slots.size() != values.size()) throw Error(Code::kInvalidArgument, "slots and values must have the same length");
  all_ = all;
  by_slot_.clear();
  if (slots.empty()) return;
  by_slot_.assign(kNumSlots, all);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= kNumSlots || values[i] < 0) {
      throw Error(Code::kInvalidArgument, "slot must be in [0, 32768) and its value >= 0, got slot " +
                                              std::to_string(slots[i]) + " with " + std::to_string(values[i]));
    }
    by_slot_[slots[i]] = static_cast<uint32_t>(values[i]);
  }
}

uint32_t SlotValues::Largest() const {
  return by_slot_.empty() ? all_ : *std::max_element(by_slot_.begin(), by_slot_.end());
}

void TableSpec::AddSegment(int dim, const Kernel& initializer, const Kernel& optimizer, const Kernel& compressor) {
  if (dim <= 0) {
    throw Error(Code::kInvalidArgument, "table '" + name + "': dim must be > 0, got " + std::to_string(dim));
  }
  Segment segment;
  segment.dim = dim;
  segment.optimizer_kind = optimizer.kind;
  segment.compressor_kind = compressor.kind;
  segment.initializer = MakeInitializer(initializer.kind, initializer.params);
  segment.optimizer = MakeRowOptimizer(optimizer.kind, dim, optimizer.params);
  segment.compressor = MakeCompressor(compressor.kind, compressor.params);
  segment.first_dim = dim_;
  segment.state_bytes = segment.optimizer->StateBytes();
  segment.compressed_bytes = segment.compressor->BytesFor(dim);
  segment.compressed_offset = compressed_bytes_;
  dim_ += dim;
  state_bytes_ += segment.state_bytes;
  compressed_bytes_ += segment.compressed_bytes;
  uses_latest_ = uses_latest_ || segment.optimizer->uses_latest();
  quantises_training_ = quantises_training_ || segment.compressor->quantises_training();
  segments_.push_back(std::move(segment));
  int state_offset = 4 * dim_;
  for (Segment& each : segments_) {
    each.state_offset = state_offset;
    state_offset += each.state_bytes;
  }
}

size_t TableSpec::row_bytes() const { return (sizeof(RowHeader) + payload_bytes() + 7) / 8 * 8; }

size_t TableSpec::read_bytes() const { return sizeof(RowHeader) + (serving ? compressed_bytes_ : 4 * dim_); }

std::string TableSpec::SchemaText(bool as_serving) const {
  std::string text = "monolith-table/1;serving=" + std::to_string(as_serving ? 1 : 0);
  for (size_t i = 0; i < wide_slots_.size(); ++i) {
    text += (i == 0 ? ";wide_slots=" : ",") + std::to_string(wide_slots_[i]);
  }
  for (const Segment& segment : segments_) {
    text += ";segment=" + std::to_string(segment.dim) + "," + segment.optimizer_kind + "," +
            std::to_string(segment.state_bytes) + "," + segment.compressor_kind + "," +
            std::to_string(segment.compressed_bytes);
  }
  return text;
}

bool TableSpec::LeavesOut(const float* weights) const {
  if (!skip_zero) return false;
  float sum = 0.0f;
  for (int i = 0; i < dim_; ++i) sum += weights[i] * weights[i];
  return sum < std::numeric_limits<float>::min();
}

uint64_t DigestOf(const std::string& text) {
  uint64_t digest = 0xcbf29ce484222325ull;
  for (const unsigned char byte : text) digest = (digest ^ byte) * 0x100000001b3ull;
  return digest;
}

void TableSpec::SetWideSlots(std::span<const int32_t> numbers) {
  const bool ascend = std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>()) == numbers.end();
  if (!ascend || numbers.size() > kMaxWideSlots ||
      (!numbers.empty() && (numbers.front() < 0 || numbers.back() >= kNumSlots))) {
    throw Error(Code::kInvalidArgument, "table '" + name +
                                            "': wide slots must be ascending numbers of slots, at most " +
                                            std::to_string(kMaxWideSlots) + ", got " + std::to_string(numbers.size()));
  }
  wide_slots_.assign(numbers.begin(), numbers.end());
}

uint64_t TableSpec::CountedHash(uint64_t hash, int64_t key) const {
  if (wide_slots_.empty() || !IsWideKey(key)) return Combine(hash, DigestOf(name));
  const uint64_t of_slot =
      Combine((hash & ~kBelowBucket) | (static_cast<uint64_t>(key) & kBelowBucket), SlotOfKey(key));
  return Combine(of_slot, DigestOf(name));
}

uint64_t TableSpec::RowSeed(int64_t key) const {
  if (wide_slots_.empty() || !IsWideKey(key)) return RowSeedOf(seed, key);
  return RowSeedOfWide(seed, key, SlotOfKey(key));
}

void TableSpec::InitPayload(int64_t id, std::byte* payload) const {
  const size_t bytes = row_bytes() - sizeof(RowHeader), written = serving ? 0 : training_payload_bytes();
  if (written != bytes) std::memset(payload + written, 0, bytes - written);
  if (serving) return;
  const uint64_t row_seed = RowSeed(id);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = segments_[i];
    auto* weights = reinterpret_cast<float*>(payload);
    segment.initializer->Fill(FirstWeightsSeedOf(row_seed, i), weights + segment.first_dim, segment.dim);
    segment.optimizer->InitState(payload + segment.state_offset);
  }
}

void TableSpec::ReadWeights(const std::byte* payload, float* weights, int64_t step) const {
  if (serving) return Decompress(payload, weights);
  const auto* stored = reinterpret_cast<const float*>(payload);
  for (const Segment& segment : segments_) {
    if (segment.compressor->quantises_training()) {
      segment.compressor->Retrieve(stored + segment.first_dim, weights + segment.first_dim, segment.dim, step);
    } else {
      std::memcpy(weights + segment.first_dim, stored + segment.first_dim, sizeof(float) * segment.dim);
    }
  }
}

void TableSpec::Compress(const float* weights, std::byte* bytes) const {
  for (const Segment& segment : segments_) {
    segment.compressor->Encode(weights + segment.first_dim, bytes + segment.compressed_offset, segment.dim);
  }
}

void TableSpec::Decompress(const std::byte* bytes, float* weights) const {
  for (const Segment& segment : segments_) {
    segment.compressor->Decode(bytes + segment.compressed_offset, weights + segment.first_dim, segment.dim);
  }
}

}  // namespace monolith
