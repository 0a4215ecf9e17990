// Paged attention over pages of 32 tokens: K [32][DIM], V transposed [DIM][32], head after head.
//
// Rows of a tile are (query, head of the group) pairs, so that all heads of a group share what is read. A warp has
// 16 of them. Tokens and dimensions are dealt to lanes so that every operand of the tensor cores is 16 bytes from one
// place: column n of score block j is token 8 (n / 2) + 2 j + n % 2; dimensions go 8 to a lane, as k does in linear.cu.
// Lane 4 g + t then has the scores of tokens 8 t .. 8 t + 7, which is what it needs as operand against V.

#define DIM HEAD_DIM
#define CHUNKS ((DIM + 31) / 32)

struct SpanData {
  u32 row;          // of the batch
  u32 start;        // position of the first row
  u32 rows;
  u32 table;        // where its blocks begin
  u32 partial;      // decode: its first partial row
  u32 first_split;  // decode: the first that is seen
  u32 splits;       // decode: how many
};

struct AttendArgs {
  const void* q;         // [rows, heads DIM]
  const void* pages;
  void* out;             // [rows, heads DIM]
  const SpanData* spans;
  const u32* tables;
  const uint2* work;     // {span, first row of the tile} or {span, split}
  float* partials;       // [partial rows, kv_heads][DIM + 2]: mean not yet divided, maximum, sum
  float scale;           // times log2(e)
  u32 heads, kv_heads;
  u32 window;            // 0: none
  u32 out_bf16;
};

#ifdef HEAD_FLOATS

#define OF_LANE (DIM / 32 + 1)

// f32 pages: one warp takes a query in one head; plain arithmetic.
KERNEL(attend_floats, AttendArgs, 128) {
  __shared__ float queries[4][DIM];
  u32 lane = threadIdx.x % 32, head = blockIdx.y * 4 + threadIdx.x / 32;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 i = a.work[blockIdx.x].y, position = span.start + i;
  if (head >= a.heads) return;
  u64 at = ((u64)(span.row + i) * a.heads + head) * DIM;
  float* q = queries[threadIdx.x / 32];
  for (u32 j = lane; j < DIM; j += 32) q[j] = ((const float*)a.q)[at + j];
  __syncwarp();
  u32 first = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
  float o[OF_LANE] = {}, most = NO_SCORE, sum = 0.0f;
  for (u32 page = first / 32; page <= position / 32; page++) {
    const float* k = (const float*)a.pages + ((u64)a.tables[span.table + page] * a.kv_heads + head / (a.heads / a.kv_heads)) * 64 * DIM;
    const float* v = k + 32 * DIM;
    u32 token = page * 32 + lane;
    float score = NO_SCORE;
    if (token >= first && token <= position) {
      score = 0.0f;
      for (u32 j = 0; j < DIM; j++) score = fmaf(q[j], k[lane * DIM + j], score);
      score *= a.scale;
    }
    float larger = fmaxf(most, warp_max(score)), fade = exp2f(most - larger), p = exp2f(score - larger);
    most = larger;
    sum = sum * fade + warp_sum(p);
    for (u32 j = 0; j < OF_LANE; j++) o[j] *= fade;
    for (u32 n = 0; n < 32; n++) {
      float weight = __shfl_sync(ALL_LANES, p, n);
      if (weight == 0.0f) continue;
      for (u32 j = lane; j < DIM; j += 32) o[j / 32] = fmaf(weight, v[j * 32 + n], o[j / 32]);
    }
  }
  for (u32 j = lane; j < DIM; j += 32) {
    float y = o[j / 32] / sum;
    if (a.out_bf16) ((u16*)a.out)[at + j] = (u16)narrow(y);
    else ((float*)a.out)[at + j] = y;
  }
}

#else

// A warp's 16 rows: queries, what has been summed, and which positions rows g and g + 8 see.
struct Rows16 {
  u32 q[CHUNKS][2][4];
  float o[DIM / 8][4];
  float most[2], sum[2];
  u32 first[2], last[2];
  bool live[2];
};

