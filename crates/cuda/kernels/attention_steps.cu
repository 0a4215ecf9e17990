// Steps of 128 tokens of keys and values in shared memory, and what a warpgroup of 64 (query, head) pairs asks of them.

#define STEP_PAGES 4
#define STEP (32 * STEP_PAGES)
#define SLABS (DIM / 64)
#define BLOCK_ROWS 128
#define RING 3

// Keys of a step by 64 dims, and its values by page.
struct Step {
  Cell k[SLABS][STEP][64];
  Cell v[STEP_PAGES][DIM][32];
};

// What a block of `attend_many` attends: its rows, and the pages and steps that they need.
struct Tile {
  SpanData span;
  u32 group, kv_head, first_row, end_row;
  u32 least, most;               // positions that its first and its last row see up to
  u32 first, last, from, to;     // pages, and steps
  u32 whole_from, whole_to;      // steps of which every row sees all, up to before the last

  __device__ __forceinline__ Tile(const AttendArgs& a, u32 piece, u32 head) : span(a.spans[a.work[piece].x]) {
    group = a.heads / a.kv_heads, kv_head = head, first_row = a.work[piece].y, end_row = span.rows * group;
    least = span.start + first_row / group, most = span.start + (min(first_row + BLOCK_ROWS, end_row) - 1) / group;
    first = first_page(a, least), last = most / 32, from = first / STEP_PAGES, to = last / STEP_PAGES;
    whole_from = a.window && most >= a.window ? (most - a.window) / STEP + 1 : 0, whole_to = (least + 1) / STEP;
  }
  // Where page `page` of a step lies: read long before the page is asked for.
  __device__ __forceinline__ u32 block_of(const AttendArgs& a, u32 step, u32 page) const {
    return load_4(a.tables + span.table + min(max(STEP_PAGES * step + page, first), last));
  }
  // How many of its tokens there are, of those that the rows need.
  __device__ __forceinline__ u32 written(u32 step, u32 page) const {
    u32 number = STEP_PAGES * step + page;
    return number < first || number > last ? 0 : min(span.start + span.rows - 32 * number, 32u);
  }
  // Whether not every row sees all of a step.
  __device__ __forceinline__ bool is_edge(u32 step) const { return step < whole_from || step >= whole_to; }
};

// Brings the keys of a page of a step, of which so many tokens are there, if it is not WHOLE: so many threads do, `thread` from 0.
template <u32 BY, bool WHOLE>
__device__ __forceinline__ void bring_keys_of(const Cell* from, u32 written, u32 page, u32 thread, Step& to) {
  const u32 tokens = 8 * BY / DIM;  // each time
  u32 token = thread / (DIM / 8), d = thread % (DIM / 8);
  Cell* keys = to.k[d / 8][32 * page + token];
  from += 8 * thread;
#pragma unroll
  for (u32 n = 0; n < 32 / tokens; n++) {
    Cell* place = keys + 64 * tokens * n + 8 * swizzled<128>(token + tokens * n, d % 8);
    if (WHOLE) copy_16(place, from + 8 * BY * n);
    else copy_16_of(place, from + 8 * BY * n, token + tokens * n < written ? 16 : 0);
  }
}

// The same of its values.
template <u32 BY, bool WHOLE>
__device__ __forceinline__ void bring_values_of(const Cell* from, u32 written, u32 page, u32 thread, Step& to) {
  Cell* values = to.v[page][thread / 4] + 8 * swizzled<64>(thread / 4, thread % 4);
  u32 there = 2 * min(max(written, thread % 4 * 8) - thread % 4 * 8, 8u);
  from += PLANE + 8 * thread;
#pragma unroll
  for (u32 n = 0; n < 4 * DIM / BY; n++) {
    if (WHOLE) copy_16(values + 8 * BY * n, from + 8 * BY * n);
    else copy_16_of(values + 8 * BY * n, from + 8 * BY * n, there);
  }
}

// The queries of a block's rows: its first BY threads put them there.
template <u32 BY>
__device__ __forceinline__ void put_queries(const AttendArgs& a, const Tile& t, Cell (&to)[SLABS][BLOCK_ROWS][64]) {
#pragma unroll(BY / 32)
  for (u32 n = 0; n < BLOCK_ROWS * DIM / 8 / BY; n++) {
    u32 piece = BY * n + threadIdx.x, row = piece / (DIM / 8), d = piece % (DIM / 8), i = (t.first_row + row) / t.group;
    const Cell* from = (const Cell*)a.q + ((u64)(t.span.row + i) * a.heads + t.kv_head * t.group + (t.first_row + row) % t.group) * DIM;
    uint4 v = i < t.span.rows ? load_16(from + 8 * d) : none();
    v = make_uint4(query_pair(v.x), query_pair(v.y), query_pair(v.z), query_pair(v.w));
    put_16(&to[d / 8][row][8 * swizzled<128>(row, d % 8)], v);
  }
}

// Asks for the scores of a warpgroup's 64 queries, which lie at `q`, with the keys of a step.
__device__ __forceinline__ void ask_scores(u32 q, u32 step, float (&s)[STEP / 8][4]) {
  Operand<128> queries(q), keys(step);
#pragma unroll
  for (u32 i = 0; i < DIM / 16; i++) {
    Operand<128> mine = queries.further(i / 4 * (128 * BLOCK_ROWS) + i % 4 * 32), theirs = keys.further(i / 4 * (128 * STEP) + i % 4 * 32);
    if (i == 0) wgmma<false>(s, mine, theirs);
    else wgmma<true>(s, mine, theirs);
  }
  wgmma_commit();
}

// Asks for the sums of a step's values by their weights.
__device__ __forceinline__ void ask_sums(const u32 (&p)[STEP / 16][4], u32 step, Rows16& r) {
  Operand<64> values(step + (u32)sizeof(Step::k));
#pragma unroll
  for (u32 i = 0; i < STEP / 16; i++) wgmma(r.o, p[i], values.further(i / 2 * (64 * DIM) + i % 2 * 32));
  wgmma_commit();
}

__device__ __forceinline__ void to_weights(const float (&s)[STEP / 8][4], u32 (&p)[STEP / 16][4]) {
#pragma unroll
  for (u32 i = 0; i < STEP / 4; i++) p[i / 4][i % 4] = weight_pair(s[i / 2][2 * (i % 2)], s[i / 2][2 * (i % 2) + 1]);
}

// Always so, as no weight is less than nothing. Who goes on by it has all weights: else the compiler would wait for the products first,
// and make weights when the tensor cores have nothing to do any more.
__device__ __forceinline__ bool are_made(const Rows16& r) { return !__ballot_sync(ALL_LANES, r.sum[0] + r.sum[1] < 0.0f); }

// The rows of a warp, of which the first is `row`.
__device__ __forceinline__ void put_rows(const AttendArgs& a, const Tile& tile, u32 row, const Rows16& r) {
  u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, group = tile.group;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 mine = row + g + 8 * h;
    if (mine >= tile.end_row) continue;
    put_row(a, ((u64)(tile.span.row + mine / group) * a.heads + tile.kv_head * group + mine % group) * DIM + 2 * t, h, r);
  }
}
