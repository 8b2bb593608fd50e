// Lock-free lookups of rows.
//
// While no call writes, most rows of a table are found and copied by the fast reader (table/fast_row_reader.h).
// Otherwise, and for the remaining ids, blocks of rows are found (table/row_finder.h) and copied; then the reader
// checks that no writer changed their buckets meanwhile, and repeats under the lock the few ids for which one did. Used
// by one thread; must not outlive the group it reads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "table/gate.h"
#include "table/row_copy.h"
#include "table/row_finder.h"
#include "table/table.h"

namespace monolith {

// Table to read from and destination.
struct RowWish {
  const Table* table;
  float* weights;  // receives table->spec.dim() floats, zeros for a missing id
};

class RowReader {
 public:
  RowReader(BucketLock* locks, const Gate& gate, int64_t step) : locks_(locks), gate_(gate), step_(step) {}
  RowReader(const RowReader&) = delete;
  RowReader& operator=(const RowReader&) = delete;

  // Reads the rows of `ids` in one table, end to end. `buckets` has those of the ids, and is null when the ids
  // determine them. If `hints` is not null, the row of ids[i], or kNoRow, goes to hints[i]. Returns the number of ids
  // found.
  int64_t ReadTable(const Table& table, std::span<const int64_t> ids, const uint16_t* buckets, float* weights,
                    uint32_t* hints);

  // As ReadTable(), with wish_of(i) returning the table and the destination of ids[i]; it is called in order.
  template <typename WishOf>
  int64_t ReadTables(std::span<const int64_t> ids, const uint16_t* buckets, uint32_t* hints, WishOf&& wish_of) {
    int64_t hits = 0;
    ManyTables tables(Purpose::kReading);
    float* weights[RowFinder::kBlock];
    for (size_t done = 0; done < ids.size(); done += RowFinder::kBlock) {
      finder_.Take(ids.data() + done, buckets == nullptr ? nullptr : buckets + done,
                   static_cast<int>(std::min<size_t>(RowFinder::kBlock, ids.size() - done)));
      for (int i = 0; i < finder_.count(); ++i) {
        const RowWish wish = wish_of(static_cast<int64_t>(done) + i);
        tables.Set(i, wish.table);
        weights[i] = wish.weights;
      }
      hits += ReadBlock(
          tables, hints == nullptr ? nullptr : hints + done, [&weights](int i) { return weights[i]; },
          [&](int i, const std::byte* record) { CopyRow(tables.table(i).spec, record, weights[i]); });
    }
    return hits;
  }

 private:
  // Reads the ids of the finder: copy(i, record) for an id that has a record, zeros at weights_of(i) for the others.
  template <typename Tables, typename WeightsOf, typename Copy>
  int64_t ReadBlock(const Tables& tables, uint32_t* hints, WeightsOf&& weights_of, Copy&& copy);
  // Reads under the lock an id that a writer disturbed, or that was not in the expected row.
  uint32_t ReadAgain(const Table& table, int i, float* weights);
  void CopyRow(const TableSpec& spec, const std::byte* record, float* weights) const {
    if (spec.reads_raw()) [[likely]] {
      CopyFloats(weights, reinterpret_cast<const float*>(PayloadOf(record)), spec.dim());
    } else {
      spec.ReadWeights(PayloadOf(record), weights, step_);
    }
  }
  // Typical row sizes, known to the compiler; 0 = the table's size.
  template <int kDim>
  int64_t ReadTableOf(const Table& table, std::span<const int64_t> ids, const uint16_t* buckets, float* weights,
                      uint32_t* hints);

  struct Request {
    const Table& table;
    const int64_t* ids;
    const uint16_t* buckets;
    float* weights;
    uint32_t* hints;
  };
  // Reads with the fast reader; -1 when it cannot be used, or a write happened meanwhile.
  template <int kDim>
  int64_t ReadFast(const Request& request, int64_t count);
  // Reads one piece of a request, a multiple of the reader's blocks; positions of the ids not found go to `left`.
  template <int kDim, typename Keys>
  static int64_t ReadBlocks(const Request& request, const Keys& keys, int64_t count, int32_t* left);
  // Reads the ids that the fast reader did not find, at `places` of the request. Returns the number of ids found.
  template <int kDim>
  int64_t ReadLeft(const Request& request, std::span<const int32_t> places);

  BucketLock* const locks_;
  const Gate& gate_;
  const int64_t step_;
  RowFinder finder_;
};

template <typename Tables, typename WeightsOf, typename Copy>
[[gnu::always_inline]] inline int64_t RowReader::ReadBlock(const Tables& tables, uint32_t* hints,
                                                           WeightsOf&& weights_of, Copy&& copy) {
  const int count = finder_.count();
  uint32_t versions[RowFinder::kBlock];
  uint32_t rows[RowFinder::kBlock];
  for (int i = 0; i < count; ++i) versions[i] = locks_[finder_.bucket(i)].Version();
  ReadFence();  // the versions are read before everything that follows
  finder_.AskForLines(tables);
  finder_.GuessFromLines(tables);
  finder_.AskForRows(tables);
  int64_t hits = count;
  for (int i = 0; !kReadersLock && i < count; ++i) {
    const std::byte* record = finder_.Settle(tables, i, &rows[i]);
    if (record != nullptr) [[likely]] {
      copy(i, record);
    } else {
      ZeroFloats(weights_of(i), tables.table(i).spec.dim());
      --hits;
    }
  }
  ReadFence();  // everything is read before the versions are checked
  static_assert(RowFinder::kBlock <= 32);
  uint32_t again =
      kReadersLock ? static_cast<uint32_t>((uint64_t{1} << count) - 1) : 0;  // bit i: id i must be read under the lock
  for (int i = 0; !kReadersLock && i < count; ++i) {
    const uint32_t version = locks_[finder_.bucket(i)].Version();
    again |= static_cast<uint32_t>(version != versions[i] || !BucketLock::IsStable(version)) << i;
  }
  for (; again != 0; again &= again - 1) {
    const int i = std::countr_zero(again);
    const uint32_t before = kReadersLock ? 0 : rows[i];
    rows[i] = ReadAgain(tables.table(i), i, weights_of(i));
    hits += static_cast<int>(before == kNoRow) - static_cast<int>(rows[i] == kNoRow);
  }
  if (hints != nullptr) std::copy_n(rows, count, hints);
  return hits;
}

}  // namespace monolith
