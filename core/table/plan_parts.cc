#include "table/plan_parts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/hash.h"
#include "table/id_checks.h"

namespace monolith {
namespace {

constexpr size_t kHeadWords = 3;
static_assert(sizeof(CellCount) == sizeof(int64_t));

size_t CountWords(size_t num_keys) { return (num_keys + 1) / 2; }

int64_t NumWords(const PlanSlice& slice, bool with_counts) {
  if (slice.keys.empty()) return 0;
  return static_cast<int64_t>(kHeadWords + slice.keys.size() + slice.cells.size() +
                              (with_counts ? CountWords(slice.keys.size()) : 0));
}

void WritePart(const Plan& plan, const PlanSlice& slice, bool with_counts, int64_t* to) {
  if (slice.keys.empty()) return;
  *to++ = static_cast<int64_t>(slice.keys.size());
  *to++ = static_cast<int64_t>(slice.cells.size());
  *to++ = with_counts ? 1 : 0;
  to = std::copy(slice.keys.begin(), slice.keys.end(), to);
  std::memcpy(to, slice.cells.data(), slice.cells.size_bytes());
  to += slice.cells.size();
  if (!with_counts) return;
  to[CountWords(slice.keys.size()) - 1] = 0;  // padding is always zero
  auto* counts = reinterpret_cast<int32_t*>(to);
  for (size_t i = 0; i < slice.keys.size(); ++i) counts[i] = plan.CountOf(slice.first_key + static_cast<int64_t>(i));
}

}  // namespace

void RequireAllBuckets(std::span<const BucketRange> owners) {
  uint32_t next = 0;
  for (const BucketRange& each : owners) {
    if (each.begin != next || each.end < each.begin || each.end > kNumBuckets) {
      throw Error(Code::kInvalidArgument,
                  "the owners must have all buckets, one after another: expected buckets from " + std::to_string(next) +
                      " on, got [" + std::to_string(each.begin) + ", " + std::to_string(each.end) + ")");
    }
    next = each.end;
  }
  if (next != kNumBuckets)
    throw Error(
        Code::kInvalidArgument,
        "the owners must have all buckets, one after another: no owner has those from " + std::to_string(next) + " on");
}

SlicedPlan::SlicedPlan(const Plan& plan, std::span<const int> dims, std::span<const BucketRange> owners)
    : cells_(CellsOf(plan)) {
  RequireAllBuckets(owners);
  const auto num_tables = static_cast<size_t>(plan.num_tables);
  CheckSize("dims", dims.size(), plan.num_tables);
  size_t next = 0;
  for (const BucketRange& owned : owners) {
    PlanSlice slice;
    const size_t first = next;
    slice.first_key = plan.splits[owned.begin * num_tables];
    slice.first_value = num_values_;
    for (; next < cells_.size() && cells_[next].cell < owned.end * num_tables; ++next)
      num_values_ += int64_t{cells_[next].count} * dims[cells_[next].cell % num_tables];
    slice.cells = std::span<const CellCount>(cells_).subspan(first, next - first);
    slice.keys = {plan.unique.data() + slice.first_key,
                  static_cast<size_t>(plan.splits[owned.end * num_tables] - slice.first_key)};
    slice.num_values = num_values_ - slice.first_value;
    slices_.push_back(slice);
  }
}

PlanParts PartsOf(const Plan& plan, std::span<const int> dims, std::span<const BucketRange> owners, bool with_counts) {
  if (!plan.deduplicated)
    throw Error(Code::kInvalidArgument, "expected a plan that has each id once, got one that keeps repeated ids apart");
  const SlicedPlan sliced(plan, dims, owners);
  PlanParts parts;
  int64_t total = 0;
  for (int owner = 0; owner < sliced.num_owners(); ++owner) {
    const PlanSlice& slice = sliced.at(owner);
    parts.num_words.push_back(NumWords(slice, with_counts));
    parts.num_keys.push_back(static_cast<int64_t>(slice.keys.size()));
    parts.num_values.push_back(slice.num_values);
    total += parts.num_words.back();
  }
  parts.words = Buffer<int64_t>(static_cast<size_t>(total));
  int64_t* to = parts.words.data();
  for (int owner = 0; owner < sliced.num_owners(); ++owner) {
    WritePart(plan, sliced.at(owner), with_counts, to);
    to += parts.num_words[static_cast<size_t>(owner)];
  }
  return parts;
}

ReadPart ReadPartOf(std::span<const int64_t> words) {
  ReadPart part;
  if (words.empty()) return part;
  const auto refuse = [&] {
    RefuseIds("expected the words of some ids, got " + std::to_string(words.size()) + " whose sizes do not fit");
  };
  if (words.size() < kHeadWords) refuse();
  const size_t rest = words.size() - kHeadWords;
  const auto num_keys = static_cast<uint64_t>(words[0]), num_cells = static_cast<uint64_t>(words[1]);
  const auto has_counts = static_cast<uint64_t>(words[2]);
  if (num_keys > rest || num_cells > rest || has_counts > 1) refuse();
  if (rest != num_keys + num_cells + (has_counts != 0 ? CountWords(num_keys) : 0)) refuse();
  part.keys = words.subspan(kHeadWords, num_keys);
  part.cells.resize(num_cells);
  if (num_cells != 0) std::memcpy(part.cells.data(), words.data() + kHeadWords + num_keys, num_cells * sizeof(int64_t));
  if (has_counts != 0)
    part.counts = {reinterpret_cast<const int32_t*>(words.data() + kHeadWords + num_keys + num_cells), num_keys};
  return part;
}

}  // namespace monolith
