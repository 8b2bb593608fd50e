#include "table/row_reader.h"

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
