#include "data/frame_read.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "base/thread_pool.h"
#include "data/file_read.h"
#include "data/frame_walk.h"

namespace monolith {
namespace {

// Small enough to be still in the cache of a core when it is verified, large enough for a system call.
constexpr uint64_t kBytesPerPiece = uint64_t{256} << 10;

// Result of one piece. A record belongs to the piece in which it ends.
struct Piece {
  std::vector<int64_t> spans;
  size_t first_bad = 0;  // the number of records if none is bad
};

// The turn of a piece: waits for that of the one before, and passes it on at its end, whatever happens.
class Turn {
 public:
  Turn(std::atomic<size_t>* turn, size_t number) : turn_(*turn), number_(number) {
    size_t now;
    while ((now = turn_.load(std::memory_order_acquire)) != number) turn_.wait(now, std::memory_order_acquire);
  }
  ~Turn() {
    turn_.store(number_ + 1, std::memory_order_release);
    turn_.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<size_t>& turn_;
  const size_t number_;
};

class PieceReader {
 public:
  PieceReader(int descriptor, uint64_t offset, std::span<char> target, uint64_t kept, const Framing& framing,
              uint64_t max_record_bytes)
      : descriptor_(descriptor),
        offset_(offset),
        target_(target),
        kept_(kept),
        has_checksums_(framing.Has(Framing::kTfRecord)),
        pieces_(std::max<uint64_t>(1, (target.size() - kept) / kBytesPerPiece)),
        walk_(target.data(), 0, framing, {max_record_bytes, std::numeric_limits<uint64_t>::max()}, &read_.scan) {
    read_.size = kept;
  }

  FrameRead Run() {
    // Tasks are started in order, so a piece only waits for threads that are running.
    ParallelFor(static_cast<int>(pieces_.size()), [this](int task) { Read(static_cast<size_t>(task)); });
    if (error_) std::rethrow_exception(error_);
    Join();
    return std::move(read_);
  }

 private:
  uint64_t BeginOf(size_t number) const { return kept_ + (target_.size() - kept_) * number / pieces_.size(); }

  void Read(size_t number) {
    const uint64_t begin = BeginOf(number);
    const std::span<char> part = target_.subspan(begin, BeginOf(number + 1) - begin);
    uint64_t got = 0;
    std::exception_ptr error;
    try {
      got = ReadOnThisThread(descriptor_, offset_ + begin - kept_, part);
    } catch (...) {
      error = std::current_exception();  // the next piece waits for this one all the same
    }
    Piece& piece = pieces_[number];
    {
      const Turn turn(&turn_, number);
      if (!is_over_) piece.spans = Walk(got, got < part.size(), std::move(error));
    }
    piece.first_bad = has_checksums_ ? FirstBadChecksum(target_.data(), piece.spans) : piece.spans.size() / 2;
  }

  // Called in its turn: processes the bytes of the next piece, and returns the records that end in it.
  std::vector<int64_t> Walk(uint64_t got, bool is_last, std::exception_ptr error) {
    read_.size += got;
    is_over_ = is_last;  // a file that grows meanwhile may have more bytes; they are left for the next call
    error_ = std::move(error);
    if (error_ || read_.scan.problem != FrameProblem::kNone) return {};
    walk_.GoOn(read_.size, is_last);
    return std::exchange(read_.scan.spans, {});
  }

  void Join() {
    std::vector<int64_t>& spans = read_.scan.spans;
    for (const Piece& piece : pieces_) {
      const size_t records = spans.size() / 2;
      spans.insert(spans.end(), piece.spans.begin(), piece.spans.end());
      if (piece.first_bad < piece.spans.size() / 2) return CutAtBadChecksum(records + piece.first_bad, &read_.scan);
    }
  }

  const int descriptor_;
  const uint64_t offset_;
  const std::span<char> target_;
  const uint64_t kept_;
  const bool has_checksums_;
  std::vector<Piece> pieces_;

  std::atomic<size_t> turn_{0};  // the piece whose thread may access the members below
  FrameRead read_;
  FrameWalk walk_;
  bool is_over_ = false;
  std::exception_ptr error_;
};

}  // namespace

FrameRead ReadFrames(int descriptor, uint64_t offset, std::span<char> target, uint64_t kept, const Framing& framing,
                     uint64_t max_record_bytes) {
  return PieceReader(descriptor, offset, target, kept, framing, max_record_bytes).Run();
}

}  // namespace monolith
