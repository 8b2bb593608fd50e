// DeviceGroup's calls that change rows, other than updates: by the host group where they are rare, by kernels where
// they go over all rows.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "device/device_group.h"
#include "device/prefix_sums.h"
#include "table/loader.h"

namespace monolith::device {
namespace {

constexpr int64_t kRowsOfPiece = 1 << 16;  // of blocks that are loaded at a time, about
constexpr uint32_t kBucketsOfPiece = 32;   // of a snapshot

// Scratch memory, at most, that moving rows to the host group and from it takes: keys, buckets, row numbers,
// and the records.
size_t BytesToMove(size_t count, const RecordLayout& layout) {
  return count * (48 + layout.record_bytes) + 32 * Scratch::kBoundary;
}

}  // namespace

void DeviceGroup::MoveToHost(int table, const Plan& plan) {
  Begin();
  const auto number = static_cast<uint32_t>(table);
  std::vector<int32_t> cells(static_cast<size_t>(plan.num_unique()));  // buckets, as there is one table
  for (size_t bucket = 0; bucket < kNumBuckets; ++bucket) {
    std::fill(cells.begin() + plan.splits[bucket], cells.begin() + plan.splits[bucket + 1],
              static_cast<int32_t>(bucket));
  }
  std::vector<uint32_t> found(cells.size());
  auto* found_on_device = scratch_.Take<uint32_t>(found.size());
  const std::span<const int64_t> keys(plan.unique.data(), plan.unique.size());
  const DistinctIds ids{static_cast<uint32_t>(keys.size()), 1, scratch_.Upload(keys, config_.stream),
                        scratch_.Upload(std::span<const int32_t>(cells), config_.stream)};
  Launch(ids.count, FindRows{ids, TablesNow(number), found_on_device});
  CopyToHost(found.data(), found_on_device, found.size());
  Wait();
  found.erase(std::remove(found.begin(), found.end(), kNoRow), found.end());
  if (found.empty()) return;
  const auto count = static_cast<uint32_t>(found.size());
  const RecordLayout layout = RecordLayoutOf(SpecOf(number));
  const uint32_t* rows = scratch_.Upload(std::span<const uint32_t>(found), config_.stream);
  auto* bytes = scratch_.Take<std::byte>(size_t{count} * layout.record_bytes);
  const uint32_t lane_bits = LaneBitsForRecord(layout.record_bytes);
  const PackRecords pack{TablesNow(), RowsOfTable(number, rows, count), {layout, bytes}, lane_bits};
  Launch(pack.NumThreads(), pack);
  std::vector<std::byte> records(size_t{count} * layout.record_bytes);
  CopyToHost(records.data(), bytes, records.size());
  const std::vector<uint16_t> buckets = EraseRows(PrepareErase(table, rows, count));
  for (uint32_t i = 0; i < count; ++i) {
    const std::byte* record = records.data() + size_t{i} * layout.record_bytes;
    host_.PutRow(table, buckets[i], *HeaderOf(record), PayloadOf(record));
  }
}

int64_t DeviceGroup::MoveFromHost(int table, uint32_t begin, uint32_t end) {
  const auto number = static_cast<uint32_t>(table);
  const RecordLayout layout = RecordLayoutOf(SpecOf(number));
  std::vector<int64_t> keys;
  std::vector<int32_t> cells;
  std::vector<std::byte> records;
  host_.TakeRows(table, begin, end, [&](uint32_t bucket, const std::byte* record) {
    keys.push_back(HeaderOf(record)->key);
    cells.push_back(static_cast<int32_t>(bucket));
    records.insert(records.end(), record, record + layout.record_bytes);
  });
  const auto count = static_cast<uint32_t>(keys.size());
  if (count == 0) return 0;
  Begin();
  tables_[number]->Reserve(number, TablesNow(), count);
  const DistinctIds ids{count, 1, scratch_.Upload(std::span<const int64_t>(keys), config_.stream),
                        scratch_.Upload(std::span<const int32_t>(cells), config_.stream)};
  auto* rows = scratch_.Take<uint32_t>(count);
  Launch(count, FindRows{ids, TablesNow(number), rows});
  auto* is_new = scratch_.Take<int32_t>(count);
  Launch(count, FlagMissing{count, rows, is_new});
  InclusiveSums(*launcher_, scratch_, config_.stream, is_new, count, is_new);
  const NewRanks ranks{is_new, nullptr, nullptr};
  const auto* refused = Zeros<uint32_t>(1);
  Launch(count, InsertRows{ids, TablesNow(number), ranks, refused, host_.row_epochs().now, rows});
  Launch(1, CountInserted{ids, TablesNow(number), ranks, refused});
  std::byte* bytes = scratch_.Upload(std::span<const std::byte>(records), config_.stream);
  const StoreRecords store{TablesNow(), RowsOfTable(number, rows, count),      {layout, bytes}, nullptr,
                           nullptr,     LaneBitsForRecord(layout.record_bytes)};
  Launch(store.NumThreads(), store);
  ReadCounters();
  return count;
}

void DeviceGroup::MakeRoomToMove(int table, size_t count) {
  const auto number = static_cast<uint32_t>(table);
  tables_[number]->Reserve(number, TablesNow(), static_cast<uint32_t>(count));
  tables_[number]->ReserveErased(static_cast<uint32_t>(count));
  Begin();
  scratch_.Reserve(BytesToMove(count, RecordLayoutOf(SpecOf(number))));
}

int64_t DeviceGroup::ChangeOnHost(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets,
                                  const std::function<int64_t()>& change) {
  FinishEviction();
  const Plan plan = host_.NewPlanOf(table, ids, true, buckets);
  MakeRoomToMove(table, static_cast<size_t>(plan.num_unique()));
  MoveToHost(table, plan);
  int64_t result = 0;
  try {
    result = change();
  } catch (...) {
    MoveFromHost(table, 0, kNumBuckets);
    throw;
  }
  MoveFromHost(table, 0, kNumBuckets);
  return result;
}

int64_t DeviceGroup::Assign(int table, std::span<const int64_t> ids, std::span<const float> values,
                            std::span<const int64_t> times, bool add, int64_t step, std::span<const uint16_t> buckets) {
  MutexLock lock(mutex_);
  const int64_t written =
      ChangeOnHost(table, ids, buckets, [&] { return host_.Assign(table, ids, values, times, add, step, buckets); });
  evicts_from_ = host_.NewestTime(-1);  // so that the cap alone is due
  EvictDue();
  return written;
}

int64_t DeviceGroup::Erase(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets) {
  MutexLock lock(mutex_);
  return ChangeOnHost(table, ids, buckets, [&] { return host_.Erase(table, ids, buckets); });
}

int64_t DeviceGroup::Touch(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets) {
  MutexLock lock(mutex_);
  return ChangeOnHost(table, ids, buckets, [&] { return host_.Touch(table, ids, buckets); });
}

Loaded DeviceGroup::Load(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end) {
  host_.CheckBlocks(blocks, begin, end, {});
  MutexLock lock(mutex_);
  FinishEviction();
  Loaded loaded;
  size_t first = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    rows += blocks[i].count();
    if (rows < kRowsOfPiece && i + 1 < blocks.size()) continue;
    LoadPiece(blocks.subspan(first, i + 1 - first), begin, end, &loaded);
    first = i + 1;
    rows = 0;
  }
  return loaded;
}

