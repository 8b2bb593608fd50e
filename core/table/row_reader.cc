#include "table/row_reader.h"

#include "table/row_copy.h"

namespace monolith {

void RowReader::Flush() {
  if (count_ == 0) return;
  if constexpr (kReadersLock) {
    for (int i = 0; i < count_; ++i) ReadLocked(probes_[i]);
  } else {
    ReadFence();  // versions and views were read before everything that follows
    FindLines();
    GuessRows();
    CopyRows();
    ReadFence();  // and everything was read before the versions are looked at again
    RepeatDisturbed();
  }
  for (int i = 0; i < count_; ++i) hits_ += probes_[i].row != kNoRow;
  count_ = 0;
}

void RowReader::FindLines() {
  for (int i = 0; i < count_; ++i) {
    Probe& probe = probes_[i];
    probe.line = probe.view == nullptr ? nullptr : probe.view->Line(probe.view->HomeOf(probe.hash));
    if (probe.line != nullptr) __builtin_prefetch(probe.line);
  }
}

void RowReader::GuessRows() {
  for (int i = 0; i < count_; ++i) {
    Probe& probe = probes_[i];
    probe.row = kNoRow;
    if (probe.line == nullptr) continue;
    const TagMatches matches = MatchTags(*probe.line, RowIndex::TagOf(probe.hash));
    if (!matches.any()) continue;
    probe.row = probe.line->rows[matches.first()];
    if (const std::byte* record = probe.table->rows.At(probe.row); record != nullptr) {
      __builtin_prefetch(record);
      __builtin_prefetch(record + 64);
    }
  }
}

uint32_t RowReader::SettleGuess(const Probe& probe) const {
  if (probe.line == nullptr) return kNoRow;
  if (probe.row == kNoRow) {
    if (probe.line->passed == 0) return kNoRow;
  } else if (TableShard::Holds(probe.table->rows, probe.row, probe.id)) {
    return probe.row;
  }
  return RowIndex::Find(probe.view, probe.hash,
                        [&](uint32_t row) { return TableShard::Holds(probe.table->rows, row, probe.id); });
}

void RowReader::CopyRows() {
  for (int i = 0; i < count_; ++i) {
    Probe& probe = probes_[i];
    probe.row = SettleGuess(probe);
    Take(probe);
  }
}

void RowReader::Take(const Probe& probe) const {
  const TableSpec& spec = probe.table->spec;
  if (probe.row == kNoRow) {
    ZeroFloats(probe.weights, spec.dim());
  } else {
    const std::byte* payload = PayloadOf(probe.table->rows.AtAllocated(probe.row));
    if (spec.serving || spec.quantises_training()) {
      spec.ReadWeights(payload, probe.weights, step_);
    } else {
      CopyFloats(probe.weights, reinterpret_cast<const float*>(payload), spec.dim());
    }
  }
  if (probe.hint != nullptr) *probe.hint = probe.row;
}

void RowReader::RepeatDisturbed() {
  for (int i = 0; i < count_; ++i) {
    Probe& probe = probes_[i];
    const uint32_t version = buckets_[BucketOfHash(probe.hash)].lock.Version();
    if (version != probe.version || !BucketLock::IsStable(version)) [[unlikely]] ReadLocked(probe);
  }
}

void RowReader::ReadLocked(Probe& probe) {
  const uint32_t number = BucketOfHash(probe.hash);
  BucketGuard guard(buckets_[number].lock, Access::kReads);
  probe.row = probe.table->shards[number].Find(probe.table->rows, probe.hash, probe.id);
  Take(probe);
}

}  // namespace monolith
