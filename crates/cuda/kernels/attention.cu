// Whether not every one of the rows from position `least` to `most` sees all of a page.
__device__ __forceinline__ bool is_edge(const AttendArgs& a, u32 page, u32 least, u32 most) {
  return 32 * page + 31 > least || (a.window && 32 * page + a.window <= most);
}

// One page of keys and values, whose first token is at `position`, of a sequence of `tokens`.
template <bool EDGE, bool SHARED, u32 TILES, class From>
__device__ __forceinline__ void add_page(
    const AttendArgs& a, const Cell* k, const Cell* v, u32 position, u32 tokens, const From& queries, Rows16 (&r)[TILES]) {
  float s[TILES][4][4];
  score<SHARED>(k, queries, s);
  add_scored<EDGE>(a, v, position, tokens, s, r);
}

// Many rows: a warp takes 16 or 32 (query, head) pairs, as many as there are registers for, a block four times as many, and
// brings pages to shared memory. A warp of 32 reads half as much of it for each product: an operand from there is used twice.
constexpr u32 MANY_TILES = DIM > 128 ? 1 : 2, WARP_ROWS = 16 * MANY_TILES, BLOCK_ROWS = 4 * WARP_ROWS;
// Pages in shared memory, all but one of them on their way: as many as leave room for two blocks on a multiprocessor of sm_80 (or
// one on that of sm_86, where heads are large).
#ifdef BALLAST_MMA_BY_HALVES
#define STAGES 1
#else
#define STAGES (DIM > 128 ? 2 : 3)
#endif

struct __align__(16) Page {
  Cell planes[VALUES + PLANE];
};

// A block's memory; Module::block_bytes knows its size.
struct Many {
  InShared<MANY_TILES> queries;
  Page pages[STAGES];
};

KERNEL_BLOCKS(attend_many, AttendArgs, 128, 2) {
  Many& shared = block_memory<Many>();
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 group = a.heads / a.kv_heads, kv_head = blockIdx.y, first_row = a.work[blockIdx.x].y, end_row = span.rows * group;
  u32 last_row = min(first_row + BLOCK_ROWS, end_row) - 1;
  u32 from = first_page(a, span.start + first_row / group), to = (span.start + last_row / group) / 32;
  // A page's place is read long before the page is asked for.
  auto block_of = [&](u32 page) { return load_4(a.tables + span.table + min(page, to)); };
  auto ask = [&](u32 page, u32 block, u32 stage) {
    if (page <= to) bring(block_at(a, block, kv_head), shared.pages[stage].planes);
    copies_commit();
  };
#pragma unroll
  for (u32 i = 0; i + 1 < STAGES; i++) ask(from + i, block_of(from + i), i);
  u32 next = block_of(from + STAGES - 1);
  // This warp's rows, the first and last positions that they see up to, and the pages that they need.
  u32 row = first_row + WARP_ROWS * (threadIdx.x / 32);
  bool is_live = row < end_row;
  u32 least = span.start + row / group, most = span.start + (min(row + WARP_ROWS, end_row) - 1) / group;
  u32 mine_first = is_live ? first_page(a, least) : 1, mine_last = is_live ? most / 32 : 0;
  Rows16 r[MANY_TILES];
#pragma unroll
  for (u32 tile = 0; tile < MANY_TILES; tile++) {
    Queries q;
    begin(a, span, kv_head, row + 16 * tile, q, r[tile]);
    fit_queries(q, r[tile]);
    shared.queries.put(tile, q);
  }
  for (u32 page = from, stage = 0; page <= to; page++) {
    if (STAGES == 1) {
      __syncthreads();
      ask(page, next, 0);
      copies_wait<0>();
    } else {
      copies_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
    }
    // The page is there, and nobody reads the one before any more.
    __syncthreads();
    if (STAGES > 1) ask(page + STAGES - 1, next, stage == 0 ? STAGES - 1 : stage - 1);
    next = block_of(page + STAGES);
    const Cell* here = shared.pages[stage].planes;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    if (page < mine_first || page > mine_last) continue;
    u32 tokens = span.start + span.rows;
    if (is_edge(a, page, least, most)) add_page<true, true>(a, here, here + VALUES, 32 * page, tokens, shared.queries, r);
    else add_page<false, true>(a, here, here + VALUES, 32 * page, tokens, shared.queries, r);
  }
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Read again, not kept beside the sums.
  u32 batch_row = load_4(&a.spans[load_4(&a.work[blockIdx.x].x)].row);
#pragma unroll
  for (u32 tile = 0; tile < MANY_TILES; tile++) {
    end(r[tile]);
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      u32 mine = row + 16 * tile + g + 8 * h;
      if (mine >= end_row) continue;
      put_row(a, ((u64)(batch_row + mine / group) * a.heads + kv_head * group + mine % group) * DIM + 2 * t, h, r[tile]);
    }
  }
}

#define SPLIT_PAGES 8

// Few rows (16 pairs at most): a block takes 8 pages of a sequence, wherever its queries are, a warp every fourth, and
// reads them straight into registers. What the warps found is merged in their order.
KERNEL(attend_few, AttendArgs, 128) {
  __shared__ __align__(16) Merging<4> merging;
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.y;
  if (a.work[blockIdx.x].x == ALL_LANES) return;  // no work
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 split = a.work[blockIdx.x].y, group = a.heads / a.kv_heads, rows = span.rows * group;
  u32 from = max(split * SPLIT_PAGES, first_page(a, span.start)), to = min((split + 1) * SPLIT_PAGES, (span.start + span.rows + 31) / 32);
  Rows16 all[1], &r = all[0];
  Queries q;
  begin(a, span, kv_head, 0, q, r);
  fit_queries(q, r);
  InRegisters queries = {q};
  u32 tokens = span.start + span.rows;
  for (u32 page = split * SPLIT_PAGES + warp; page < to; page += 4) {
    if (page < from) continue;
    const Cell* k = block_at(a, a.tables[span.table + page], kv_head);
    if (is_edge(a, page, span.start, tokens - 1)) add_page<true, false>(a, k, k + PLANE, 32 * page, tokens, queries, all);
    else add_page<false, false>(a, k, k + PLANE, 32 * page, tokens, queries, all);
  }
  end(r);
  merge_warps(r, rows, merging);
  for (u32 row = warp; row < rows; row += 4) {
    float* partial = a.partials + ((u64)(span.partial + (split - span.first_split) * rows + row) * a.kv_heads + kv_head) * (DIM + 2);
    for (u32 d = lane; d < DIM; d += 32) partial[d] = merging.means[row][d];
    if (lane == 0) {
      partial[DIM] = merging.most(row);
      partial[DIM + 1] = merging.sums[row];
    }
  }
}

// Merges the splits of a span in one head of keys, in their order, by the logarithms of their sums: a warp a row. Lanes weigh 32
// splits at a time, then take the dims side by side.
KERNEL(merge_splits, AttendArgs, 128) {
  const u32 OF_LANE = (DIM + 31) / 32;
  u32 lane = threadIdx.x % 32, kv_head = blockIdx.y, group = a.heads / a.kv_heads;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
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
    u64 at = ((u64)(span.row + row / group) * a.heads + kv_head * group + row % group) * DIM;
#pragma unroll
    for (u32 j = 0; j < OF_LANE; j++) {
      u32 d = 32 * j + lane;
      if (d >= DIM) continue;
      if (a.out_bf16) ((u16*)a.out)[at + d] = (u16)narrow(means[j] * share);
      else ((float*)a.out)[at + d] = means[j] * share;
    }
  }
}