__device__ __forceinline__ uint4 none() { return make_uint4(0, 0, 0, 0); }

// Rows `first_row ..` of the span's flattened (query, head) pairs.
__device__ __forceinline__ void begin(const AttendArgs& a, const SpanData& span, u32 kv_head, u32 first_row, Rows16& r) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = a.heads / a.kv_heads;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 row = first_row + g + 8 * h, i = row / group, position = span.start + i;
    r.live[h] = i < span.rows;
    r.last[h] = position;
    r.first[h] = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
    const u16* q = (const u16*)a.q + ((u64)(span.row + i) * a.heads + kv_head * group + row % group) * DIM;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
      u32 d = 32 * c + 8 * t;
      uint4 v = r.live[h] && d < DIM ? __ldg((const uint4*)(q + d)) : none();
      r.q[c][0][h] = v.x; r.q[c][0][2 + h] = v.y;
      r.q[c][1][h] = v.z; r.q[c][1][2 + h] = v.w;
    }
    r.most[h] = NO_SCORE;
    r.sum[h] = 0.0f;
  }
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) r.o[i][e] = 0.0f;
}

// One page of keys (rows `stride` apart) and values, whose first token is at `position`.
__device__ __forceinline__ void take_page(const u16* k, u32 stride, const u16* v, u32 position, float scale, Rows16& r) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float s[4][4];
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    const u16* row = k + (8 * (g / 2) + 2 * j + g % 2) * stride;
#pragma unroll
    for (u32 e = 0; e < 4; e++) s[j][e] = 0.0f;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
      uint4 w = 32 * c + 8 * t < DIM ? *(const uint4*)(row + 32 * c + 8 * t) : none();
      mma(s[j], r.q[c][0], w.x, w.y);
      mma(s[j], r.q[c][1], w.z, w.w);
    }
  }
  float largest[2] = {NO_SCORE, NO_SCORE};
#pragma unroll
  for (u32 j = 0; j < 4; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      u32 at = position + 8 * t + 2 * j + e % 2, h = e / 2;
      bool seen = r.live[h] && at >= r.first[h] && at <= r.last[h];
      s[j][e] = seen ? s[j][e] * scale : NO_SCORE;
      largest[h] = fmaxf(largest[h], s[j][e]);
    }
  float fade[2];
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    largest[h] = fmaxf(largest[h], __shfl_xor_sync(ALL_LANES, largest[h], 1));
    largest[h] = fmaxf(largest[h], __shfl_xor_sync(ALL_LANES, largest[h], 2));
    float most = fmaxf(r.most[h], largest[h]);
    // A row that has seen nothing yet keeps minus infinity, and must not subtract it from itself.
    largest[h] = most == NO_SCORE ? 0.0f : most;
    fade[h] = exp2f(r.most[h] - largest[h]);
    r.most[h] = most;
    r.sum[h] *= fade[h];
  }
#pragma unroll
  for (u32 j = 0; j < 4; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      s[j][e] = exp2f(s[j][e] - largest[e / 2]);
      r.sum[e / 2] += s[j][e];
    }
  u32 p[2][4];
#pragma unroll
  for (u32 step = 0; step < 2; step++)
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      const float* pair = &s[2 * step + i / 2][2 * (i % 2)];
      p[step][i] = narrow_pair(pair[0], pair[1]);
    }
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++) {
    uint4 w = *(const uint4*)(v + (8 * i + g) * 32 + 8 * t);
#pragma unroll
    for (u32 e = 0; e < 4; e++) r.o[i][e] *= fade[e / 2];
    mma(r.o[i], p[0], w.x, w.y);
    mma(r.o[i], p[1], w.z, w.w);
  }
}

// Adds up the sums of the four lanes that share a row.
__device__ __forceinline__ void end(Rows16& r) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 1);
    r.sum[h] += __shfl_xor_sync(ALL_LANES, r.sum[h], 2);
  }
}

