// Pages of 4 bits (kernels::attention::int4 tells their planes) are multiplied as they are: code c becomes the bf16 128 + c, by
// setting bits. With a scale and a minimum for each token and group of 64 dims,
//   q k = scale (q (128 + c) - 128 sum q) + minimum sum q,    p v = (p scale) (128 + c) - 128 sum (p scale) + sum p minimum,
// where p scale is rounded before both of its uses, so that the 128 cancel.
// Where tensor cores multiply halves it is rounded as they are, too: what comes to nothing there would still be taken off 128 times.

typedef u16 Cell;

// Numbers of 16 bits in a plane: codes, then scales and minima of 32 tokens for each group.
#define PLANE (8 * DIM + 64 * GROUPS)
// Where values lie in shared memory.
#define VALUES PLANE

// Codes at `shift` of two words, as bf16: 128 and the code.
__device__ __forceinline__ u32 codes(u32 words, u32 shift) { return ((words >> shift) & 0x000f000fu) | 0x43004300u; }

// A token's keys 32 c + 8 t .. 32 c + 8 t + 7.
__device__ __forceinline__ uint4 key_codes(const Cell* k, u32 token, u32 c, u32 t) {
  const Cell* unit = k + token * (DIM / 4) + 8 * c;
  if constexpr (DIM % 32 == 0) {
    uint4 w = *(const uint4*)unit;
    return make_uint4(codes(w.x, 4 * t), codes(w.y, 4 * t), codes(w.z, 4 * t), codes(w.w, 4 * t));
  } else {
    uint2 w = *(const uint2*)unit;
    if (32 * c + 32 <= DIM) {
      uint2 v = *(const uint2*)(unit + 4);
      return make_uint4(codes(w.x, 4 * t), codes(w.y, 4 * t), codes(v.x, 4 * t), codes(v.y, 4 * t));
    }
    // Half a unit has half as many words. Lanes beyond it multiply zeros.
    return make_uint4(codes(w.x, 8 * t), codes(w.y, 8 * t), codes(w.x, 8 * t + 4), codes(w.y, 8 * t + 4));
  }
}

// What the rows need beside their queries: the sums of these.
__device__ __forceinline__ void fit_queries(Queries& q, Rows16& r) {
#pragma unroll
  for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      float sum = 0.0f;
#pragma unroll
      for (u32 c = 2 * group; c < 2 * group + 2 && c < CHUNKS; c++)
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          u32 pair = q.pairs[c][i / 2][i % 2 * 2 + h];
          sum += widen_half(pair, 0) + widen_half(pair, 1);
        }
      sum += __shfl_xor_sync(ALL_LANES, sum, 1);
      q.sums[group][h] = sum + __shfl_xor_sync(ALL_LANES, sum, 2);
      r.low[group][h] = 0.0f;
    }
}

// The scores of a page, whose codes lie as they do in memory wherever they are.
template <bool SHARED, u32 TILES, class From>
__device__ __forceinline__ void score(const Cell* k, const From& queries, float (&s)[TILES][4][4]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (u32 group = 0; group < GROUPS; group++) {
    const Cell* grids = k + 8 * DIM + 32 * group + 8 * t;
    uint4 scales = *(const uint4*)grids, minima = *(const uint4*)(grids + 32 * GROUPS);
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      float sum[TILES][4] = {};
#pragma unroll
      for (u32 c = 2 * group; c < 2 * group + 2 && c < CHUNKS; c++) {
        uint4 w = key_codes(k, 8 * (g / 2) + 2 * j + g % 2, c, t);
#pragma unroll
        for (u32 i = 0; i < 2 * TILES; i++) {
          u32 q[4];
          queries.get(i % TILES, c, i / TILES, q);
          if (i < TILES) mma(sum[i % TILES], q, w.x, w.y);
          else mma(sum[i % TILES], q, w.z, w.w);
        }
      }
#pragma unroll
      for (u32 i = 0; i < 4 * TILES; i++) {
        u32 tile = i / 4, e = i % 4;
        float query = queries.sum(tile, group, e / 2), codes_sum = fmaf(-128.0f, query, sum[tile][e]);
        float before = group == 0 ? 0.0f : s[tile][j][e], minimum = widen_half(component(minima, j), e % 2);
        s[tile][j][e] = fmaf(widen_half(component(scales, j), e % 2), codes_sum, fmaf(minimum, query, before));
      }
    }
  }
}