void DeviceGroup::LoadPiece(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end, Loaded* loaded) {
  std::vector<Plan> plans;
  for (int table = 0; table < num_tables(); ++table) {
    std::vector<int64_t> keys;
    std::vector<uint16_t> buckets;
    for (const RowBlockView& block : blocks) {
      const RowBlockHeader& header = block.header();
      const bool is_covered = header.bucket >= begin && header.bucket < end;
      if (!is_covered || header.kind == BlockKind::kFilter || static_cast<int>(header.table) != table) continue;
      for (uint32_t i = 0; i < block.count(); ++i) keys.push_back(block.key(i));
      buckets.resize(keys.size(), static_cast<uint16_t>(header.bucket));
    }
    plans.push_back(host_.NewPlanOf(table, keys, true, buckets));
    MakeRoomToMove(table, static_cast<size_t>(plans.back().num_unique()));
  }
  for (int table = 0; table < num_tables(); ++table) MoveToHost(table, plans[static_cast<size_t>(table)]);
  const Loaded piece = host_.Load(blocks, begin, end, {});
  for (int table = 0; table < num_tables(); ++table) MoveFromHost(table, begin, end);
  loaded->rows += piece.rows;
  loaded->tombstones += piece.tombstones;
  loaded->filters += piece.filters;
  loaded->ignored += piece.ignored;
}

