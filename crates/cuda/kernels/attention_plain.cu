// Pages of plain numbers, which `eight` gives as bf16.

// Numbers of a plane.
#define PLANE (32 * DIM)
// Keys in shared memory: rows an odd number of 32 numbers apart, so that those of bf16 that are read at a time meet in no bank,
// and those of 8 bits in none that has more than two.
#define KEY_STRIDE (32 * (CHUNKS | 1))
// Where values lie there.
#define VALUES (32 * KEY_STRIDE)

__device__ __forceinline__ void begin_sums(Rows16&) {}
__device__ __forceinline__ void end_sums(Rows16&) {}

// The scores of a page, whose rows of keys are `stride` apart.
__device__ __forceinline__ void score(const Cell* k, u32 stride, const Rows16& r, float (&s)[4][4]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    const Cell* row = k + (8 * (g / 2) + 2 * j + g % 2) * stride;
#pragma unroll
    for (u32 e = 0; e < 4; e++) s[j][e] = 0.0f;
#pragma unroll
    for (u32 c = 0; c < CHUNKS; c++) {
      uint4 w = 32 * c + 8 * t < DIM ? eight(row + 32 * c + 8 * t) : none();
      mma(s[j], r.q[c][0], w.x, w.y);
      mma(s[j], r.q[c][1], w.z, w.w);
    }
  }
}

// The first of two numbers, if there is but one; none, if there is none.
__device__ __forceinline__ u32 those_of(u32 pair, u32 first, u32 written) {
  return first + 1 < written ? pair : first < written ? pair & 0xffffu : 0;
}

// Adds a page's values by their weights. Only `written` of its tokens have some: the others' may be anything, even NaN,
// which no weight of zero takes away.
__device__ __forceinline__ void add_values(const Cell* v, u32 written, const float (&s)[4][4], const float (&fade)[2], Rows16& r) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
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
    uint4 w = eight(v + (8 * i + g) * 32 + 8 * t);
    if (written < 32) {
      w.x = those_of(w.x, 8 * t, written);
      w.y = those_of(w.y, 8 * t + 2, written);
      w.z = those_of(w.z, 8 * t + 4, written);
      w.w = those_of(w.w, 8 * t + 6, written);
    }
#pragma unroll
    for (u32 e = 0; e < 4; e++) r.o[i][e] *= fade[e / 2];
    mma(r.o[i], p[0], w.x, w.y);
    mma(r.o[i], p[1], w.z, w.w);
  }
}

__device__ __forceinline__ void bring(const Cell* from, Cell* page) {
  const u32 each = 16 / sizeof(Cell);
  for (u32 i = threadIdx.x; i < PLANE / each; i += blockDim.x) {
    copy_16(page + i / (DIM / each) * KEY_STRIDE + i % (DIM / each) * each, from + each * i);
    copy_16(page + VALUES + each * i, from + PLANE + each * i);
  }
}
