// Pages of halves (kernels::attention::f16), which every device's tensor cores multiply as they are.
//
// Queries and weights meet them as halves. Weights are no more than 2^8, and those below 2^-25 of the row's largest come to
// nothing. Queries have fewer bits than halves; those beyond 65504 count as that, as keys do, and small ones come to a multiple
// of 2^-24.

typedef u16 Cell;

__device__ __forceinline__ uint4 eight(const Cell* at) { return *(const uint4*)at; }

// Into the range of halves; NaN stays NaN.
__device__ __forceinline__ float in_range(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }

__device__ __forceinline__ u32 query_pair(u32 pair) {
  return pair_of_halves(in_range(widen_half(pair, 0)), in_range(widen_half(pair, 1)));
}

__device__ __forceinline__ u32 weight_pair(float low, float high) { return pair_of_halves(low, high); }

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_f16(c, a, b0, b1); }
