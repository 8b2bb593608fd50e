// The list of kernels: the one that both launchers and the text for NVRTC are made of.
#pragma once

#include "device/kernels/around_learning.h"
#include "device/kernels/eviction.h"
#include "device/kernels/history.h"
#include "device/kernels/images.h"
#include "device/kernels/index.h"
#include "device/kernels/learn.h"
#include "device/kernels/plan.h"
#include "device/kernels/pooling.h"
#include "device/kernels/prefix_sums.h"
#include "device/kernels/records.h"
#include "device/kernels/rows.h"
#include "device/kernels/sums.h"
#include "device/kernels/update.h"

// Those of each rule.
#define MONOLITH_PLAIN_KERNELS(KERNEL, name, ...) KERNEL(learn_##name, false, LearnRows<__VA_ARGS__>)
#define MONOLITH_SCALAR_KERNELS(KERNEL, name, ...)    \
  KERNEL(learn_##name, false, LearnRows<__VA_ARGS__>) \
  KERNEL(finish_##name, false, FinishRows<__VA_ARGS__>)
#define MONOLITH_SEGMENT_KERNELS(KERNEL, name, ...) KERNEL(learn_##name, false, LearnSegments<__VA_ARGS__>)

// Name on a GPU, whether threads of a block wait for each other, type.
#define MONOLITH_DEVICE_KERNELS(KERNEL)                        \
  KERNEL(insert_positions, false, InsertPositions)             \
  KERNEL(find_firsts, false, FindFirsts)                       \
  KERNEL(compact_firsts, false, CompactFirsts)                 \
  KERNEL(order_distinct, false, OrderDistinct)                 \
  KERNEL(number_positions, false, NumberPositions)             \
  KERNEL(find_splits, false, FindSplits)                       \
  KERNEL(list_hot, false, ListHot)                             \
  KERNEL(sum_runs, false, SumRuns)                             \
  KERNEL(extend_run_sums, false, ExtendRunSums)                \
  KERNEL(find_rows, false, FindRows)                           \
  KERNEL(find_rows_again, false, FindRowsAgain)                \
  KERNEL(flag_missing, false, FlagMissing)                     \
  KERNEL(count_new_in_cells, false, CountNewInCells)           \
  KERNEL(insert_rows, false, InsertRows)                       \
  KERNEL(count_inserted, false, CountInserted)                 \
  KERNEL(erase_rows, false, EraseRows)                         \
  KERNEL(rehash_segment, false, RehashSegment)                 \
  KERNEL(count_words, false, CountWords)                       \
  KERNEL(gather_rows_1, false, GatherRows<1>)                  \
  KERNEL(gather_rows_4, false, GatherRows<4>)                  \
  KERNEL(retrieve_rows, false, RetrieveRows)                   \
  KERNEL(pool_slots_1, false, PoolSlots<1>)                    \
  KERNEL(pool_slots_4, false, PoolSlots<4>)                    \
  KERNEL(find_gradient_sources, false, FindGradientSources)    \
  KERNEL(sum_few_1, false, SumFew<1>)                          \
  KERNEL(sum_few_4, false, SumFew<4>)                          \
  KERNEL(sum_hot_1, true, SumHot<1>)                           \
  KERNEL(sum_hot_4, true, SumHot<4>)                           \
  KERNEL(count_rows_in_buckets, false, CountRowsInBuckets)     \
  KERNEL(list_rows_in_buckets, false, ListRowsInBuckets)       \
  KERNEL(shift_epochs, false, ShiftEpochs)                     \
  KERNEL(pack_records, false, PackRecords)                     \
  KERNEL(store_records, false, StoreRecords)                   \
  KERNEL(pick_images, false, PickImages)                       \
  KERNEL(keep_images, false, KeepImages)                       \
  KERNEL(count_images_in_buckets, false, CountImagesInBuckets) \
  KERNEL(list_images_in_buckets, false, ListImagesInBuckets)   \
  KERNEL(pack_images, false, PackImages)                       \
  KERNEL(shift_image_epochs, false, ShiftImageEpochs)          \
  KERNEL(flag_expired, false, FlagExpired)                     \
  KERNEL(count_scores, false, CountScores)                     \
  KERNEL(list_below_score, false, ListBelowScore)              \
  KERNEL(erase_listed, false, EraseListed)                     \
  KERNEL(count_by_slot, false, CountBySlot)                    \
  KERNEL(check_gradients, false, CheckGradients)               \
  KERNEL(init_rows, false, InitRows)                           \
  KERNEL(adjust_gradients, false, AdjustGradients)             \
  KERNEL(round_weights, false, RoundWeights)                   \
  KERNEL(newest_times, false, NewestTimesOfIds)                \
  KERNEL(stamp_rows, false, StampRows)                         \
  MONOLITH_ROW_RULES(KERNEL, MONOLITH_PLAIN_KERNELS, MONOLITH_SCALAR_KERNELS, MONOLITH_SEGMENT_KERNELS)
