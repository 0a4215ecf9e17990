// A warp's 16 rows: queries, what has been summed, and which positions rows g and g + 8 see.
struct Rows16 {
  u32 q[CHUNKS][2][4];
  float o[DIM / 8][4];
  float most[2], sum[2];
  u32 first[2], last[2];
  bool live[2];
#ifdef KV_INT4
  float query[GROUPS][2];  // sums of the queries' groups
  float low[GROUPS][2];    // what is to be added to the sums of a group's dims
#endif
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

// The page's scores become weights, given the largest so far. What was summed before is to be multiplied by `fade`.
__device__ __forceinline__ void weigh(float (&s)[4][4], u32 position, float scale, Rows16& r, float (&fade)[2]) {
  u32 t = threadIdx.x % 4;
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
}
