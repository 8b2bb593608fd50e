// Gradients of the distinct ids of a batch: those of all occurrences of an id, added to zero in input order, in
// float32. The bits are those of table/gradient_sums.h.
//
// Most ids occur a few times: lanes share an id and walk through its occurrences. An id that occurs often would keep
// its lanes long after all others have ended, so that a block adds each of these. The additions of one float remain a
// sequence; everything else is prepared by other threads while they run.
#pragma once

#include <cstdint>

#include "device/kernels/table_view.h"
#include "device/kernels/thread.h"

namespace monolith::device {

inline constexpr int64_t kNoGradient = -(int64_t{1} << 62);  // a source: zeros

template <int kWidth>
inline void AddPack(const Pack<kWidth>& given, Pack<kWidth>& sum) {
  for (int i = 0; i < kWidth; ++i) sum.at[i] = sum.at[i] + given.at[i];
}

// The occurrences of the distinct ids, and where their gradients are.
struct GradientSource {
  DistinctIds ids;
  ValueLayout layout;      // of the sums
  const int32_t* starts;   // [ids.count + 1]: of the occurrences of each id, as in a plan
  const int64_t* sources;  // [occurrences], in plan order: the first float of each in `gradients`, or kNoGradient
  const float* scales;     // [occurrences], in plan order: a factor of each; null: there are none
  const float* gradients;

  float ScaleAt(int32_t occurrence) const { return scales == nullptr ? 1.0f : scales[occurrence]; }
  // Some floats, from float `at` on, of a gradient.
  template <int kWidth>
  Pack<kWidth> Load(int64_t from, uint32_t at) const {
    return from == kNoGradient ? Pack<kWidth>{} : LoadPack<kWidth>(gradients + from + at);
  }
};

template <int kWidth>
inline Pack<kWidth> Scaled(Pack<kWidth> pack, float scale) {
  for (int i = 0; i < kWidth; ++i) pack.at[i] = pack.at[i] * scale;
  return pack;
}

// Adds what occurs less than `least_hot` times.
template <int kWidth>
struct SumFew {
  GradientSource source;
  uint32_t least_hot;
  uint32_t lane_bits;
  float* sums;
  uint32_t* refused;  // set to 1 if a sum is not finite

  void operator()() const {
    const Lane lane = LaneOf(lane_bits);
    if (lane.item >= source.ids.count) return;
    const auto place = static_cast<uint32_t>(lane.item);
    const int32_t begin = source.starts[place], end = source.starts[place + 1];
    if (static_cast<uint32_t>(end - begin) >= least_hot) return;
    const uint32_t num_packs = source.layout.DimOf(source.ids.TableAt(place)) / kWidth;
    float* const to = sums + source.layout.OffsetAt(place);
    for (uint32_t pack = lane.number; pack < num_packs; pack += 1u << lane_bits) {
      const Pack<kWidth> sum = Sum(kWidth * pack, begin, end);
      StorePack(sum, to + kWidth * pack);
      for (int i = 0; i < kWidth; ++i) {
        if (!IsFinite(sum.at[i])) atomicExch(refused, 1u);
      }
    }
  }

 private:
  // The addresses of four, then the four, are read before the first of them is added: their latencies overlap.
  Pack<kWidth> Sum(uint32_t at, int32_t begin, int32_t end) const {
    constexpr int kAhead = 4;
    Pack<kWidth> sum = {};
    int32_t next = begin;
    for (; next + kAhead <= end; next += kAhead) {
      int64_t from[kAhead];
      float scale[kAhead];
      Pack<kWidth> given[kAhead];
      for (int i = 0; i < kAhead; ++i) from[i] = source.sources[next + i];
      for (int i = 0; i < kAhead; ++i) scale[i] = source.ScaleAt(next + i);
      for (int i = 0; i < kAhead; ++i) given[i] = source.Load<kWidth>(from[i], at);
      for (int i = 0; i < kAhead; ++i) AddPack(Scaled(given[i], scale[i]), sum);
    }
    for (; next < end; ++next) {
      AddPack(Scaled(source.Load<kWidth>(source.sources[next], at), source.ScaleAt(next)), sum);
    }
    return sum;
  }
};

// Adds what ListHot has listed. Blocks share the list; a block adds some neighbouring floats, a piece, of one id at a
// time.
//
// The first threads of a block, one for each float, add the gradients of a tile from shared memory; the others, the
// loaders, meanwhile copy the next tile there. Loads are issued before they are needed: the addresses for a tile three
// turns ahead of its additions, its gradients two turns ahead.
template <int kWidth>
struct SumHot {
  static constexpr uint32_t kPieceFloats = 128;
  static constexpr uint32_t kTilePacks = 1024;
  static constexpr uint32_t kParts = kTilePacks / (kBlock - kPieceFloats);  // packs of a tile that a loader copies

  GradientSource source;
  const uint32_t* hot;
  const uint32_t* num_hot;
  uint32_t num_pieces;  // of the largest dim
  float* sums;
  uint32_t* refused;  // as in SumFew

  void operator()() const {
    const uint32_t num_jobs = *num_hot * num_pieces;
    for (uint32_t job = blockIdx.x; job < num_jobs; job += gridDim.x) {
      const uint32_t place = hot[job / num_pieces], first = job % num_pieces * kPieceFloats;
      const uint32_t dim = source.layout.DimOf(source.ids.TableAt(place));
      if (first >= dim) continue;
      const uint32_t floats = dim - first < kPieceFloats ? dim - first : kPieceFloats;
      const int32_t begin = source.starts[place], end = source.starts[place + 1];
      AddPiece({begin, static_cast<uint32_t>(end - begin), first, floats, kTilePacks / (floats / kWidth),
                sums + source.layout.OffsetAt(place) + first});
    }
  }

