// The list of kernels: the one that both launchers and the text for NVRTC are
// made of.
#pragma once

#include "device/kernels/eviction.h"
#include "device/kernels/history.h"
#include "device/kernels/images.h"
#include "device/kernels/index.h"
#include "device/kernels/plan.h"
#include "device/kernels/records.h"
#include "device/kernels/rows.h"
#include "device/kernels/sums.h"

// Name on a GPU, whether threads of a block wait for each other, type.
#define MONOLITH_DEVICE_KERNELS(KERNEL)                                        \
  KERNEL(insert_positions, false, InsertPositions)                             \
  KERNEL(find_firsts, false, FindFirsts)                                       \
  KERNEL(compact_firsts, false, CompactFirsts)                                 \
  KERNEL(order_distinct, false, OrderDistinct)                                 \
  KERNEL(number_positions, false, NumberPositions)                             \
  KERNEL(find_splits, false, FindSplits)                                       \
  KERNEL(list_hot, false, ListHot)                                             \
  KERNEL(find_rows, false, FindRows)                                           \
  KERNEL(flag_missing, false, FlagMissing)                                     \
  KERNEL(count_new_in_cells, false, CountNewInCells)                           \
  KERNEL(insert_rows, false, InsertRows)                                       \
  KERNEL(count_inserted, false, CountInserted)                                 \
  KERNEL(erase_rows, false, EraseRows)                                         \
  KERNEL(rehash_segment, false, RehashSegment)                                 \
  KERNEL(count_words, false, CountWords)                                       \
  KERNEL(gather_rows_1, false, GatherRows<1>)                                  \
  KERNEL(gather_rows_4, false, GatherRows<4>)                                  \
  KERNEL(sum_few_1, false, SumFew<1>)                                          \
  KERNEL(sum_few_4, false, SumFew<4>)                                          \
  KERNEL(sum_hot_1, true, SumHot<1>)                                           \
  KERNEL(sum_hot_4, true, SumHot<4>)                                           \
  KERNEL(count_rows_in_buckets, false, CountRowsInBuckets)                     \
  KERNEL(list_rows_in_buckets, false, ListRowsInBuckets)                       \
  KERNEL(shift_epochs, false, ShiftEpochs)                                     \
  KERNEL(pack_records, false, PackRecords)                                     \
  KERNEL(store_records, false, StoreRecords)                                   \
  KERNEL(pick_images, false, PickImages)                                       \
  KERNEL(keep_images, false, KeepImages)                                       \
  KERNEL(count_images_in_buckets, false, CountImagesInBuckets)                 \
  KERNEL(list_images_in_buckets, false, ListImagesInBuckets)                   \
  KERNEL(pack_images, false, PackImages)                                       \
  KERNEL(shift_image_epochs, false, ShiftImageEpochs)                          \
  KERNEL(flag_expired, false, FlagExpired)                                     \
  KERNEL(count_scores, false, CountScores)                                     \
  KERNEL(list_below_score, false, ListBelowScore)                              \
  KERNEL(erase_listed, false, EraseListed)                                     \
  KERNEL(count_by_slot, false, CountBySlot)
