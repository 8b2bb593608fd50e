// Writes checked row blocks into a group: the second half of Loader, and the calls of a group that use it.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/thread_pool.h"
#include "table/loader.h"
#include "table/row_finder.h"

namespace monolith {
namespace {

bool HoldsRows(const RowBlockView& block) {
  return block.header().kind == BlockKind::kFull || block.header().kind == BlockKind::kServing;
}

void Count(const RowBlockHeader& block, Loaded* loaded) {
  switch (block.kind) {
    case BlockKind::kFull:
    case BlockKind::kServing: loaded->rows += block.count; break;
    case BlockKind::kTombstone: loaded->tombstones += block.count; break;
    case BlockKind::kFilter: ++loaded->filters; break;
  }
}

// Returns the bounds of tasks in blocks that are ordered by bucket: buckets are not divided, and each task has enough
// bytes to be worth a thread.
std::vector<size_t> TaskBounds(const std::vector<RowBlockView>& blocks) {
  constexpr uint64_t kBytesPerTask = uint64_t{64} << 10;
  std::vector<size_t> bounds = {0};
  uint64_t bytes = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool begins_bucket = i > 0 && blocks[i].header().bucket != blocks[i - 1].header().bucket;
    if (begins_bucket && bytes >= kBytesPerTask) {
      bounds.push_back(i);
      bytes = 0;
    }
    bytes += RowBlockBytes(blocks[i].header());
  }
  bounds.push_back(blocks.size());
  return bounds;
}

}  // namespace

// Some rows of a block in flight: found, and then written. A block without rows is a piece by itself.
struct Loader::Piece {
  const RowBlockView* block = nullptr;  // null: there is none
  bool is_first = false;                // of its block
  uint32_t places[RowFinder::kBlock];   // of its rows in the block
  int64_t keys[RowFinder::kBlock];      // this group's
  uint16_t buckets[RowFinder::kBlock];
  RowFinder finder;
};

// Loads the rows at *next into a piece and advances *next; needs no lock.
void Loader::Ask(std::span<const RowBlockView> blocks, Place* next, Piece* piece) const {
  piece->block = nullptr;
  if (next->block == blocks.size()) return;
  const RowBlockView& block = blocks[next->block];
  piece->block = &block;
  piece->is_first = next->row == 0;
  if (HoldsRows(block)) {
    const Table& table = *group_.tables_[block.header().table];
    const RowMap& map = maps_[table.number];
    const uint32_t end = std::min(block.count(), next->row + RowFinder::kBlock);
    int count = 0;
    for (; next->row < end; ++next->row) {
      piece->keys[count] = block.key(next->row);
      if (!TakesKey(map, &piece->keys[count])) continue;
      piece->places[count] = next->row;
      piece->buckets[count++] = static_cast<uint16_t>(block.header().bucket);
    }
    piece->finder.Take(piece->keys, piece->buckets, count);
    piece->finder.AskForLines(OneTable(table, Purpose::kWriting));
    if (end < block.count()) return;
  }
  *next = {next->block + 1, 0};
}

void Loader::Guess(Piece* piece) const {
  if (piece->block == nullptr || !HoldsRows(*piece->block)) return;
  const OneTable table(*group_.tables_[piece->block->header().table], Purpose::kWriting);
  piece->finder.GuessFromLines(table);
  piece->finder.AskForRows(table);
}

// Three pieces are in flight: the index lines of one arrive, the rows of the one before it arrive, and the one before
// that is written.
int64_t Loader::Write(std::span<const RowBlockView> blocks) {
  Piece pieces[3];
  Piece *asked = &pieces[0], *guessed = &pieces[1], *written = &pieces[2];
  Place next{0, 0};
  int64_t rows = 0;
  do {
    Ask(blocks, &next, asked);
    Guess(guessed);
    if (written->block != nullptr) rows += WritePiece(*written);
    Piece* const done = std::exchange(written, guessed);
    guessed = std::exchange(asked, done);
  } while (guessed->block != nullptr || written->block != nullptr);
  return rows;
}

int64_t Loader::WritePiece(const Piece& piece) {
  switch (piece.block->header().kind) {
    case BlockKind::kFull:
    case BlockKind::kServing: return WriteRows(piece);
    case BlockKind::kTombstone: WriteTombstones(*piece.block); return 0;
    case BlockKind::kFilter: WriteFilter(*piece.block); return 0;
  }
  return 0;
}

