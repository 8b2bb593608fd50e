// A source of row blocks as a Python iterator over bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "format/block_source.h"

namespace monolith {

class BlockIterator {
 public:
  explicit BlockIterator(std::unique_ptr<BlockSource> source) : source_(std::move(source)) {}

  // REQUIRES: the GIL is held; it is released while the block is made.
  nanobind::bytes Next() {
    bool more = false;
    {
      const nanobind::gil_scoped_release release;
      more = source_->Next(&block_);
    }
    if (!more) throw nanobind::stop_iteration();
    return nanobind::bytes(block_.data(), block_.size());
  }

 private:
  std::unique_ptr<BlockSource> source_;
  std::string block_;
};

}  // namespace monolith
