// Tables whose rows are on a device; everything else of them is in a Group, the host group.
//
// The host group has the schema, the stamps of workers, marks and epochs, tombstones, admission filters and newest
// times, but no rows. The device has headers, payloads and an index for each table (device/device_table.h). Lookups and
// updates are kernels. Calls that are rare (assigning, erasing, loading) move the rows that they need to the host
// group, let it do its work, and move the rows back: what such a call does to a row is written once.
//
// Calls take complete batches and are thread-safe: one at a time launches its kernels, all in one stream, so that their
// order is that of the calls. The results are bit for bit those of a Group. Memory of the device is taken as tables
// grow; an error for lack of it changes no row, and the call can be repeated. An Evict of several tables, or a Load of
// many blocks, may have done a part of its work by then, which it does not do again.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/forks.h"
#include "base/mutex.h"
#include "device/device_memory.h"
#include "device/device_table.h"
#include "device/launcher.h"
#include "device/row_images.h"
#include "device/segment_rules.h"
#include "snapshot/restore.h"
#include "table/cut.h"
#include "table/group.h"

namespace monolith::device {

struct DeviceGroupConfig {
  Stream stream;  // of all launches
  TableSizes sizes;
};

// The distinct ids of a batch, in plan order (table/plan.h), and their occurrences; arrays are in device memory, and
// belong to the caller. Constant but for the rows, which reads leave for the update that follows.
struct DevicePlan {
  std::vector<int64_t> table_splits;  // as in Plan
  std::vector<uint32_t> num_ids;      // distinct ids of each table
  const int64_t* keys = nullptr;
  const int32_t* cells = nullptr;    // of each key: bucket * tables + table
  const int64_t* splits = nullptr;   // as in Plan
  const int32_t* inverse = nullptr;  // as in Plan
  const int32_t* counts = nullptr;   // occurrences of each key
  const int64_t* offsets = nullptr;  // of the values of each key, in floats; null: there is one table
  uint32_t* rows = nullptr;          // of each key
  bool has_rows = false;             // they were found by a read

  int64_t num_occurrences() const { return table_splits.back(); }
  uint32_t num_unique() const {
    uint32_t count = 0;
    for (const uint32_t of_table : num_ids) count += of_table;
    return count;
  }
};

// One optimizer step; `gradients` and `latest` are in device memory.
struct DeviceUpdate {
  const float* gradients = nullptr;       // sums, in plan order
  const float* latest = nullptr;          // weights that the worker read, laid out as the gradients; null: none
  std::span<const float> learning_rates;  // as in Update
  int64_t step = 0;
  std::span<const int64_t> times;  // one, or one for each input position
  float scale = 1.0f;
  bool known_finite = false;  // the caller checked that the gradients are
};

class DeviceGroup {
 public:
  // The host group has no rows, outlives this object, and is changed through it alone. Throws kInvalidArgument for
  // tables that cannot be on a device.
  DeviceGroup(Group& host, std::shared_ptr<Launcher> launcher, const DeviceGroupConfig& config);
  ~DeviceGroup();
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  Group& host() const { return host_; }

  // Batches. `values` are in device memory; they are written when the stream reaches this call.
  void Read(DevicePlan& plan, float* values, int64_t step);
  // Waits for the device.
  Applied Apply(const DevicePlan& plan, const DeviceUpdate& update, std::span<const Push> pushes);

  // As those of Group.
  int64_t Assign(int table, std::span<const int64_t> ids, std::span<const float> values, std::span<const int64_t> times,
                 bool add, int64_t step, std::span<const uint16_t> buckets);
  int64_t Erase(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets);
  int64_t Touch(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets);
  int64_t Evict(int table, int64_t now);
  void Clear() { ClearBuckets(0, kNumBuckets); }
  void ClearBuckets(uint32_t begin, uint32_t end);
  Loaded Load(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end);
  std::vector<int64_t> LoadSnapshot(const RestorePlan& plan, TransferProgress* progress);
  bool IsBlank();
  void Resume(std::span<const BatchStamp> stamps);

  // History, as that of Group.
  uint64_t Mark();
  std::unique_ptr<BlockSource> Changes(uint64_t since, uint32_t begin, uint32_t end, bool state);
  std::vector<std::string> PackedChanges(uint64_t since, uint32_t begin, uint32_t end, bool state);
  std::unique_ptr<Cut> OpenCut();

  std::map<uint32_t, int64_t> RowsBySlot(int table);
  TableStats Stats(int table);

 private:
  friend class DeviceChangeSource;
  friend class DeviceCut;
  friend class DeviceCutSource;