// A weight that no product of halves rounds any more: below 2^-16 it comes to a multiple of 2^-24, which is how far floats around
// 0.75 lie apart, and then is a bf16 and a half as it is.
__device__ __forceinline__ float multiplied_alike(float x) {
#ifdef BALLAST_MMA_BY_HALVES
  return fabsf(x) < 1.52587890625e-5f ? __fadd_rn(__fadd_rn(x, 0.75f), -0.75f) : x;
#else
  return x;
#endif
}

// The weights of a page's tokens in a group of dims, and what is to be added to its sums. On an edge some see nothing: what
// they do not see may be anything, and counts nothing.
template <bool EDGE>
__device__ __forceinline__ void weights_of(
    const uint4& scales, const uint4& minima, const float (&s)[4][4], u32 (&p)[2][4], float (&low)[2]) {
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    float sum = 0.0f;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      float scaled[2];
#pragma unroll
      for (u32 e = 0; e < 2; e++) {
        float weight = s[j][2 * h + e];
        bool nothing = EDGE && weight == 0.0f;
        scaled[e] = weight * (nothing ? 0.0f : widen_half(component(scales, j), e));
        sum = fmaf(weight, nothing ? 0.0f : widen_half(component(minima, j), e), sum);
      }
      u32 pair = narrow_pair(multiplied_alike(scaled[0]), multiplied_alike(scaled[1]));
      sum = fmaf(-128.0f, widen_half(pair, 0) + widen_half(pair, 1), sum);
      p[j / 2][j % 2 * 2 + h] = pair;
    }
    low[h] = __fadd_rn(low[h], sum);
  }
}

// Adds a page's values by their weights.
template <bool EDGE, u32 TILES>
__device__ __forceinline__ void add_values(const Cell* v, u32, const float (&s)[TILES][4][4], Rows16 (&r)[TILES]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, shift = 4 * (g % 4);
#pragma unroll
  for (u32 group = 0; group < GROUPS; group++) {
    const Cell* grids = v + 8 * DIM + 32 * group + 8 * t;
    uint4 scales = *(const uint4*)grids, minima = *(const uint4*)(grids + 32 * GROUPS);
    u32 p[TILES][2][4];
#pragma unroll
    for (u32 tile = 0; tile < TILES; tile++) weights_of<EDGE>(scales, minima, s[tile], p[tile], r[tile].low[group]);
#pragma unroll
    for (u32 i = 8 * group; i < 8 * group + 8 && i < DIM / 8; i++) {
      uint4 w = *(const uint4*)(v + (2 * i + g / 4) * 32 + 8 * t);
#pragma unroll
      for (u32 tile = 0; tile < TILES; tile++) mma(r[tile].o[i], p[tile][0], codes(w.x, shift), codes(w.y, shift));
#pragma unroll
      for (u32 tile = 0; tile < TILES; tile++) mma(r[tile].o[i], p[tile][1], codes(w.z, shift), codes(w.w, shift));
    }
  }
}

// Adds to the sums what does not depend on their dims.
__device__ __forceinline__ void end_sums(Rows16& r) {
#pragma unroll
  for (u32 group = 0; group < GROUPS; group++)
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
      float low = r.low[group][h];
      low += __shfl_xor_sync(ALL_LANES, low, 1);
      low += __shfl_xor_sync(ALL_LANES, low, 2);
#pragma unroll
      for (u32 i = 8 * group; i < 8 * group + 8 && i < DIM / 8; i++)
#pragma unroll
        for (u32 e = 0; e < 2; e++) r.o[i][2 * h + e] += low;
    }
}

__device__ __forceinline__ void bring_keys(const Cell* from, Cell* to, u32 thread, u32 threads) {
  bring_plane<PLANE>(from, to, thread, threads);
}
