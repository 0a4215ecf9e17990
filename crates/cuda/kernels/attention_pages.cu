// Pages that a warp's rows attend to, of whatever format, and what warps found of the same rows.

// Rows that have seen nothing yet, and their queries.
__device__ __forceinline__ void begin(const AttendArgs& a, const SpanData& span, u32 kv_head, u32 first_row, Queries& q, Rows16& r) {
  load_queries(a, span, kv_head, first_row, q);
  begin_sums(span, a.heads / a.kv_heads, first_row, r);
  fit_queries(q, r);
}

// The values of a page with these scores, whose first token is at `position`, of a sequence of `tokens`.
template <bool EDGE, u32 TILES>
__device__ __forceinline__ void add_scored(
    const AttendArgs& a, const Cell* v, u32 position, u32 tokens, float (&s)[TILES][4][4], Rows16 (&r)[TILES]) {
  float fade[TILES][2];
  bool moved = false;
#pragma unroll
  for (u32 tile = 0; tile < TILES; tile++) {
    cap_scores(s[tile], a);
    if (EDGE) hide<8, 2>(s[tile], position, a, r[tile]);
    moved |= weigh(s[tile], a, r[tile], fade[tile]);
  }
  if (__ballot_sync(ALL_LANES, moved)) {
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) dim_rows(fade[tile], r[tile]);
  }
  add_values<EDGE>(v, min(tokens - position, 32u), s, r);
}

// Adds up the sums of the four lanes that share a row.
__device__ __forceinline__ void end(Rows16& r) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 1);
    r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 2);
  }
  end_sums(r);
}

__device__ __forceinline__ const Cell* block_at(const AttendArgs& a, u32 block, u32 kv_head) {
  return (const Cell*)a.pages + ((u64)block * a.kv_heads + kv_head) * 2 * PLANE;
}

// What WARPS warps found of the same 16 rows.
template <u32 WARPS>
struct Merging {
  // Rows so far apart that those of a half of a warp meet in no bank.
  float means[16][DIM + 8];
  float mosts[WARPS][16], sums[16];
  __device__ __forceinline__ float most(u32 row) const {
    float most = mosts[0][row];
#pragma unroll
    for (u32 w = 1; w < WARPS; w++) most = fmaxf(most, mosts[w][row]);
    return most;
  }
};

// Merges it, of as many rows as there are, in the order of the warps. All of the block call it, after `end`.
template <u32 WARPS>
__device__ __forceinline__ void merge_warps(const Rows16& r, u32 rows, Merging<WARPS>& to) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  if (t == 0) { to.mosts[warp][g] = r.most[0]; to.mosts[warp][g + 8] = r.most[1]; }
  __syncthreads();
  float fade[2];
#pragma unroll
  for (u32 h = 0; h < 2; h++) fade[h] = r.most[h] == NO_SCORE ? 0.0f : power_of_two(r.most[h] - to.most(g + 8 * h));
  for (u32 w = 0; w < WARPS; w++) {
    if (warp == w) {
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        u32 row = g + 8 * h;
        if (row >= rows) continue;
#pragma unroll
        for (u32 i = 0; i < DIM / 8; i++) {
          float2* mean = (float2*)&to.means[row][8 * i + 2 * t];
          float2 before = w == 0 ? make_float2(0.0f, 0.0f) : *mean;
          *mean = make_float2(before.x + r.o[i][2 * h] * fade[h], before.y + r.o[i][2 * h + 1] * fade[h]);
        }
        if (t == 0) to.sums[row] = (w == 0 ? 0.0f : to.sums[row]) + r.sum[h] * fade[h];
      }
    }
    __syncthreads();
  }
}
