// A plan of the core, copied to a device.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device_group.h"
#include "device/device_memory.h"
#include "table/plan.h"

namespace monolith::device {

class UploadedPlan {
 public:
  // `dims` of the group's tables.
  UploadedPlan(Launcher& launcher, const Plan& host, const std::vector<int>& dims)
      : keys_(launcher, host.unique.size()),
        cells_(launcher, host.unique.size()),
        splits_(launcher, host.splits.size()),
        inverse_(launcher, host.inverse.size()),
        counts_(launcher, host.unique.size()),
        offsets_(launcher, host.unique.size()),
        rows_(launcher, host.unique.size()) {
    const auto num_tables = static_cast<uint32_t>(host.num_tables);
    std::vector<int32_t> cells, counts;
    std::vector<int64_t> offsets;
    int64_t offset = 0;
    plan.table_splits = host.table_splits;
    plan.num_ids.resize(num_tables);
    for (uint32_t cell = 0; cell + 1 < host.splits.size(); ++cell) {
      for (int64_t u = host.splits[cell]; u < host.splits[cell + 1]; ++u) {
        cells.push_back(static_cast<int32_t>(cell));
        counts.push_back(host.CountOf(u));
        offsets.push_back(offset);
        offset += dims[cell % num_tables];
        ++plan.num_ids[cell % num_tables];
      }
    }
    const auto copy = [&](const auto& array, const auto& from) {
      launcher.Copy(array.data(), from.data(), from.size() * sizeof(*from.data()), {});
    };
    copy(keys_, host.unique);
    copy(cells_, cells);
    copy(splits_, host.splits);
    copy(inverse_, host.inverse);
    copy(counts_, counts);
    copy(offsets_, offsets);
    plan.keys = keys_.data();
    plan.cells = cells_.data();
    plan.splits = splits_.data();
    plan.inverse = inverse_.data();
    plan.counts = counts_.data();
    plan.offsets = num_tables == 1 ? nullptr : offsets_.data();
    plan.rows = rows_.data();
  }

  DevicePlan plan;

 private:
  DeviceArray<int64_t> keys_;
  DeviceArray<int32_t> cells_;
  DeviceArray<int64_t> splits_;
  DeviceArray<int32_t> inverse_;
  DeviceArray<int32_t> counts_;
  DeviceArray<int64_t> offsets_;
  DeviceArray<uint32_t> rows_;
};

}  // namespace monolith::device
