// One page of keys and values, whose first token is at `position`, of a sequence of `tokens`.
__device__ __forceinline__ void take_page(const Cell* k, u32 stride, const Cell* v, u32 position, u32 tokens, float scale, Rows16& r) {
  float s[4][4], fade[2];
  score(k, stride, r, s);
  weigh(s, position, scale, r, fade);
  add_values(v, min(tokens - position, 32u), s, fade, r);
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

__device__ __forceinline__ const Cell* page_of(const AttendArgs& a, const SpanData& span, u32 page, u32 kv_head) {
  return (const Cell*)a.pages + ((u64)a.tables[span.table + page] * a.kv_heads + kv_head) * 2 * PLANE;
}

__device__ __forceinline__ u32 first_page(const AttendArgs& a, u32 position) {
  return a.window && position + 1 > a.window ? (position + 1 - a.window) / 32 : 0;
}

#define STAGES (DIM > 128 ? 1 : 2)

struct __align__(16) Page {
  Cell planes[VALUES + PLANE];
};

// Many rows: a block takes 64 (query, head) pairs, its warps 16 each, and brings pages to shared memory.
KERNEL(attend_many, AttendArgs, 128) {
  __shared__ Page pages[STAGES];
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 group = a.heads / a.kv_heads, kv_head = blockIdx.y, first_row = a.work[blockIdx.x].y;
  u32 warp_row = first_row + 16 * (threadIdx.x / 32), end_row = span.rows * group;
  Rows16 r;
  begin(a, span, kv_head, warp_row, r);
  begin_sums(r);
  u32 last_row = min(first_row + 64, end_row) - 1;
  u32 from = first_page(a, span.start + first_row / group), to = (span.start + last_row / group) / 32;
  // What this warp's own rows need of it.
  u32 mine_last = warp_row < end_row ? (span.start + (min(warp_row + 16, end_row) - 1) / group) / 32 : 0;
  u32 mine_first = warp_row < end_row ? first_page(a, span.start + warp_row / group) : 1;
  bring(page_of(a, span, from, kv_head), pages[0].planes);
  copies_commit();
  for (u32 page = from; page <= to; page++) {
    if (STAGES == 2) {
      if (page < to) bring(page_of(a, span, page + 1, kv_head), pages[(page + 1 - from) % STAGES].planes);
      copies_commit();
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    const Cell* here = pages[(page - from) % STAGES].planes;
    if (page >= mine_first && page <= mine_last) take_page(here, KEY_STRIDE, here + VALUES, 32 * page, span.start + span.rows, a.scale, r);
    __syncthreads();
    if (STAGES == 1 && page < to) {
      bring(page_of(a, span, page + 1, kv_head), pages[0].planes);
      copies_commit();
    }
  }
  end(r);
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 row = warp_row + g + 8 * h;
    if (!r.live[h]) continue;
    u64 at = ((u64)(span.row + row / group) * a.heads + kv_head * group + row % group) * DIM + 2 * t;
#pragma unroll
    for (u32 i = 0; i < DIM / 8; i++) {
      float low = r.o[i][2 * h] / r.sum[h], high = r.o[i][2 * h + 1] / r.sum[h];
      if (a.out_bf16) *(u32*)((u16*)a.out + at + 8 * i) = narrow_pair(low, high);
      else { ((float*)a.out)[at + 8 * i] = low; ((float*)a.out)[at + 8 * i + 1] = high; }
    }
  }
}

#define SPLIT_PAGES 8

// Few rows (16 pairs at most): a block takes 8 pages of a sequence, wherever its queries are, a warp every fourth, and
// reads them straight into registers. What the warps found is merged in their order.
KERNEL(attend_few, AttendArgs, 128) {
  // Rows so far apart that those of a half of a warp meet in no bank.
  __shared__ __align__(16) float means[16][DIM + 8];
  __shared__ float mosts[4][16], sums[16];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, kv_head = blockIdx.y;
  if (a.work[blockIdx.x].x == ALL_LANES) return;  // no work
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 split = a.work[blockIdx.x].y, group = a.heads / a.kv_heads, rows = span.rows * group;
  u32 from = max(split * SPLIT_PAGES, first_page(a, span.start)), to = min((split + 1) * SPLIT_PAGES, (span.start + span.rows + 31) / 32);
  Rows16 r;
  begin(a, span, kv_head, 0, r);
  begin_sums(r);
  for (u32 page = split * SPLIT_PAGES + warp; page < to; page += 4) {
    if (page < from) continue;
    const Cell* k = page_of(a, span, page, kv_head);
    take_page(k, DIM, k + PLANE, 32 * page, span.start + span.rows, a.scale, r);
  }
  end(r);
  if (t == 0) { mosts[warp][g] = r.most[0]; mosts[warp][g + 8] = r.most[1]; }
  __syncthreads();
  float fade[2];
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 row = g + 8 * h;
    float most = fmaxf(fmaxf(mosts[0][row], mosts[1][row]), fmaxf(mosts[2][row], mosts[3][row]));
    fade[h] = r.most[h] == NO_SCORE ? 0.0f : exp2f(r.most[h] - most);
  }
  for (u32 w = 0; w < 4; w++) {
    if (warp == w) {
#pragma unroll
      for (u32 h = 0; h < 2; h++) {
        u32 row = g + 8 * h;
        if (row >= rows) continue;
#pragma unroll
        for (u32 i = 0; i < DIM / 8; i++) {
          float2* mean = (float2*)&means[row][8 * i + 2 * t];
          float2 before = w == 0 ? make_float2(0.0f, 0.0f) : *mean;
          *mean = make_float2(before.x + r.o[i][2 * h] * fade[h], before.y + r.o[i][2 * h + 1] * fade[h]);
        }
        if (t == 0) sums[row] = (w == 0 ? 0.0f : sums[row]) + r.sum[h] * fade[h];
      }
    }
    __syncthreads();
  }
  for (u32 row = warp; row < rows; row += 4) {
    float* partial = a.partials + ((u64)(span.partial + (split - span.first_split) * rows + row) * a.kv_heads + kv_head) * (DIM + 2);
    for (u32 d = lane; d < DIM; d += 32) partial[d] = means[row][d];
    if (lane == 0) {
      partial[DIM] = fmaxf(fmaxf(mosts[0][row], mosts[1][row]), fmaxf(mosts[2][row], mosts[3][row]));
      partial[DIM + 1] = sums[row];
    }
  }
}

