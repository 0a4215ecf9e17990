// Attention to a share of the keys (kernels::attention::sparse): a block takes up to 16 (query, head) pairs of a span in one head of
// keys, scores all keys that they see, chooses for each pair, and reads only values of pages of which some pair chose a token.
//
//   score    |s s s s|s s s s|s s s s|    in the block's own place of the device's memory
//   choose   |. x . .|. . . .|x x . .|    a bit for each token; a warp a pair
//   values   | read  |       | read  |

#define SPARSE_WARPS 8
#define SPARSE_THREADS 256

struct SparseArgs {
  AttendArgs attend;  // work: {span, first pair}; partials: a slot for each block
  u32* chosen;        // of choose_keys: [pieces of work, kv_heads][pages], a bit for each token
  float share;
  u32 pages;          // of a sequence that a slot has room for, an even number
  u32 rows;           // pairs that it has room for
  u32 pieces;         // of work
};

// What a block does at a time, and its slot.
struct Tile {
  SpanData span;
  u32 kv_head, first_row, rows;
  u32 from, to;   // the first and the last page that some pair sees
  float* scores;  // [rows][32 pages]
  u32* chosen;    // [rows][pages]
};

__device__ __forceinline__ Tile tile_of(const SparseArgs& a, u32 item) {
  const AttendArgs& all = a.attend;
  uint2 work = all.work[item / all.kv_heads];
  SpanData span = all.spans[work.x];
  u32 group = all.heads / all.kv_heads, rows = min(span.rows * group - work.y, 16u);
  float* scores = all.partials + (u64)blockIdx.x * a.rows * 33 * a.pages;
  return {span, item % all.kv_heads, work.y, rows,
          first_page(all, span.start + work.y / group), (span.start + (work.y + rows - 1) / group) / 32,
          scores, (u32*)(scores + (u64)a.rows * 32 * a.pages)};
}

__device__ __forceinline__ u32 block_of(const SparseArgs& a, const Tile& tile, u32 page) {
  return a.attend.tables[tile.span.table + page];
}

// Where a pair's queries and results are.
__device__ __forceinline__ u64 place_of(const SparseArgs& a, const Tile& tile, u32 row) {
  u32 group = a.attend.heads / a.attend.kv_heads, pair = tile.first_row + row;
  return ((u64)(tile.span.row + pair / group) * a.attend.heads + tile.kv_head * group + pair % group) * DIM;
}

// Whether some pair chose some token of a page. All lanes of a warp ask.
__device__ __forceinline__ bool is_read(const SparseArgs& a, const Tile& tile, u32 page) {
  u32 lane = threadIdx.x % 32;
  return __ballot_sync(ALL_LANES, lane < tile.rows && tile.chosen[lane * a.pages + page] != 0);
}

// How many of the keys that a query sees count.
__device__ __forceinline__ u32 kept(float share, u32 seen) {
  u32 wanted = (u32)ceil((double)share * (double)seen);
  return min(max(wanted, 32u), seen);
}

// Higher for higher scores, and above 0; both zeros are one, and so is all that is no number, above the others.
__device__ __forceinline__ u32 rank_of(float score) {
  u32 bits = __float_as_uint(score);
  if (score != score) return ALL_LANES;
  if (bits << 1 == 0) bits = 0;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The rank of the `wanted`th highest of the scores from `first` on, found digit by digit; then `wanted` is how many count of those
// that have it. `counts`: the warp's own, one for each value of a digit.
__device__ u32 lowest_chosen(const float* scores, u32 first, u32 end, u32& wanted, u32* counts) {
  u32 lane = threadIdx.x % 32, rank = 0;
  for (u32 shift = 24; shift < 32; shift -= 8) {
    for (u32 i = lane; i < 256; i += 32) counts[i] = 0;
    __syncwarp();
    for (u32 i = first + lane; i < end; i += 32) {
      u32 mine = rank_of(scores[i]);
      if ((u64)(mine ^ rank) >> (shift + 8) == 0) atomicAdd(&counts[mine >> shift & 255], 1u);
    }
    __syncwarp();
    // Of the eight values of each lane, from the highest, then of each of these.
    u32 sum = 0, higher = 0, lanes = 0;
    for (u32 i = 0; i < 8; i++) sum += counts[255 - 8 * lane - i];
    for (u32 i = 0; i < 32; i++) {
      u32 theirs = __shfl_sync(ALL_LANES, sum, i);
      if (lanes != i || higher + theirs >= wanted) continue;
      higher += theirs;
      lanes++;
    }
    u32 digit = 255 - 8 * lanes;
    while (higher + counts[digit] < wanted) higher += counts[digit--];
    wanted -= higher;
    rank |= digit << shift;
    __syncwarp();
  }
  return rank;
}

// A warp chooses for a pair: the highest scores and, of those that are equal to the lowest of them, the first.
__device__ void choose_row(const SparseArgs& a, const Tile& tile, u32 row, u32* counts) {
  u32 lane = threadIdx.x % 32, group = a.attend.heads / a.attend.kv_heads, window = a.attend.window;
  u32 end = tile.span.start + (tile.first_row + row) / group + 1, first = window && end > window ? end - window : 0;
  const float* scores = tile.scores + (u64)row * 32 * a.pages;
  u32 left = kept(a.share, end - first), lowest = 0;
  if (left < end - first) lowest = lowest_chosen(scores, first, end, left, counts);
  for (u32 page = tile.from; page <= tile.to; page++) {
    u32 at = 32 * page + lane, rank = at >= first && at < end ? rank_of(scores[at]) : 0;
    u32 equal = __ballot_sync(ALL_LANES, rank != 0 && rank == lowest), before = __popc(equal & ((1u << lane) - 1));
    u32 bits = __ballot_sync(ALL_LANES, rank > lowest || (rank != 0 && rank == lowest && before < left));
    left -= min(left, (u32)__popc(equal));
    if (lane == 0) tile.chosen[row * a.pages + page] = bits;
  }
}
