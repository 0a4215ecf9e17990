// Pages of plain numbers, which `eight` gives as 16 bits each; they are multiplied as `multiply` does.

// Numbers of a plane.
#define PLANE (32 * DIM)
// Keys in shared memory: rows of whole chunks of 32 numbers. Of two rows beside each other, which are read at a time, chunks must
// meet in no bank: where there is an even number of them, those of the second row change places, two and two.
#define KEY_STRIDE (32 * CHUNKS)
#define TURN (CHUNKS % 2 == 0 ? 32u : 0u)
// Where values lie there.
#define VALUES (32 * KEY_STRIDE)

__device__ __forceinline__ void fit_queries(Queries& q, Rows16&) {
#pragma unroll
  for (u32 i = 0; i < 8 * CHUNKS; i++) q.pairs[i / 8][i / 4 % 2][i % 4] = query_pair(q.pairs[i / 8][i / 4 % 2][i % 4]);
}
__device__ __forceinline__ void end_sums(Rows16&) {}

// The scores of a page's keys, as they lie in shared memory or in the device's.
template <bool SHARED, u32 TILES, class From>
__device__ __forceinline__ void score(const Cell* k, const From& queries, float (&s)[TILES][4][4]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, turn = SHARED ? g % 2 * TURN : 0;
  const u32 stride = SHARED ? KEY_STRIDE : DIM;
  const Cell* row = k + (8 * (g / 2) + g % 2) * stride + 8 * t;
#pragma unroll
  for (u32 i = 0; i < 16 * TILES; i++) s[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll
  for (u32 c = 0; c < CHUNKS; c++) {
    u32 q[TILES][2][4];
#pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) queries.get(i / 2, c, i % 2, q[i / 2][i % 2]);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const Cell* at = row + 2 * j * stride + (c % 2 ? 32 * c - turn : 32 * c + turn);
      uint4 w = 32 * c + 8 * t < DIM ? eight(at) : none();
#pragma unroll
      for (u32 tile = 0; tile < TILES; tile++) multiply(s[tile][j], q[tile][0], w.x, w.y);
#pragma unroll
      for (u32 tile = 0; tile < TILES; tile++) multiply(s[tile][j], q[tile][1], w.z, w.w);
    }
  }
}

// The first of two numbers, if there is but one; none, if there is none.
__device__ __forceinline__ u32 those_of(u32 pair, u32 first, u32 written) {
  return first + 1 < written ? pair : first < written ? pair & 0xffffu : 0;
}

// Adds a page's values by their weights. On an edge only `written` of its tokens have some: the others' may be anything, even
// NaN, which no weight of zero takes away.
template <bool EDGE, u32 TILES>
__device__ __forceinline__ void add_values(const Cell* v, u32 written, const float (&s)[TILES][4][4], Rows16 (&r)[TILES]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u32 p[TILES][2][4];
#pragma unroll
  for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
    for (u32 step = 0; step < 2; step++)
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        const float* pair = &s[tile][2 * step + i / 2][2 * (i % 2)];
        p[tile][step][i] = weight_pair(pair[0], pair[1]);
      }
#pragma unroll
  for (u32 i = 0; i < DIM / 8; i++) {
    uint4 w = eight(v + (8 * i + g) * 32 + 8 * t);
    if (EDGE) {
      w.x = those_of(w.x, 8 * t, written);
      w.y = those_of(w.y, 8 * t + 2, written);
      w.z = those_of(w.z, 8 * t + 4, written);
      w.w = those_of(w.w, 8 * t + 6, written);
    }
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) multiply(r[tile].o[i], p[tile][0], w.x, w.y);
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) multiply(r[tile].o[i], p[tile][1], w.z, w.w);
  }
}

// Keys as they are to lie in shared memory, by as many threads, of which this is one.
__device__ __forceinline__ void bring_keys(const Cell* from, Cell* to, u32 thread, u32 threads) {
  const u32 each = 16 / sizeof(Cell);
  for (u32 i = thread; i < PLANE / each; i += threads) {
    u32 token = i / (DIM / each), d = i % (DIM / each) * each;
    copy_16(to + token * KEY_STRIDE + (d ^ token % 2 * TURN), from + each * i);
  }
}
