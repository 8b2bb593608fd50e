#include "format/summed_read.h"

#include <algorithm>

#include "base/error.h"
#include "format/crc32c.h"
#include "format/file_io.h"
#include "format/task_team.h"

namespace monolith {

std::vector<uint32_t> ReadSummed(const std::string& path, std::span<char> target, size_t piece_bytes, int threads) {
  MONOLITH_CHECK(piece_bytes > 0);
  const bool aligned =
      piece_bytes % kTransferUnit == 0 && reinterpret_cast<uintptr_t>(target.data()) % kTransferUnit == 0;
  const InputFile file(path, aligned ? Caching::kPastCache : Caching::kThroughCache);
  std::vector<uint32_t> sums((target.size() + piece_bytes - 1) / piece_bytes);
  const TransferProgress progress;
  TaskTeam team(progress);
  team.Run(sums.size(), threads, [&](size_t piece, size_t /*worker*/) {
    const size_t begin = piece * piece_bytes;
    const size_t size = std::min(piece_bytes, target.size() - begin);
    file.ReadUnits(begin, target.data() + begin, size);
    sums[piece] = Crc32c(target.data() + begin, size);
  });
  return sums;
}

}  // namespace monolith
