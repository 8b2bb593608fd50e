#include "data/text_ids.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/city_hash.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace monolith {
namespace {

constexpr size_t kTextsOfATask = 1 << 14;

template <typename Offset>
std::vector<int64_t> IdsOf(std::string_view column, std::string_view bytes, std::span<const Offset> offsets) {
  if (offsets.empty()) throw Error(Code::kInvalidArgument, "texts: offsets must hold one more than there are texts");
  const uint64_t seed = CityHash64(column);
  const size_t count = offsets.size() - 1;
  std::vector<int64_t> ids(count);
  const size_t tasks = (count + kTextsOfATask - 1) / kTextsOfATask;
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const size_t begin = static_cast<size_t>(task) * kTextsOfATask;
    const size_t end = std::min(count, begin + kTextsOfATask);
    for (size_t text = begin; text < end; ++text) {
      const Offset from = offsets[text], to = offsets[text + 1];
      if (from < 0 || to < from || static_cast<uint64_t>(to) > bytes.size()) {
        throw Error(Code::kInvalidArgument, "texts: text " + std::to_string(text) + " must lie in " +
                                                std::to_string(bytes.size()) + " bytes, got " + std::to_string(from) +
                                                " to " + std::to_string(to));
      }
      ids[text] = static_cast<int64_t>(
          CityHash64(bytes.substr(static_cast<size_t>(from), static_cast<size_t>(to - from)), seed));
    }
  });
  return ids;
}

}  // namespace

int64_t TextId(std::string_view column, std::string_view text) {
  return static_cast<int64_t>(CityHash64(text, CityHash64(column)));
}

std::vector<int64_t> TextIds(std::string_view column, std::string_view bytes, std::span<const int32_t> offsets) {
  return IdsOf(column, bytes, offsets);
}

std::vector<int64_t> TextIds(std::string_view column, std::string_view bytes, std::span<const int64_t> offsets) {
  return IdsOf(column, bytes, offsets);
}

}  // namespace monolith
