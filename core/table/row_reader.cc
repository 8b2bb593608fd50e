#include "table/row_reader.h"

#include "table/quiet_lane.h"

namespace monolith {

int64_t RowReader::ReadTable(const Table& table, std::span<const int64_t> ids, float* weights, uint32_t* hints) {
  const int dim = table.spec.reads_raw() ? table.spec.dim() : 0;
  if (dim == 8) return ReadTableOf<8>(table, ids, weights, hints);
  if (dim == 16) return ReadTableOf<16>(table, ids, weights, hints);
  if (dim == 32) return ReadTableOf<32>(table, ids, weights, hints);
  if (dim == 64) return ReadTableOf<64>(table, ids, weights, hints);
  return ReadTableOf<0>(table, ids, weights, hints);
}

template <int kDim>
int64_t RowReader::ReadTableOf(const Table& table, std::span<const int64_t> ids, float* weights, uint32_t* hints) {
  if constexpr (kDim != 0) {
    const int64_t hits = ReadQuietly<kDim>(table, ids, weights, hints);
    if (hits >= 0) return hits;
  }
  const OneTable one(table, Purpose::kReading);
  const int64_t dim = kDim != 0 ? kDim : table.spec.dim();
  int64_t hits = 0;
  for (size_t done = 0; done < ids.size(); done += RowFinder::kBlock) {
    finder_.Take(ids.data() + done, static_cast<int>(std::min<size_t>(RowFinder::kBlock, ids.size() - done)));
    float* block = weights + static_cast<int64_t>(done) * dim;
    const auto weights_of = [=](int i) { return block + i * dim; };
    hits += ReadBlock(one, hints == nullptr ? nullptr : hints + done, weights_of, [&](int i, const std::byte* record) {
      if constexpr (kDim != 0) {
        CopyPiece<kDim>(weights_of(i), reinterpret_cast<const float*>(PayloadOf(record)));
      } else {
        CopyRow(table.spec, record, weights_of(i));
      }
    });
  }
  return hits;
}

template <int kDim>
int64_t RowReader::ReadQuietly(const Table& table, std::span<const int64_t> ids, float* weights, uint32_t* hints) {
  using Lane = QuietLane<kDim>;
  constexpr int64_t kMost = 1024;  // ids at a time
  const auto count = static_cast<int64_t>(ids.size());
  const uint64_t writes = gate_.Writes();
  const Lane lane(table);
  if (kReadersLock || count < Lane::kLeast || !Gate::IsNobodyWriting(writes) || !lane.Suits(ids[0])) return -1;
  ReadFence();  // that nobody wrote was seen before everything that follows
  int32_t left[kMost];
  int64_t left_ids[kMost];
  uint32_t left_rows[kMost];
  int64_t hits = count;
  const int64_t parts = (count + kMost - 1) / kMost;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = count * part / parts, size = count * (part + 1) / parts - first;
    const int64_t* some = ids.data() + first;
    float* place = weights + first * kDim;
    const int64_t num_left = hints == nullptr ? lane.template Read<false>(some, size, place, nullptr, left)
                                              : lane.template Read<true>(some, size, place, hints + first, left);
    for (int64_t k = 0; k < num_left; ++k) left_ids[k] = some[left[k]];
    hits -= num_left - ReadTables({left_ids, static_cast<size_t>(num_left)}, left_rows,
                                  [&](int64_t k) { return RowWish{&table, place + left[k] * kDim}; });
    for (int64_t k = 0; hints != nullptr && k < num_left; ++k) hints[first + left[k]] = left_rows[k];
  }
  ReadFence();  // and everything was read before it is asked again
  return gate_.Writes() == writes ? hits : -1;
}

uint32_t RowReader::ReadAgain(const Table& table, int i, float* weights) {
  BucketGuard guard(locks_[finder_.bucket(i)], Access::kReads);
  const uint32_t row = table.shards[finder_.bucket(i)].Find(table.rows, finder_.hash(i), finder_.id(i));
  if (row == kNoRow) {
    ZeroFloats(weights, table.spec.dim());
  } else {
    CopyRow(table.spec, table.rows.AtAllocated(row), weights);
  }
  return row;
}

}  // namespace monolith
