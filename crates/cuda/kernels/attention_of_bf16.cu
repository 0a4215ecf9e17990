// Products of pages that `eight` gives as bf16, which queries are.

__device__ __forceinline__ u32 query_pair(u32 pair) { return pair; }

__device__ __forceinline__ u32 weight_pair(float low, float high) { return narrow_pair(low, high); }

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma(c, a, b0, b1); }