std::vector<int64_t> DeviceGroup::LoadSnapshot(const RestorePlan& plan, TransferProgress* progress) {
  std::vector<int64_t> rows(static_cast<size_t>(num_tables()));
  MutexLock lock(mutex_);
  for (uint32_t begin = plan.begin; begin < plan.end; begin += kBucketsOfPiece) {
    RestorePlan piece = plan;
    piece.begin = begin;
    piece.end = std::min(plan.end, begin + kBucketsOfPiece);
    std::erase_if(piece.files,
                  [&](const SnapshotFileInfo& file) { return file.end <= piece.begin || file.begin >= piece.end; });
    const std::vector<int64_t> loaded = monolith::LoadSnapshot(host_, piece, progress);
    for (size_t t = 0; t < rows.size(); ++t) {
      rows[t] += loaded[t];
      MakeRoomToMove(static_cast<int>(t), static_cast<size_t>(loaded[t]));
      MoveFromHost(static_cast<int>(t), piece.begin, piece.end);
    }
  }
  return rows;
}

bool DeviceGroup::IsBlank() {
  MutexLock lock(mutex_);
  return Loader::IsBlank(host_) &&
         std::all_of(tables_.begin(), tables_.end(), [](const auto& table) { return table->size() == 0; });
}

void DeviceGroup::Resume(std::span<const BatchStamp> stamps) {
  MutexLock lock(mutex_);
  host_.Resume(stamps);
}

void DeviceGroup::ClearBuckets(uint32_t begin, uint32_t end) {
  MutexLock lock(mutex_);
  FinishEviction();
  Begin();
  const bool all = begin == 0 && end == kNumBuckets;
  std::vector<DeviceTable::EmptyIndex> indices;
  std::vector<Erasure> erasures;
  if (all) indices = NewIndices();
  for (int table = 0; !all && table < num_tables(); ++table) {
    const Listing rows = ListRows(static_cast<uint32_t>(table), {0, UINT32_MAX, begin, end, {}, false, {}});
    erasures.push_back(PrepareErase(table, rows.numbers, rows.count));
  }
  const Group::RowEpochs before = host_.row_epochs();
  host_.ClearBuckets(begin, end);  // throws while a cut is open
  FollowEpochBase(before);
  if (all) return CreateTables(std::move(indices));
  for (const Erasure& erasure : erasures) EraseRows(erasure);
}

DeviceGroup::Erasure DeviceGroup::PrepareErase(int table, const uint32_t* rows, uint32_t count) {
  const auto number = static_cast<uint32_t>(table);
  if (count == 0) return {number, 0, nullptr, nullptr, nullptr};
  tables_[number]->ReserveErased(count);
  auto* keys = scratch_.Take<int64_t>(count);
  return {number, count, rows, keys, scratch_.Take<uint16_t>(count)};
}