  // A plan as the kernels of this group take it.
  struct Batch {
    const DevicePlan& given;
    RowsOfPlan plan;
    uint64_t num_values;  // floats
  };
  // Numbers of rows or of images on the device, those of each bucket end to end.
  struct Listing {
    uint32_t count = 0;
    uint32_t* numbers = nullptr;
    std::vector<uint32_t> starts;  // of each bucket, and the end
  };
  // Records of some rows of a table, those of each bucket end to end.
  struct CopiedRows {
    uint32_t table;
    std::vector<uint32_t> starts;
    std::vector<std::byte> records;
  };
  using RowCopy = std::vector<CopiedRows>;
  struct Erasure {
    uint32_t table;
    uint32_t count;
    const uint32_t* rows;
    int64_t* keys;
    uint16_t* buckets;
  };
  // Counters of an update on the device.
  struct Outcome {
    uint32_t refused;
    uint32_t first_refused;
    UpdateCounts counts;
  };

  // Forks wait for the call in progress, and a child has the mutex for itself.
  class ForkRest final : AtRestInForks {
   public:
    explicit ForkRest(Mutex& mutex) : AtRestInForks(Kind::kOuterCalls), mutex_(mutex) {}

   private:
    void Rest() override ACQUIRE(mutex_) { mutex_.Lock(); }
    void GoOnInParent() override RELEASE(mutex_) { mutex_.Unlock(); }
    void GoOnInChild() override RELEASE(mutex_) { mutex_.Unlock(); }

    Mutex& mutex_;
  };

  template <typename Kernel>
  void Launch(uint64_t num_threads, const Kernel& kernel) {
    launcher_->Launch(num_threads, kernel, config_.stream);
  }
  template <typename T>
  void CopyToHost(T* to, const T* from, size_t count) {
    launcher_->Copy(to, from, count * sizeof(T), config_.stream);
  }
  void Wait() { launcher_->Wait(config_.stream); }
  template <typename T>
  T* Zeros(size_t count) REQUIRES(mutex_) {
    static_assert(sizeof(T) % sizeof(uint32_t) == 0);
    T* memory = scratch_.Take<T>(count);
    launcher_->Fill(reinterpret_cast<uint32_t*>(memory), 0, count * sizeof(T) / sizeof(uint32_t), config_.stream);
    return memory;
  }
  const TableSpec& SpecOf(size_t table) const { return host_.table(static_cast<int>(table)).spec; }
  int num_tables() const { return host_.num_tables(); }

  // Puts empty tables in place of those that there are. Allocates nothing.
  void CreateTables(std::vector<DeviceTable::EmptyIndex> indices) REQUIRES(mutex_);
  std::vector<DeviceTable::EmptyIndex> NewIndices() REQUIRES(mutex_);
  // Begins a call: what the last one took of the scratch memory is free.
  void Begin() REQUIRES(mutex_) { scratch_.Reset(); }
  // The tables as kernels see them now, from `first` on.
  Tables TablesNow(uint32_t first = 0) REQUIRES(mutex_);
  // Reads the counters of all tables back, which waits for the device.
  void ReadCounters() REQUIRES(mutex_);
  // Renumbers the epochs of rows if the host group has moved the base of its own since.
  void FollowEpochBase(const Group::RowEpochs& before) REQUIRES(mutex_);

  Batch BatchOf(const DevicePlan& plan) REQUIRES(mutex_);
  void Gather(const Batch& batch, float* values) REQUIRES(mutex_);
  // Inserts rows for the ids that `is_new` flags, which becomes its prefix sums. REQUIRES: there is room for them.
  NewRanks Insert(const Batch& batch, int32_t* is_new, const uint32_t* refused) REQUIRES(mutex_);

  void CheckUpdate(const DevicePlan& plan, const DeviceUpdate& update) const;
  Applied Learn(const DevicePlan& plan, const DeviceUpdate& update) REQUIRES(mutex_);
  // Returns the gradients times the factor of the update; finds those that are not finite.
  const float* Check(const Batch& batch, const DeviceUpdate& update, int32_t* is_missing, Outcome* outcome)
      REQUIRES(mutex_);
  void Step(const Batch& batch, const DeviceUpdate& update, const float* gradients, const NewRanks& ranks,
            const uint32_t* refused) REQUIRES(mutex_);
  void Stamp(const Batch& batch, std::span<const int64_t> times, const NewRanks& ranks, Outcome* outcome)
      REQUIRES(mutex_);
  int64_t AdmitNew(const Batch& batch, int32_t* is_missing, const Outcome* outcome, int64_t step) REQUIRES(mutex_);
  Outcome ReadOutcome(const Batch& batch, const Outcome* outcome) REQUIRES(mutex_);
  [[noreturn]] void RefuseNonFinite(const Batch& batch, uint32_t place) REQUIRES(mutex_);
  void RaiseNewestTimes(const DevicePlan& plan, std::span<const int64_t> times) REQUIRES(mutex_);
  // Evicts what the last change of rows made due, unless there is too little memory for it now: then the next call
  // does it, or fails before it changes a row.
  void EvictDue() REQUIRES(mutex_);
  void FinishEviction() REQUIRES(mutex_);

