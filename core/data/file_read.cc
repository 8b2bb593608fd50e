#include "data/file_read.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace monolith {
namespace {

constexpr uint64_t kBytesPerTask = uint64_t{512} << 10;

}  // namespace

uint64_t ReadOnThisThread(int descriptor, uint64_t offset, std::span<char> target) {
  uint64_t done = 0;
  while (done < target.size()) {
    const ssize_t got =
        pread(descriptor, target.data() + done, target.size() - done, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0) {
      done += static_cast<uint64_t>(got);
    } else if (errno != EINTR) {
      throw Error(Code::kUnavailable, "cannot read: " + std::generic_category().message(errno));
    }
  }
  return done;
}

uint64_t ReadFile(int descriptor, uint64_t offset, std::span<char> target) {
  const uint64_t size = target.size();
  const auto tasks = static_cast<size_t>(std::max<uint64_t>(1, size / kBytesPerTask));
  std::vector<uint64_t> missing(tasks);
  ParallelFor(static_cast<int>(tasks), [&](int task) {
    const auto number = static_cast<size_t>(task);
    const uint64_t begin = size * number / tasks;
    const uint64_t end = size * (number + 1) / tasks;
    missing[number] = end - begin - ReadOnThisThread(descriptor, offset + begin, target.subspan(begin, end - begin));
  });
  // A file that grows meanwhile may have bytes after a piece that was short; they are left for the next call.
  for (size_t task = 0; task < tasks; ++task) {
    if (missing[task] != 0) return size * (task + 1) / tasks - missing[task];
  }
  return size;
}

}  // namespace monolith
