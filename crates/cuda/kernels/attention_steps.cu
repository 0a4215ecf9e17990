// Steps of 128 tokens of keys and values in shared memory, and what a warpgroup of 64 (query, head) pairs asks of them.

#define STEP_PAGES 4
#define STEP (32 * STEP_PAGES)
#define SLABS (DIM / 64)
#define THREADS 256
#define BLOCK_ROWS 128
#define RING 3

// Keys of a step by 64 dims, and its values by page.
struct Step {
  Cell k[SLABS][STEP][64];
  Cell v[STEP_PAGES][DIM][32];
};

// The queries of a block's rows.
__device__ __forceinline__ void put_queries(const AttendArgs& a, const SpanData& span, u32 kv_head, u32 first_row, Cell (&to)[SLABS][BLOCK_ROWS][64]) {
  u32 group = a.heads / a.kv_heads;
#pragma unroll
  for (u32 n = 0; n < BLOCK_ROWS * DIM / 8 / THREADS; n++) {
    u32 piece = THREADS * n + threadIdx.x, row = piece / (DIM / 8), d = piece % (DIM / 8), i = (first_row + row) / group;
    const Cell* from = (const Cell*)a.q + ((u64)(span.row + i) * a.heads + kv_head * group + (first_row + row) % group) * DIM;
    uint4 v = i < span.rows ? load_16(from + 8 * d) : none();
    v = make_uint4(query_pair(v.x), query_pair(v.y), query_pair(v.z), query_pair(v.w));
    put_16(&to[d / 8][row][8 * swizzled<128>(row, d % 8)], v);
  }
}

// Asks for the scores of a warpgroup's 64 queries, which lie at `q`, with the keys of a step.
__device__ __forceinline__ void ask_scores(u32 q, u32 step, float (&s)[STEP / 8][4]) {
#pragma unroll
  for (u32 i = 0; i < DIM / 16; i++) {
    u64 queries = operand<128>(q + i / 4 * (128 * BLOCK_ROWS) + i % 4 * 32);
    u64 keys = operand<128>(step + i / 4 * (128 * STEP) + i % 4 * 32);
    if (i == 0) wgmma<false>(s, queries, keys);
    else wgmma<true>(s, queries, keys);
  }
  wgmma_commit();
}

// Asks for the sums of a step's values by their weights.
__device__ __forceinline__ void ask_sums(const u32 (&p)[STEP / 16][4], u32 step, Rows16& r) {
#pragma unroll
  for (u32 i = 0; i < STEP / 16; i++) {
    u32 values = step + (u32)sizeof(Step::k) + i / 2 * (64 * DIM) + i % 2 * 32;
    wgmma(r.o, p[i], operand<64>(values));
  }
  wgmma_commit();
}

__device__ __forceinline__ void to_weights(const float (&s)[STEP / 8][4], u32 (&p)[STEP / 16][4]) {
#pragma unroll
  for (u32 i = 0; i < STEP / 4; i++) p[i / 4][i % 4] = weight_pair(s[i / 2][2 * (i % 2)], s[i / 2][2 * (i % 2) + 1]);
}

// The rows of a warp, of which the first is `row`, and which end before `end_row`.
__device__ __forceinline__ void put_rows(
    const AttendArgs& a, const SpanData& span, u32 group, u32 kv_head, u32 row, u32 end_row, const Rows16& r) {
  u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 mine = row + g + 8 * h;
    if (mine >= end_row) continue;
    put_row(a, ((u64)(span.row + mine / group) * a.heads + kv_head * group + mine % group) * DIM + 2 * t, h, r);
  }
}
