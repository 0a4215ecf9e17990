// Sixteen rows of a warp: what has been summed, and up to which position rows g and g + 8 see. Rows beyond the span's last are
// computed like others and go nowhere.
struct Rows16 {
  float o[DIM / 8][4];
  float most[2], sum[2];
  u32 last[2];
#ifdef KV_INT4
  float low[GROUPS][2];  // what is to be added to the sums of a group's dims
#endif
};

// Queries of 16 rows as operands of the tensor cores, and where it is used the sum of each group's.
struct Queries {
  u32 pairs[CHUNKS][2][4];
#ifdef KV_INT4
  float sums[GROUPS][2];
#endif
};

__device__ __forceinline__ uint4 none() { return make_uint4(0, 0, 0, 0); }

// A plane of so many cells to shared memory, as it lies, by as many threads, of which this is one.
template <u32 CELLS, class Cell>
__device__ __forceinline__ void bring_plane(const Cell* from, Cell* to, u32 thread, u32 threads) {
  const u32 each = 16 / sizeof(Cell);
  for (u32 i = thread; i < CELLS / each; i += threads) copy_16(to + each * i, from + each * i);
}

// Rows `first_row ..` of the span's flattened (query, head) pairs have seen nothing yet.
__device__ __forceinline__ void begin_sums(const SpanData& span, u32 group, u32 first_row, Rows16& r) {
  u32 g = threadIdx.x % 32 / 4;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    r.last[h] = span.start + (first_row + g + 8 * h) / group;
    r.most[h] = NO_SCORE;
    r.sum[h] = 0.0f;
  }
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) r.o[i][e] = 0.0f;
}

__device__ __forceinline__ void load_queries(const AttendArgs& a, const SpanData& span, u32 kv_head, u32 first_row, Queries& q) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = a.heads / a.kv_heads;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 row = first_row + g + 8 * h, i = row / group;
    const u16* from = (const u16*)a.q + ((u64)(span.row + i) * a.heads + kv_head * group + row % group) * DIM;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
      u32 d = 32 * c + 8 * t;
      uint4 v = i < span.rows && d < DIM ? load_16(from + d) : none();
      q.pairs[c][0][h] = v.x; q.pairs[c][0][2 + h] = v.y;
      q.pairs[c][1][h] = v.z; q.pairs[c][1][2 + h] = v.w;
    }
  }
}

// Queries stay where they were read to.
struct InRegisters {
  const Queries& q;
  __device__ __forceinline__ void get(u32, u32 c, u32 step, u32 (&to)[4]) const {
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = q.pairs[c][step][i];
  }
#ifdef KV_INT4
  __device__ __forceinline__ float sum(u32, u32 group, u32 h) const { return q.sums[group][h]; }
#endif
};

// Queries of TILES times 16 rows, which would fill a warp's registers, lie in shared memory: each thread's own.
template <u32 TILES>
struct InShared {
  uint4 pairs[TILES][CHUNKS][2][128];
#ifdef KV_INT4
  float sums[TILES][GROUPS][2][128];
#endif
  __device__ __forceinline__ void put(u32 tile, const Queries& q) {
#pragma unroll
    for (u32 i = 0; i < 2 * CHUNKS; i++) {
      const u32(&from)[4] = q.pairs[i / 2][i % 2];
      pairs[tile][i / 2][i % 2][threadIdx.x] = make_uint4(from[0], from[1], from[2], from[3]);
    }
#ifdef KV_INT4
#pragma unroll
    for (u32 i = 0; i < 2 * GROUPS; i++) sums[tile][i / 2][i % 2][threadIdx.x] = q.sums[i / 2][i % 2];
#endif
  }
  __device__ __forceinline__ void get(u32 tile, u32 c, u32 step, u32 (&to)[4]) const {
    uint4 v = pairs[tile][c][step][threadIdx.x];
    to[0] = v.x; to[1] = v.y; to[2] = v.z; to[3] = v.w;
  }
#ifdef KV_INT4
  __device__ __forceinline__ float sum(u32 tile, u32 group, u32 h) const { return sums[tile][group][h][threadIdx.x]; }
#endif
};

// A row's weights are 2 to the power of its scores less the largest. That stays the largest of those seen so far until one is so
// much larger: what was summed is seldom multiplied anew, and weights are no more than 2^8.
#define SLACK 8.0f