std::vector<uint16_t> DeviceGroup::EraseRows(const Erasure& erasure, std::vector<int64_t>* keys) {
  if (erasure.count == 0) return {};
  const EraseListed erase{TablesNow(), RowsOfTable(erasure.table, erasure.rows, erasure.count), erasure.keys,
                          erasure.buckets};
  Launch(erase.NumThreads(), erase);
  std::vector<uint16_t> host_buckets(erasure.count);
  CopyToHost(host_buckets.data(), erasure.buckets, erasure.count);
  if (keys != nullptr) {
    keys->resize(erasure.count);
    CopyToHost(keys->data(), erasure.keys, erasure.count);
  }
  ReadCounters();
  return host_buckets;
}

int64_t DeviceGroup::Evict(int table, int64_t now) {
  if (table != -1) host_.table(table);
  if (now < -1 || now >= (int64_t{1} << 32)) {
    throw Error(Code::kInvalidArgument, "now must be Unix seconds in [0, 2^32), got " + std::to_string(now));
  }
  MutexLock lock(mutex_);
  FinishEviction();
  int64_t evicted = 0;
  for (int t = 0; t < num_tables(); ++t) {
    if (table == -1 || t == table) evicted += EvictExpired(t, now == -1 ? host_.NewestTime(t) : now, {});
  }
  return evicted;
}

int64_t DeviceGroup::EvictExpired(int table, int64_t now, std::span<const uint32_t> buckets) {
  const auto number = static_cast<uint32_t>(table);
  const uint32_t num_rows = tables_[number]->num_numbers();
  if (num_rows == 0) return 0;
  Begin();
  std::vector<uint32_t> bits(buckets.empty() ? 0 : kNumBuckets / 32);
  for (const uint32_t bucket : buckets) bits[bucket / 32] |= 1u << bucket % 32;
  const BucketSet due{bits.empty() ? nullptr : scratch_.Upload(std::span<const uint32_t>(bits), config_.stream)};
  const OpenList list{num_rows, Zeros<uint32_t>(1), scratch_.Take<uint32_t>(num_rows)};
  const FlagExpired flag{TablesNow(), number, num_rows, due, ExpiryOf(number, now), list};
  Launch(flag.NumThreads(), flag);
  return RemoveListed(table, list);
}

Expiry DeviceGroup::ExpiryOf(uint32_t table, int64_t now) {
  const TableSpec& spec = SpecOf(table);
  const KeySlots slots{spec.wide_slots().empty()
                           ? nullptr
                           : scratch_.Upload(std::span<const int32_t>(spec.wide_slots()), config_.stream),
                       static_cast<uint32_t>(spec.wide_slots().size())};
  if (spec.expire_days.is_uniform()) return {now, spec.expire_days.Of(kNumSlots), nullptr, slots};
  std::vector<uint32_t> days;
  for (uint32_t slot = 0; slot <= kNumSlots; ++slot) days.push_back(spec.expire_days.Of(slot));
  return {now, 0, scratch_.Upload(std::span<const uint32_t>(days), config_.stream), slots};
}

// The score below which fewer than `*rank` rows lie; *rank becomes the number of rows of exactly that score that make
// up the rest.
uint32_t DeviceGroup::ScoreAtRank(uint32_t table, int64_t* rank) {
  const bool by_frequency = SpecOf(table).cap_eviction == CapEviction::kLeastFrequentlyUsed;
  uint32_t halves[2] = {};
  for (int half = 0; half < 2; ++half) {
    auto* counts = Zeros<uint32_t>(kNumHalfScores);
    const CountScores count{
        TablesNow(), table, tables_[table]->num_numbers(), by_frequency, half == 0 ? kAllHalves : halves[0], counts};
    Launch(count.NumThreads(), count);
    std::vector<uint32_t> of_scores(kNumHalfScores);
    CopyToHost(of_scores.data(), counts, of_scores.size());
    Wait();
    uint32_t& score = halves[half];
    while (score + 1 < kNumHalfScores && *rank > of_scores[score]) *rank -= of_scores[score++];
  }
  return halves[0] << 16 | halves[1];
}

