// Few rows (16 pairs at most): a block takes 8 pages of a sequence in one head of keys, a split, wherever its queries are, a warp
// every fourth page. What the warps found is merged in their order.
//
// All that takes time here is to read pages. Blocks are as many as run side by side and take splits in turn: while one is merged
// the next one's pages are on their way, and so are the tables, spans and queries of those after it.

#define SPLIT_PAGES 8

// Planes that each warp has in shared memory, keys and values by turns, all but one of them on their way: 16 KiB, so that two
// blocks or more are on a multiprocessor. None where planes are large or copies are waited for: pages are read where they lie.
#ifdef BALLAST_MMA_BY_HALVES
constexpr u32 FEW_PLANES = 0;
#else
constexpr u32 PLANE_BYTES = sizeof(Cell) * VALUES, FEW_PLANES = PLANE_BYTES > 8192 ? 0 : PLANE_BYTES > 4096 ? 2 : 4;
#endif
constexpr bool IS_BROUGHT = FEW_PLANES > 0;
constexpr u32 SLOTS = IS_BROUGHT ? FEW_PLANES : 1;

// A block's memory; Module::block_bytes knows its size.
struct __align__(16) Few {
  Cell planes[4][SLOTS][IS_BROUGHT ? VALUES : 16 / sizeof(Cell)];
  Merging<4> merging;
};

// A split in one head of keys, and what this warp needs of its tables: the blocks of both of its pages.
struct Unit {
  SpanData span;
  u32 split, kv_head, blocks[2];
  __device__ __forceinline__ bool is_there() const { return split != ALL_LANES; }
  __device__ __forceinline__ u32 page(u32 i) const { return split * SPLIT_PAGES + threadIdx.x / 32 + 4 * i; }
  // Whether some query sees something of it.
  __device__ __forceinline__ bool has(const AttendArgs& a, u32 i) const {
    return is_there() && page(i) >= first_page(a, span.start) && 32 * page(i) < span.start + span.rows;
  }
};

// Piece `index / kv_heads` of the work, in one head. Its span and its blocks are looked up later, when the piece has come.
__device__ __forceinline__ uint2 piece_of(const AttendArgs& a, u32 index) {
  return index < a.pieces * a.kv_heads ? load_8(a.work + index / a.kv_heads) : make_uint2(ALL_LANES, ALL_LANES);
}

__device__ __forceinline__ Unit unit_of(const AttendArgs& a, uint2 piece, u32 index) {
  Unit unit = {};
  unit.split = piece.y;
  unit.kv_head = index % a.kv_heads;
  if (unit.is_there()) {
    const u32* span = (const u32*)(a.spans + piece.x);
    unit.span = {load_4(span), load_4(span + 1), load_4(span + 2), load_4(span + 3), load_4(span + 4), load_4(span + 5), load_4(span + 6)};
  }
  return unit;
}

__device__ __forceinline__ void look_up(const AttendArgs& a, Unit& unit) {
#pragma unroll
  for (u32 i = 0; i < 2; i++)
    if (unit.has(a, i)) unit.blocks[i] = load_4(a.tables + unit.span.table + unit.page(i));
}

// Asks for a plane of a unit's, if there is one: keys of its first page, values of it, keys of its second one, values of it.
__device__ __forceinline__ void ask(const AttendArgs& a, const Unit& unit, u32 plane, Few& shared) {
  if constexpr (IS_BROUGHT) {
    u32 lane = threadIdx.x % 32;
    Cell* to = shared.planes[threadIdx.x / 32][plane % SLOTS];
    if (unit.has(a, plane / 2)) {
      const Cell* from = block_at(a, unit.blocks[plane / 2], unit.kv_head);
      if (plane % 2) bring_plane<PLANE>(from + PLANE, to, lane, 32);
      else bring_keys(from, to, lane, 32);
    }
    copies_commit();
  }
}

// Plane `plane` of a unit, once it is there.
__device__ __forceinline__ const Cell* plane_of(const AttendArgs& a, const Unit& unit, u32 plane, Few& shared) {
  if constexpr (IS_BROUGHT) {
    copies_wait<SLOTS - 1>();
    __syncwarp();
    return shared.planes[threadIdx.x / 32][plane % SLOTS];
  } else {
    return block_at(a, unit.blocks[plane / 2], unit.kv_head) + plane % 2 * PLANE;
  }
}

// Nobody of the warp reads a plane any more, and the next one to lie there is asked for.
__device__ __forceinline__ void go_on(const AttendArgs& a, const Unit& unit, const Unit& next, u32 plane, Few& shared) {
  if constexpr (IS_BROUGHT) {
    __syncwarp();
    u32 later = plane + SLOTS;
    ask(a, later < 4 ? unit : next, later % 4, shared);
  }
}

// One of the dims of a row of a span, in a head of keys.
__device__ __forceinline__ void put_dim(const AttendArgs& a, const SpanData& span, u32 kv_head, u32 row, u32 d, float mean) {
  u32 group = a.heads / a.kv_heads;
  u64 at = ((u64)(span.row + row / group) * a.heads + kv_head * group + row % group) * DIM + d;
  if (a.out_bf16) ((u16*)a.out)[at] = (u16)narrow(mean);
  else ((float*)a.out)[at] = mean;
}

