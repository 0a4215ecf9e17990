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
    const Cell* there = block_at(a, block, kv_head);
    Cell* here = shared.pages[stage].planes;
    if (page <= to) bring_keys(there, here, threadIdx.x, 128);
    if (page <= to) bring_plane<PLANE>(there + PLANE, here + VALUES, threadIdx.x, 128);
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
