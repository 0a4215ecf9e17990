// Pages of f32, for which a warp takes a query in one head; plain arithmetic.

#define OF_LANE (DIM / 32 + 1)

// What a warp has summed for its query: every lane some dims.
struct FloatRow {
  float o[OF_LANE], most, sum;
};

__device__ __forceinline__ void begin(FloatRow& r) {
#pragma unroll
  for (u32 j = 0; j < OF_LANE; j++) r.o[j] = 0.0f;
  r.most = NO_SCORE;
  r.sum = 0.0f;
}

// Keys of a page in one head; its values follow them.
__device__ __forceinline__ const float* block_at(const AttendArgs& a, u32 block, u32 kv_head) {
  return (const float*)a.pages + ((u64)block * a.kv_heads + kv_head) * 64 * DIM;
}

// A page's values, of which each lane has a token's score. Some token has one.
__device__ __forceinline__ void add_scored(const float* v, float score, FloatRow& r) {
  u32 lane = threadIdx.x % 32;
  float larger = fmaxf(r.most, warp_max(score)), fade = exp2f(r.most - larger), p = exp2f(score - larger);
  r.most = larger;
  r.sum = r.sum * fade + warp_sum(p);
  for (u32 j = 0; j < OF_LANE; j++) r.o[j] *= fade;
  for (u32 n = 0; n < 32; n++) {
    float weight = __shfl_sync(ALL_LANES, p, n);
    if (weight == 0.0f) continue;
    for (u32 j = lane; j < DIM; j += 32) r.o[j / 32] = fmaf(weight, v[j * 32 + n], r.o[j / 32]);
  }
}

// The result, from number `at` on.
__device__ __forceinline__ void put_row(const AttendArgs& a, u64 at, const FloatRow& r) {
  for (u32 j = threadIdx.x % 32; j < DIM; j += 32) {
    float y = r.o[j / 32] / r.sum;
    if (a.out_bf16) ((u16*)a.out)[at + j] = (u16)narrow(y);
    else ((float*)a.out)[at + j] = y;
  }
}
