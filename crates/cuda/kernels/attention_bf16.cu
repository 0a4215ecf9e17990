// Pages of bf16.

typedef u16 Cell;

__device__ __forceinline__ uint4 eight(const Cell* at) { return *(const uint4*)at; }