int64_t Loader::WriteRows(const Piece& piece) {
  const RowBlockView& block = *piece.block;
  const RowFinder& finder = piece.finder;
  const uint32_t number = block.header().bucket;
  Table& table = *group_.tables_[block.header().table];
  TableShard& shard = table.shards[number];
  const OneTable tables(table, Purpose::kWriting);
  int64_t newest = 0;
  {
    BucketGuard guard(group_.locks_[number], Access::kChanges);
    if (piece.is_first && shard.size() == 0) shard.Reserve(table.rows, number, block.count());
    for (int i = 0; i < finder.count(); ++i) {
      uint32_t row;
      std::byte* record = finder.Settle(tables, i, &row);
      if (table.spec.skip_zero && IsLeftOut(table, block, piece.places[i])) [[unlikely]] {
        if (record != nullptr) group_.EraseRow(number, table, row);
        continue;
      }
      if (record == nullptr) {
        row = shard.Insert(table.rows, number, finder.hash(i), finder.id(i), group_.clock_, finder.HomeLine(table, i));
        record = table.rows.AtAllocated(row);
      } else {
        shard.BeforeChange(record, row, table.rows, group_.clock_);
      }
      WritePayload(table, block, piece.places[i], finder.id(i), PayloadOf(record));
      HeaderOf(record)->time = block.time(piece.places[i]);
      newest = std::max<int64_t>(newest, block.time(piece.places[i]));
    }
  }
  table.RaiseNewestTime(newest);
  return finder.count();
}

bool Loader::IsLeftOut(const Table& table, const RowBlockView& block, uint32_t row) {
  thread_local std::vector<float> weights;
  weights.resize(table.spec.dim());
  if (block.header().kind == BlockKind::kFull) {  // weights come first in a full payload
    std::memcpy(weights.data(), block.payload(row), sizeof(float) * table.spec.dim());
  } else {
    table.spec.Decompress(block.payload(row), weights.data());
  }
  return table.spec.LeavesOut(weights.data());
}

void Loader::WritePayload(const Table& table, const RowBlockView& block, uint32_t row, int64_t key,
                          std::byte* payload) const {
  const TableSpec& spec = table.spec;
  const RowMap& map = maps_[table.number];
  const std::byte* source = block.payload(row);
  const bool full = block.header().kind == BlockKind::kFull;
  if (full && map.identical) {
    std::memcpy(payload, source, spec.payload_bytes());
    return;
  }
  if (full && spec.serving) {  // weights come first in a full payload
    thread_local std::vector<float> weights;
    weights.resize(spec.dim());
    std::memcpy(weights.data(), source, sizeof(float) * spec.dim());
    return spec.Compress(weights.data(), payload);
  }
  if (!full && spec.serving) {
    std::memcpy(payload, source, spec.payload_bytes());
    return;
  }
  spec.InitPayload(key, payload);
  if (!full) return spec.Decompress(source, reinterpret_cast<float*>(payload));
  for (const Copy& copy : map.copies) std::memcpy(payload + copy.to, source + copy.from, copy.bytes);
}

void Loader::WriteTombstones(const RowBlockView& block) {
  const uint32_t number = block.header().bucket;
  Table& table = *group_.tables_[block.header().table];
  BucketGuard guard(group_.locks_[number], Access::kChanges);
  for (uint32_t i = 0; i < block.count(); ++i) {
    int64_t key = block.key(i);
    if (!TakesKey(maps_[table.number], &key)) continue;
    const uint32_t row = table.shards[number].Find(table.rows, HashInBucket(number, key), key);
    if (row != kNoRow) {
      group_.EraseRow(number, table, row);
    } else {
      group_.NoteRemoval(number, table, key);
    }
  }
}

void Loader::WriteFilter(const RowBlockView& block) {
  if (group_.admission_ == nullptr) return;  // the group admits every id: counts have no use
  Bucket& bucket = group_.buckets_[block.header().bucket];
  std::unique_ptr<FilterSlice> filter = group_.admission_->MakeSlice();
  filter->Load(std::string(block.payload_bytes()));
  BucketGuard guard(group_.locks_[block.header().bucket], Access::kChanges);
  group_.BeforeFilterChange(bucket);
  bucket.filter = std::move(filter);
}

void Group::CheckBlocks(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
                        const std::vector<std::string>& source_schemas) {
  const Loader loader(*this, begin, end, source_schemas);
  for (const RowBlockView& block : blocks) {
    if (loader.Covers(block)) loader.Check(block);
  }
}

Loaded Group::Load(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end,
                   const std::vector<std::string>& source_schemas) {
  Loader loader(*this, begin, end, source_schemas);
  Loaded loaded;
  std::vector<RowBlockView> views;
  views.reserve(blocks.size());
  for (const RowBlockView& block : blocks) {
    if (!loader.Covers(block)) {
      loaded.ignored += std::max<int64_t>(1, block.count());
      continue;
    }
    loader.Check(block);
    Count(block.header(), &loaded);
    views.push_back(block);
  }
  const auto is_before = [](const RowBlockView& a, const RowBlockView& b) {
    return a.header().bucket < b.header().bucket;
  };
  if (!std::is_sorted(views.begin(), views.end(), is_before)) {
    std::stable_sort(views.begin(), views.end(), is_before);
  }
  const std::vector<size_t> bounds = TaskBounds(views);
  ParallelFor(static_cast<int>(bounds.size()) - 1,
              [&](int task) { loader.Write(std::span(views).subspan(bounds[task], bounds[task + 1] - bounds[task])); });
  return loaded;
}

}  // namespace monolith