__device__ __forceinline__ const u16* page_of(const AttendArgs& a, const SpanData& span, u32 page, u32 kv_head) {
  return (const u16*)a.pages + ((u64)a.tables[span.table + page] * a.kv_heads + kv_head) * 64 * DIM;
}

__device__ __forceinline__ u32 first_page(const AttendArgs& a, u32 position) {
  return a.window && position + 1 > a.window ? (position + 1 - a.window) / 32 : 0;
}

// Keys in shared memory: rows an odd number of 64 bytes apart, so that two of them meet in no bank.
#define STRIDE (32 * (CHUNKS | 1))
#define STAGES (DIM > 128 ? 1 : 2)

struct __align__(16) Page {
  u16 k[32 * STRIDE];
  u16 v[32 * DIM];
};

__device__ __forceinline__ void bring(const u16* from, Page& page) {
  for (u32 i = threadIdx.x; i < 32 * DIM / 8; i += blockDim.x) {
    copy_16(page.k + i / (DIM / 8) * STRIDE + i % (DIM / 8) * 8, from + 8 * i);
    copy_16(page.v + 8 * i, from + 32 * DIM + 8 * i);
  }
}

// Many rows: a block takes 64 (query, head) pairs, its warps 16 each, and brings pages to shared memory.
KERNEL(attend_many, AttendArgs, 128) {
  __shared__ Page pages[STAGES];
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 group = a.heads / a.kv_heads, kv_head = blockIdx.y, first_row = a.work[blockIdx.x].y;
  u32 warp_row = first_row + 16 * (threadIdx.x / 32), end_row = span.rows * group;
  Rows16 r;
  begin(a, span, kv_head, warp_row, r);
  u32 last_row = min(first_row + 64, end_row) - 1;
  u32 from = first_page(a, span.start + first_row / group), to = (span.start + last_row / group) / 32;
  // What this warp's own rows need of it.
  u32 mine_last = warp_row < end_row ? (span.start + (min(warp_row + 16, end_row) - 1) / group) / 32 : 0;
  u32 mine_first = warp_row < end_row ? first_page(a, span.start + warp_row / group) : 1;
  bring(page_of(a, span, from, kv_head), pages[0]);
  copies_commit();
  for (u32 page = from; page <= to; page++) {
    if (STAGES == 2) {
      if (page < to) bring(page_of(a, span, page + 1, kv_head), pages[(page + 1 - from) % STAGES]);
      copies_commit();
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    const Page& here = pages[(page - from) % STAGES];
    if (page >= mine_first && page <= mine_last) take_page(here.k, STRIDE, here.v, 32 * page, a.scale, r);
    __syncthreads();
    if (STAGES == 1 && page < to) {
      bring(page_of(a, span, page + 1, kv_head), pages[0]);
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
  __shared__ float means[16][DIM];
  __shared__ float mosts[4][16], sums[16];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, kv_head = blockIdx.y;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 split = a.work[blockIdx.x].y, group = a.heads / a.kv_heads, rows = span.rows * group;
  u32 from = max(split * SPLIT_PAGES, first_page(a, span.start)), to = min((split + 1) * SPLIT_PAGES, (span.start + span.rows + 31) / 32);
  Rows16 r;
  begin(a, span, kv_head, 0, r);
  for (u32 page = split * SPLIT_PAGES + warp; page < to; page += 4) {
    if (page < from) continue;
    const u16* k = page_of(a, span, page, kv_head);
    take_page(k, DIM, k + 32 * DIM, 32 * page, a.scale, r);
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
      for (u32 e = 0; e < 4; e++) {
        u32 row = g + 8 * (e / 2);
#pragma unroll
        for (u32 i = 0; i < DIM / 8; i++) {
          float* mean = &means[row][8 * i + 2 * t + e % 2];
          *mean = (w == 0 ? 0.0f : *mean) + r.o[i][e] * fade[e / 2];
        }
        if (t == 0 && e % 2 == 0) sums[row] = (w == 0 ? 0.0f : sums[row]) + r.sum[e / 2] * fade[e / 2];
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

#endif