// Merges the splits of a span in one head of keys, in their order, by the logarithms of their sums.
KERNEL(merge_splits, AttendArgs, 128) {
  u32 lane = threadIdx.x % 32, kv_head = blockIdx.y, group = a.heads / a.kv_heads;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 rows = span.rows * group, stride = DIM + 2;
  for (u32 row = threadIdx.x / 32; row < rows; row += 4) {
    const float* first = a.partials + ((u64)(span.partial + row) * a.kv_heads + kv_head) * stride;
    u64 next = (u64)rows * a.kv_heads * stride;
    float most = NO_SCORE, sum = 0.0f;
    for (u32 i = 0; i < span.splits; i++) most = fmaxf(most, first[i * next + DIM]);
    for (u32 i = 0; i < span.splits; i++) sum += first[i * next + DIM + 1] * exp2f(first[i * next + DIM] - most);
    u64 at = ((u64)(span.row + row / group) * a.heads + kv_head * group + row % group) * DIM;
    for (u32 d = lane; d < DIM; d += 32) {
      float mean = 0.0f;
      for (u32 i = 0; i < span.splits; i++) mean += first[i * next + d] * exp2f(first[i * next + DIM] - most);
      float y = mean / sum;
      if (a.out_bf16) ((u16*)a.out)[at + d] = (u16)narrow(y);
      else ((float*)a.out)[at + d] = y;
    }
  }
}