// What the block found of a split. A span of one split is done.
__device__ __forceinline__ void put_partials(const AttendArgs& a, const Unit& unit, const Merging<4>& merging) {
  u32 lane = threadIdx.x % 32, rows = unit.span.rows * (a.heads / a.kv_heads), split = unit.split - unit.span.first_split;
  for (u32 row = threadIdx.x / 32; row < rows; row += 4) {
    if (unit.span.splits == 1) {
      float share = 1.0f / merging.sums[row];
      for (u32 d = lane; d < DIM; d += 32) put_dim(a, unit.span, unit.kv_head, row, d, merging.means[row][d] * share);
      continue;
    }
    float* partial = a.partials + ((u64)(unit.span.partial + split * rows + row) * a.kv_heads + unit.kv_head) * (DIM + 2);
    for (u32 d = lane; d < DIM; d += 32) partial[d] = merging.means[row][d];
    if (lane == 0) {
      partial[DIM] = merging.most(row);
      partial[DIM + 1] = merging.sums[row];
    }
  }
}

KERNEL_BLOCKS(attend_few, AttendArgs, 128, 2) {
  Few& shared = block_memory<Few>();
  u32 group = a.heads / a.kv_heads, index = blockIdx.x;
  uint2 pieces[3];
#pragma unroll
  for (u32 i = 0; i < 3; i++) pieces[i] = piece_of(a, index + i * gridDim.x);
  Unit unit = unit_of(a, pieces[0], index), next = unit_of(a, pieces[1], index + gridDim.x);
  look_up(a, unit);
  look_up(a, next);
#pragma unroll
  for (u32 plane = 0; plane < SLOTS; plane++) ask(a, unit, plane, shared);
  Queries q;
  load_queries(a, unit.span, unit.kv_head, 0, q);
  while (unit.is_there()) {
    Unit after = unit_of(a, pieces[2], index + 2 * gridDim.x);
    pieces[2] = piece_of(a, index + 3 * gridDim.x);
    u32 tokens = unit.span.start + unit.span.rows;
    Rows16 all[1], &r = all[0];
    begin_sums(unit.span, group, 0, r);
    fit_queries(q, r);
    InRegisters queries = {q};
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      u32 page = unit.page(i);
      bool is_seen = unit.has(a, i);
      float s[1][4][4];
      const Cell* k = plane_of(a, unit, 2 * i, shared);
      if (is_seen) score<IS_BROUGHT>(k, queries, s);
      go_on(a, unit, next, 2 * i, shared);
      if (i == 1) load_queries(a, next.span, next.kv_head, 0, q);
      const Cell* v = plane_of(a, unit, 2 * i + 1, shared);
      if (is_seen) {
        if (is_edge(a, page, unit.span.start, tokens - 1)) add_scored<true>(a, v, 32 * page, tokens, s, all);
        else add_scored<false>(a, v, 32 * page, tokens, s, all);
      }
      go_on(a, unit, next, 2 * i + 1, shared);
    }
    look_up(a, after);
    end(r);
    merge_warps(r, unit.span.rows * group, shared.merging);
    put_partials(a, unit, shared.merging);
    // Nobody reads what was merged any more.
    __syncthreads();
    unit = next;
    next = after;
    index += gridDim.x;
  }
}

// Merges the splits of a span in one head of keys, in their order, by the logarithms of their sums: a warp a row. Lanes weigh 32
// splits at a time, then take the dims side by side.
KERNEL(merge_splits, AttendArgs, 128) {
  const u32 OF_LANE = (DIM + 31) / 32;
  u32 lane = threadIdx.x % 32, kv_head = blockIdx.y, group = a.heads / a.kv_heads;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  if (span.splits == 1) return;
  u32 rows = span.rows * group, stride = DIM + 2;
  u64 next = (u64)rows * a.kv_heads * stride;
  for (u32 row = threadIdx.x / 32; row < rows; row += 4) {
    const float* first = a.partials + ((u64)(span.partial + row) * a.kv_heads + kv_head) * stride;
    float most = NO_SCORE, sum = 0.0f, means[OF_LANE] = {};
    for (u32 i = lane; i < span.splits; i += 32) most = fmaxf(most, first[i * next + DIM]);
    most = warp_max(most);
    for (u32 begin = 0; begin < span.splits; begin += 32) {
      u32 mine = begin + lane, count = min(span.splits - begin, 32u);
      float weight = mine < span.splits ? power_of_two(first[mine * next + DIM] - most) : 0.0f;
      if (mine < span.splits) sum += first[mine * next + DIM + 1] * weight;
#pragma unroll 4
      for (u32 i = 0; i < count; i++) {
        float other = __shfl_sync(ALL_LANES, weight, i);
        const float* split = first + (begin + i) * next;
#pragma unroll
        for (u32 j = 0; j < OF_LANE; j++)
          if (32 * j + lane < DIM) means[j] += split[32 * j + lane] * other;
      }
    }
    float share = 1.0f / warp_sum(sum);
#pragma unroll
    for (u32 j = 0; j < OF_LANE; j++)
      if (32 * j + lane < DIM) put_dim(a, span, kv_head, row, 32 * j + lane, means[j] * share);
  }
}