// A lane's scores are those of tokens OF_LANE t + OF_PAIR j, and the next: how they are dealt to lanes is the product's affair.
// On an edge not every row sees all of them.
template <u32 OF_LANE, u32 OF_PAIR, u32 PAIRS>
__device__ __forceinline__ void hide(float (&s)[PAIRS][4], u32 position, const AttendArgs& a, const Rows16& r) {
  u32 t = threadIdx.x % 4;
#pragma unroll
  for (u32 j = 0; j < PAIRS; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      u32 at = position + OF_LANE * t + OF_PAIR * j + e % 2, h = e / 2;
      if (at > r.last[h] || (a.window && at + a.window <= r.last[h])) s[j][e] = NO_SCORE;
    }
}

// Scores that are still to be multiplied come no further from zero than they may.
template <u32 PAIRS>
__device__ __forceinline__ void cap_scores(float (&s)[PAIRS][4], const AttendArgs& a) {
#ifdef CAPPED
  float back = 1.0f / a.scale;
#pragma unroll
  for (u32 j = 0; j < PAIRS; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) s[j][e] = capped(a, s[j][e] * a.scale) * back;
#endif
}

// Scores become weights. What was summed before is to be multiplied by `fade`; whether that is not 1. To a row that sees all of
// them an edge is like any other place, so sums are fused here and below where the text says so and nowhere else.
template <u32 PAIRS>
__device__ __forceinline__ bool weigh(float (&s)[PAIRS][4], const AttendArgs& a, Rows16& r, float (&fade)[2]) {
  // Of many scores every other by itself: one chain of all of them would keep its warp waiting for the result before.
  constexpr u32 CHAINS = PAIRS > 4 ? 2 : 1;
  float most_of[2][CHAINS], sum_of[2][CHAINS] = {}, largest[2], base[2];
  bool moved = false;
#pragma unroll
  for (u32 i = 0; i < 2 * CHAINS; i++) most_of[i / CHAINS][i % CHAINS] = NO_SCORE;
#pragma unroll
  for (u32 j = 0; j < PAIRS; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      float& most = most_of[e / 2][e % CHAINS];
      most = fmaxf(most, s[j][e]);
    }
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    largest[h] = fmaxf(most_of[h][0], most_of[h][CHAINS - 1]);
    largest[h] = fmaxf(largest[h], __shfl_xor_sync(ALL_LANES, largest[h], 1));
    largest[h] = __fmul_rn(fmaxf(largest[h], __shfl_xor_sync(ALL_LANES, largest[h], 2)), a.scale);
    bool larger = largest[h] > r.most[h] + SLACK;
    fade[h] = larger ? power_of_two(r.most[h] - largest[h]) : 1.0f;
    if (larger) r.most[h] = largest[h];
    moved |= larger;
    // A row that has seen nothing yet keeps minus infinity, and must not subtract it from itself.
    base[h] = r.most[h] == NO_SCORE ? 0.0f : r.most[h];
    sum_of[h][0] = __fmul_rn(r.sum[h], fade[h]);
  }
#pragma unroll
  for (u32 j = 0; j < PAIRS; j++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
#ifdef KV_F16
      // Where keys are as large as halves can be, so is a score's last place: rounded as the largest is, it is no larger, and its
      // weight is one that a half holds. NaN stays NaN.
      float exponent = __fadd_rn(__fmul_rn(s[j][e], a.scale), -base[e / 2]);
      exponent = exponent > SLACK ? SLACK : exponent;
#else
      float exponent = fmaf(s[j][e], a.scale, -base[e / 2]);
#endif
      s[j][e] = power_of_two(exponent);
      sum_of[e / 2][e % CHAINS] += s[j][e];
    }
#pragma unroll
  for (u32 h = 0; h < 2; h++) r.sum[h] = CHAINS == 1 ? sum_of[h][0] : sum_of[h][0] + sum_of[h][CHAINS - 1];
  return moved;
}

// Multiplies what was summed.
__device__ __forceinline__ void dim_rows(const float (&fade)[2], Rows16& r) {
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++)
#pragma unroll
    for (u32 e = 0; e < 4; e++) r.o[i][e] *= fade[e / 2];
#ifdef KV_INT4
#pragma unroll
  for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) r.low[group][h] = __fmul_rn(r.low[group][h], fade[h]);
#endif
}

// Row h of a lane's, whose sums are whole: its dims, from `at` on of the result.
__device__ __forceinline__ void put_row(const AttendArgs& a, u64 at, u32 h, const Rows16& r) {
  float share = 1.0f / r.sum[h];
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++) {
    float low = r.o[i][2 * h] * share, high = r.o[i][2 * h + 1] * share;
    if (a.out_bf16) *(u32*)((u16*)a.out + at + 8 * i) = narrow_pair(low, high);
    else *(float2*)((float*)a.out + at + 8 * i) = make_float2(low, high);
  }
}