void DeviceGroup::EnforceCap(int table) {
  constexpr int64_t kSlackFrom = 1 << 16;  // as a Group, from this cap on evict a few more rows at a time than required
  const auto number = static_cast<uint32_t>(table);
  const TableSpec& spec = SpecOf(number);
  const auto cap = static_cast<int64_t>(spec.max_rows), size = int64_t{tables_[number]->size()};
  if (cap == 0 || size <= cap) return;
  Begin();
  int64_t rank = size - cap + (cap >= kSlackFrom ? cap / 64 : 0);
  const uint32_t score = ScoreAtRank(number, &rank);
  const uint32_t num_rows = tables_[number]->num_numbers();
  const OpenList list{num_rows, Zeros<uint32_t>(1), scratch_.Take<uint32_t>(num_rows)};
  const bool by_frequency = spec.cap_eviction == CapEviction::kLeastFrequentlyUsed;
  const ListBelowScore below{TablesNow(),        number, num_rows, by_frequency, score, static_cast<uint32_t>(rank),
                             Zeros<uint32_t>(1), list};
  Launch(below.NumThreads(), below);
  RemoveListed(table, list);
}

int64_t DeviceGroup::RemoveListed(int table, const OpenList& list) {
  uint32_t count = 0;
  CopyToHost(&count, list.used, 1);
  Wait();
  if (count == 0) return 0;
  std::vector<uint32_t> rows_of_tables(tables_.size());
  rows_of_tables[static_cast<size_t>(table)] = count;
  const Erasure erasure = PrepareErase(table, list.items, count);
  images_.MakeRoom(rows_of_tables);
  images_.Keep(scratch_, TablesNow(), RowsOfTable(static_cast<uint32_t>(table), list.items, count), nullptr);
  std::vector<int64_t> keys;
  const std::vector<uint16_t> buckets = EraseRows(erasure, &keys);
  host_.Touch(table, keys, buckets);  // of ids that it does not have: it records their removal
  host_.CountEvicted(table, count);
  return count;
}

std::map<uint32_t, int64_t> DeviceGroup::RowsBySlot(int table) {
  host_.table(table);  // throws for a number that is not a table's
  MutexLock lock(mutex_);
  FinishEviction();
  Begin();
  const auto number = static_cast<uint32_t>(table);
  auto* counts = Zeros<uint32_t>(kNumSlots + 1);
  const CountBySlot count{TablesNow(), number, tables_[number]->num_numbers(), ExpiryOf(number, 0).slots, counts};
  Launch(count.NumThreads(), count);
  std::vector<uint32_t> of_slots(kNumSlots + 1);
  CopyToHost(of_slots.data(), counts, of_slots.size());
  Wait();
  std::map<uint32_t, int64_t> found;
  for (uint32_t slot = 0; slot < of_slots.size(); ++slot) {
    if (of_slots[slot] != 0) found[slot] = of_slots[slot];
  }
  return found;
}

TableStats DeviceGroup::Stats(int table) {
  TableStats stats = host_.Stats(table);
  MutexLock lock(mutex_);
  const DeviceTable& rows = *tables_[static_cast<size_t>(table)];
  stats.rows = rows.size();
  stats.row_bytes = rows.chunk_bytes();
  stats.index_bytes = rows.index_bytes();
  stats.other_bytes += rows.other_bytes();
  stats.index_load = rows.index_load();
  if (stats.rows > 0) {
    const double all = static_cast<double>(stats.row_bytes + stats.index_bytes + stats.other_bytes);
    stats.overhead_per_id = all / static_cast<double>(stats.rows) - SpecOf(static_cast<size_t>(table)).payload_bytes();
  }
  return stats;
}

}  // namespace monolith::device
