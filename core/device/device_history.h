// The rows of a DeviceGroup as row blocks: changes after a mark, and the open cut.
//
// Some buckets are read at a time: kernels list and pack their rows between two calls of the group, and blocks are made
// of the copy. A source is used by one thread at a time, concurrently with calls of the group.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device/device_group.h"
#include "format/block_source.h"
#include "table/cut.h"

namespace monolith::device {

// Reads the next buckets whenever it has no block left.
class PiecewiseSource : public BlockSource {
 public:
  bool Next(std::string* block) final;

 protected:
  // `bytes` has about how much there is to read of each bucket from `begin` on.
  PiecewiseSource(DeviceGroup& group, uint32_t begin, uint32_t end, std::vector<uint64_t> bytes)
      : group_(group), first_(begin), bucket_(begin), end_(end), bytes_(std::move(bytes)) {}

  // Returns the blocks of buckets [begin, end), in order.
  virtual std::deque<std::string> ReadBuckets(uint32_t begin, uint32_t end) = 0;

  DeviceGroup& group_;

 private:
  // The end of the buckets that are read together.
  uint32_t NextEnd() const;

  const uint32_t first_;
  uint32_t bucket_;
  const uint32_t end_;
  const std::vector<uint64_t> bytes_;
  std::deque<std::string> blocks_;
};

class DeviceChangeSource final : public PiecewiseSource {
 public:
  DeviceChangeSource(DeviceGroup& group, uint64_t since, uint32_t begin, uint32_t end, bool state)
      : PiecewiseSource(group, begin, end, group.BytesOfChanges(since, begin, end)), since_(since), state_(state) {}

 private:
  std::deque<std::string> ReadBuckets(uint32_t begin, uint32_t end) override {
    return group_.ReadChanges(since_, begin, end, state_);
  }

  const uint64_t since_;
  const bool state_;
};

class DeviceCut final : public Cut {
 public:
  // `host` is the cut of the host group, opened at the same time; `counts` are the rows of each table.
  DeviceCut(DeviceGroup& group, std::unique_ptr<Cut> host, std::vector<int64_t> counts);
  ~DeviceCut() override { Release(); }

  std::unique_ptr<BlockSource> Blocks(uint32_t begin, uint32_t end, const CutOptions& options) override;
  void Release() override;

 private:
  DeviceGroup& group_;
  const std::unique_ptr<Cut> host_;
  std::atomic<bool> released_{false};
};

// What the host group has of a cut (filters, removals, rows that were changed there) is read with the rows.
class DeviceCutSource final : public PiecewiseSource {
 public:
  // `host` has a source for each bucket.
  DeviceCutSource(DeviceGroup& group, const Cut& cut, uint32_t begin, uint32_t end, const CutOptions& options,
                  std::vector<std::unique_ptr<BlockSource>> host)
      : PiecewiseSource(group, begin, end, group.BytesOfChanges(options.since.value_or(0), begin, end)),
        cut_(cut),
        begin_(begin),
        options_(options),
        host_(std::move(host)) {}

 private:
  std::deque<std::string> ReadBuckets(uint32_t begin, uint32_t end) override {
    return group_.ReadCut(cut_, begin, end, options_, {host_.data() + (begin - begin_), end - begin});
  }

  const Cut& cut_;
  const uint32_t begin_;
  const CutOptions options_;
  const std::vector<std::unique_ptr<BlockSource>> host_;
};

}  // namespace monolith::device