  // Moves rows between the device and the host group: those of a plan for one table, or all that the host group has of
  // a table in some buckets, whose number is returned.
  void MoveToHost(int table, const Plan& plan) REQUIRES(mutex_);
  int64_t MoveFromHost(int table, uint32_t begin, uint32_t end) REQUIRES(mutex_);
  // Makes sure that this many rows of a table can be moved to the host group, and as many from it.
  void MakeRoomToMove(int table, size_t count) REQUIRES(mutex_);
  // Calls `change` with the rows of the ids in the host group.
  int64_t ChangeOnHost(int table, std::span<const int64_t> ids, std::span<const uint16_t> buckets,
                       const std::function<int64_t()>& change) REQUIRES(mutex_);
  void LoadPiece(std::span<const RowBlockView> blocks, uint32_t begin, uint32_t end, Loaded* loaded) REQUIRES(mutex_);

  // Takes the memory to erase listed rows without a trace. Erasing them then returns their buckets, and their keys if
  // `keys` is given.
  Erasure PrepareErase(int table, const uint32_t* rows, uint32_t count) REQUIRES(mutex_);
  std::vector<uint16_t> EraseRows(const Erasure& erasure, std::vector<int64_t>* keys = nullptr) REQUIRES(mutex_);
  // Evicts listed rows, whose removal the host group records; returns their number.
  int64_t RemoveListed(int table, const OpenList& list) REQUIRES(mutex_);
  Expiry ExpiryOf(uint32_t table, int64_t now) REQUIRES(mutex_);
  // No buckets: all.
  int64_t EvictExpired(int table, int64_t now, std::span<const uint32_t> buckets) REQUIRES(mutex_);
  void EnforceCap(int table) REQUIRES(mutex_);
  uint32_t ScoreAtRank(uint32_t table, int64_t* rank) REQUIRES(mutex_);

  template <typename MakeCount, typename MakeList>
  Listing ListBy(const MakeCount& make_count, const MakeList& make_list) REQUIRES(mutex_);
  Listing ListRows(uint32_t table, const RowSelection& selection) REQUIRES(mutex_);
  Listing ListImages(uint32_t table, const RowSelection& selection) REQUIRES(mutex_);
  template <typename MakePack>
  void CopyRecords(uint32_t table, Listing listing, const MakePack& make_pack, RowCopy* copied) REQUIRES(mutex_);
  void CopyRows(uint32_t table, const RowSelection& selection, RowCopy* copied) REQUIRES(mutex_);
  void CopyImages(uint32_t table, const RowSelection& selection, RowCopy* copied) REQUIRES(mutex_);
  void WriteBlocks(const RowCopy& copied, uint32_t bucket, bool state, uint64_t epoch,
                   std::vector<std::string>* blocks) const;
  std::deque<std::string> WriteAllBlocks(const RowCopy& copied, uint32_t begin, bool state, uint64_t epoch,
                                         std::vector<std::vector<std::string>> by_bucket) const;
  std::deque<std::string> ReadChanges(uint64_t since, uint32_t begin, uint32_t end, bool state);
  std::deque<std::string> ReadCut(const Cut& cut, uint32_t begin, uint32_t end, const CutOptions& options,
                                  std::span<const std::unique_ptr<BlockSource>> host);
  std::vector<uint64_t> BytesOfChanges(uint64_t since, uint32_t begin, uint32_t end);
  std::vector<uint32_t> CountRows(uint32_t table, const RowSelection& selection) REQUIRES(mutex_);
  void CloseCut(Cut& host);

  Group& host_;
  const std::shared_ptr<Launcher> launcher_;
  const DeviceGroupConfig config_;

  Mutex mutex_;  // held while a call launches its kernels; before any lock of the host group
  const ForkRest fork_rest_{mutex_};
  const SegmentRules rules_;
  const DeviceArray<uint32_t> dims_;  // of all tables
  uint32_t max_dim_ = 0;
  bool dims_have_packs_ = true;              // each is a multiple of four
  const DeviceArray<std::byte> rule_bytes_;  // the copy of rules_.bytes()
  ChunkMemory chunks_ GUARDED_BY(mutex_);
  Scratch scratch_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DeviceTable>> tables_ GUARDED_BY(mutex_);
  DeviceArray<TableView> views_ GUARDED_BY(mutex_);
  DeviceArray<TableCounters> counters_ GUARDED_BY(mutex_);
  RowImages images_ GUARDED_BY(mutex_);
  uint32_t epoch_ GUARDED_BY(mutex_) = 0;                  // of the rows of the update in progress
  std::optional<int64_t> evicts_from_ GUARDED_BY(mutex_);  // the newest time before the change that is to be finished
};

}  // namespace monolith::device
