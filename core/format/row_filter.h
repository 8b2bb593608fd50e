// Leaves rows out of a stream of blocks, as a save does with rows that have expired. One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "format/block_source.h"

namespace monolith {

// True iff the row must not go on. Called for every row of full and serving blocks.
using DropsRow = std::function<bool(uint32_t table, int64_t key, uint32_t time)>;

class RowFilterSource final : public BlockSource {
 public:
  // A null `drops` lets everything through.
  RowFilterSource(std::unique_ptr<BlockSource> source, DropsRow drops)
      : source_(std::move(source)), drops_(std::move(drops)) {}

  bool Next(std::string* block) override;

 private:
  std::unique_ptr<BlockSource> source_;
  DropsRow drops_;
};

// Removes rows from a well-formed block in place; other kinds of blocks stay as they are. Returns how many rows went.
uint32_t DropRows(const DropsRow& drops, std::string* block);

}  // namespace monolith
