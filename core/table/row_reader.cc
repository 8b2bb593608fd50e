#include "table/row_reader.h"

#include "table/fast_row_reader.h"

namespace monolith {

int64_t RowReader::ReadTable(const Table& table, std::span<const int64_t> ids, const uint16_t* buckets, float* weights,
                             uint32_t* hints) {
  const int dim = table.spec.reads_raw() ? table.spec.dim() : 0;
  if (dim == 8) return ReadTableOf<8>(table, ids, buckets, weights, hints);
  if (dim == 16) return ReadTableOf<16>(table, ids, buckets, weights, hints);
  if (dim == 32) return ReadTableOf<32>(table, ids, buckets, weights, hints);
  if (dim == 64) return ReadTableOf<64>(table, ids, buckets, weights, hints);
  return ReadTableOf<0>(table, ids, buckets, weights, hints);
}

template <int kDim>
int64_t RowReader::ReadTableOf(const Table& table, std::span<const int64_t> ids, const uint16_t* buckets,
                               float* weights, uint32_t* hints) {
  if constexpr (kDim != 0) {
    const int64_t hits = ReadFast<kDim>({table, ids.data(), buckets, weights, hints}, static_cast<int64_t>(ids.size()));
    if (hits >= 0) return hits;
  }
  const OneTable one(table, Purpose::kReading);
  const int64_t dim = kDim != 0 ? kDim : table.spec.dim();
  int64_t hits = 0;
  for (size_t done = 0; done < ids.size(); done += RowFinder::kBlock) {
    finder_.Take(ids.data() + done, buckets == nullptr ? nullptr : buckets + done,
                 static_cast<int>(std::min<size_t>(RowFinder::kBlock, ids.size() - done)));
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
int64_t RowReader::ReadFast(const Request& request, int64_t count) {
  using Fast = FastRowReader<kDim>;
  constexpr int64_t kMost = 4096;  // ids at a time
  const uint64_t writes = gate_.Writes();
  if (kReadersLock || count < Fast::kBlock || !Gate::IsNobodyWriting(writes)) return -1;
  const uint32_t bucket = request.buckets == nullptr ? BucketOf(request.ids[0]) : request.buckets[0];
  if (!Fast(request.table).Suits(bucket)) return -1;
  ReadFence();  // the absence of writers is checked before everything that follows
  int32_t left[kMost];
  int64_t hits = count;
  for (int64_t first = 0; first < count; first += kMost) {
    const int64_t size = std::min(kMost, count - first), whole = size - size % Fast::kBlock;
    const Request some{request.table, request.ids + first,
                       request.buckets == nullptr ? nullptr : request.buckets + first, request.weights + first * kDim,
                       request.hints == nullptr ? nullptr : request.hints + first};
    int64_t num_left = 0;
    if (whole > 0) {
      num_left = some.buckets == nullptr ? ReadBlocks<kDim>(some, PlainKeys{some.ids}, whole, left)
                                         : ReadBlocks<kDim>(some, BucketedKeys{some.ids, some.buckets}, whole, left);
    }
    for (int64_t i = whole; i < size; ++i) left[num_left++] = static_cast<int32_t>(i);  // ids that fill no block
    hits -= num_left - ReadLeft<kDim>(some, {left, static_cast<size_t>(num_left)});
  }
  ReadFence();  // everything is read before the second check
  return gate_.Writes() == writes ? hits : -1;
}

template <int kDim, typename Keys>
int64_t RowReader::ReadBlocks(const Request& request, const Keys& keys, int64_t count, int32_t* left) {
  const FastRowReader<kDim> fast(request.table);
  return request.hints == nullptr ? fast.template Read<false>(keys, count, request.weights, nullptr, left)
                                  : fast.template Read<true>(keys, count, request.weights, request.hints, left);
}

template <int kDim>
int64_t RowReader::ReadLeft(const Request& request, std::span<const int32_t> places) {
  const OneTable one(request.table, Purpose::kReading);
  int64_t ids[RowFinder::kBlock];
  uint16_t buckets[RowFinder::kBlock];
  int64_t hits = 0;
  for (size_t done = 0; done < places.size(); done += RowFinder::kBlock) {
    const auto count = static_cast<int>(std::min<size_t>(RowFinder::kBlock, places.size() - done));
    for (int k = 0; k < count; ++k) ids[k] = request.ids[places[done + k]];
    for (int k = 0; request.buckets != nullptr && k < count; ++k) buckets[k] = request.buckets[places[done + k]];
    finder_.Take(ids, request.buckets == nullptr ? nullptr : buckets, count);
    finder_.AskForLines(one);
    finder_.GuessFromLines(one);
    finder_.AskForRows(one);
    for (int k = 0; k < count; ++k) {
      const int32_t i = places[done + k];
      uint32_t row;
      const std::byte* record = finder_.Settle(one, k, &row);
      if (request.hints != nullptr) request.hints[i] = row;
      float* to = request.weights + int64_t{i} * kDim;
      hits += record != nullptr;
      record == nullptr ? ZeroFloats(to, kDim) : CopyPiece<kDim>(to, reinterpret_cast<const float*>(PayloadOf(record)));
    }
  }
  return hits;
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