 private:
  struct Piece {
    int32_t begin;   // of the occurrences
    uint32_t count;  // of them
    uint32_t first;  // float of their gradients
    uint32_t floats;
    uint32_t rows_of_tile;
    float* sum;

    uint32_t packs() const { return floats / kWidth; }
    uint32_t num_tiles() const { return (count + rows_of_tile - 1) / rows_of_tile; }
    uint32_t num_adders() const { return (floats + 31) / 32 * 32; }  // complete warps
    uint32_t RowsBefore(int tile) const { return static_cast<uint32_t>(tile) * rows_of_tile; }
    uint32_t RowsOf(int tile) const {
      const uint32_t left = count - RowsBefore(tile);
      return left < rows_of_tile ? left : rows_of_tile;
    }
  };
  // What a loader copies of each tile: the same packs every time.
  struct Loader {
    uint32_t first, stride;   // packs of a tile: first, first + stride, ...
    uint32_t row[kParts];     // of the tile; kNoPart for packs that it does not have
    uint32_t column[kParts];  // floats
    int64_t from[kParts];
    float scale[kParts];
    Pack<kWidth> given[kParts];
  };
  static constexpr uint32_t kNoPart = 0xffffffffu;

  void AddPiece(const Piece& piece) const {
    __shared__ Pack<kWidth> tiles[2][kTilePacks];
    const uint32_t thread = threadIdx.x;
    const int num_tiles = static_cast<int>(piece.num_tiles());
    const bool is_loader = thread >= piece.num_adders();
    Loader loader = {};
    if (is_loader) FindParts(piece, loader);
    float sum = 0.0f;
    for (int turn = -3; turn < num_tiles; ++turn) {
      if (is_loader) {
        if (turn >= -1 && turn + 1 < num_tiles) StoreTile(piece, turn + 1, loader, tiles[(turn + 1) & 1]);
        if (turn >= -2 && turn + 2 < num_tiles) LoadGradients(piece, turn + 2, loader);
        if (turn + 3 < num_tiles) LoadSources(piece, turn + 3, loader);
      } else if (turn >= 0 && thread < piece.floats) {
        sum = AddTile(piece, turn, tiles[turn & 1], sum);
      }
      __syncthreads();
    }
    if (thread >= piece.floats) return;
    piece.sum[thread] = sum;
    if (!IsFinite(sum)) atomicExch(refused, 1u);
  }

  static void FindParts(const Piece& piece, Loader& loader) {
    const uint32_t packs = piece.packs(), size = piece.rows_of_tile * packs;
    loader.first = threadIdx.x - piece.num_adders();
    loader.stride = kBlock - piece.num_adders();
    MONOLITH_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      const uint32_t pack = loader.first + part * loader.stride;
      loader.row[part] = pack < size ? pack / packs : kNoPart;
      loader.column[part] = pack % packs * kWidth;
    }
  }
  // Calls visit(part) for each part of a tile that has a row; the last tile may have fewer.
  template <typename Visit>
  static void ForEachPart(const Piece& piece, int tile, const Loader& loader, Visit&& visit) {
    const uint32_t rows = piece.RowsOf(tile);
    MONOLITH_UNROLL
    for (uint32_t part = 0; part < kParts; ++part) {
      if (loader.row[part] < rows) visit(part);
    }
  }
  void LoadSources(const Piece& piece, int tile, Loader& loader) const {
    const int32_t first = piece.begin + static_cast<int32_t>(piece.RowsBefore(tile));
    ForEachPart(piece, tile, loader, [&](uint32_t part) {
      loader.from[part] = source.sources[first + static_cast<int32_t>(loader.row[part])];
    });
  }
  void LoadGradients(const Piece& piece, int tile, Loader& loader) const {
    const int32_t first = piece.begin + static_cast<int32_t>(piece.RowsBefore(tile));
    ForEachPart(piece, tile, loader, [&](uint32_t part) {
      loader.given[part] = source.Load<kWidth>(loader.from[part], piece.first + loader.column[part]);
      loader.scale[part] = source.ScaleAt(first + static_cast<int32_t>(loader.row[part]));
    });
  }
  static void StoreTile(const Piece& piece, int tile, const Loader& loader, Pack<kWidth>* to) {
    ForEachPart(piece, tile, loader, [&](uint32_t part) {
      to[loader.first + part * loader.stride] = Scaled(loader.given[part], loader.scale[part]);
    });
  }

  // Adds this thread's float of each row of a tile.
  static float AddTile(const Piece& piece, int tile, const Pack<kWidth>* packs, float sum) {
    constexpr uint32_t kAhead = 16;
    const uint32_t rows = piece.RowsOf(tile), floats = piece.floats;
    const float* const mine = reinterpret_cast<const float*>(packs) + threadIdx.x;
    uint32_t row = 0;
    for (; row + kAhead <= rows; row += kAhead) {
      float given[kAhead];
      MONOLITH_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) given[i] = mine[floats * (row + i)];
      MONOLITH_UNROLL
      for (uint32_t i = 0; i < kAhead; ++i) sum = sum + given[i];
    }
    for (; row < rows; ++row) sum = sum + mine[floats * row];
    return sum;
  }
};

}  // namespace monolith::device
