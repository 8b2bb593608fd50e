// The machine's own limit for lookups: random rows copied out of one large array, their numbers known beforehand.
//
// usage: gather ARRAY_BYTES THREADS
// The array lies on huge pages where the system grants them and is written once; rows are 128 bytes. Then each line of
// standard input is a way to copy and a number of seconds, and the answer to it is one line with the rows copied per
// second by all threads together. The ways:
//   fixed    the row size is a compile-time constant; copies with a few vector instructions
//   library  memcpy of a size known at run time only, as any engine with configurable rows would call it
// The process ends at the end of input. Row numbers are drawn before the clock starts; eight rows are prefetched
// ahead (4 to 64 measured equal on a Neoverse N1). Nothing is shared between threads but the array, which is read only.

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr size_t kRowBytes = 128;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kBatch = 65536;
constexpr size_t kNumBatches = 64;  // 16 MiB of row numbers per thread: they stream, as a caller's ids do
constexpr size_t kAhead = 8;

uint64_t Mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

char* AllocateWritten(size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("gather: mmap");
    std::exit(1);
  }
  char* array = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) & ~(kHugePage - 1));
#ifdef MADV_HUGEPAGE
  madvise(array, bytes, MADV_HUGEPAGE);
#endif
  std::memset(array, 1, bytes);
  return array;
}

std::vector<uint32_t> DrawRows(size_t num_rows, uint64_t seed) {
  std::vector<uint32_t> rows(kBatch * kNumBatches + kAhead);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint32_t>(Mix(seed + i) % num_rows);
  return rows;
}

void PrefetchRow(const char* row) {
  for (size_t line = 0; line < kRowBytes; line += 64) __builtin_prefetch(row + line);
}

void CopyFixed(const char* array, const uint32_t* rows, char* out) {
  for (size_t i = 0; i < kBatch; ++i) {
    PrefetchRow(array + rows[i + kAhead] * kRowBytes);
    std::memcpy(out + i * kRowBytes, array + rows[i] * kRowBytes, kRowBytes);
  }
}

void CopyLibrary(const char* array, const uint32_t* rows, char* out) {
  const volatile size_t hidden = kRowBytes;  // read once, and the compiler may not assume what it read
  const size_t row_bytes = hidden;
  for (size_t i = 0; i < kBatch; ++i) {
    PrefetchRow(array + rows[i + kAhead] * row_bytes);
    std::memcpy(out + i * row_bytes, array + rows[i] * row_bytes, row_bytes);
  }
}

using Copy = void (*)(const char*, const uint32_t*, char*);

struct Worker {
  std::vector<uint32_t> rows;
  std::vector<char> out;
  double rows_per_second = 0;

  void Run(const char* array, Copy copy, double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    double elapsed = 0;
    size_t batch = 0;
    do {
      copy(array, rows.data() + (batch % kNumBatches) * kBatch, out.data());
      ++batch;
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed < seconds);
    rows_per_second = static_cast<double>(batch * kBatch) / elapsed;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = argc == 3 ? std::strtoull(argv[1], nullptr, 10) & ~(kHugePage - 1) : 0;
  const size_t num_threads = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  if (bytes == 0 || num_threads == 0) {
    std::fprintf(stderr, "usage: gather ARRAY_BYTES (2 MiB or more) THREADS\n");
    return 2;
  }
  const char* array = AllocateWritten(bytes);
  std::vector<Worker> workers(num_threads);
  for (size_t i = 0; i < num_threads; ++i) {
    workers[i].rows = DrawRows(bytes / kRowBytes, i * kBatch * kNumBatches * 2);
    workers[i].out.resize(kBatch * kRowBytes);
  }
  char way[16];
  double seconds = 0;
  while (std::scanf("%15s %lf", way, &seconds) == 2) {
    const Copy copy = std::strcmp(way, "library") == 0 ? CopyLibrary : CopyFixed;
    std::vector<std::thread> threads;
    for (Worker& worker : workers) threads.emplace_back([&] { worker.Run(array, copy, seconds); });
    for (std::thread& thread : threads) thread.join();
    double total = 0;
    for (const Worker& worker : workers) total += worker.rows_per_second;
    std::printf("%.0f\n", total);
    std::fflush(stdout);
  }
  return 0;
}
