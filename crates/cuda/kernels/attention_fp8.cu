// Pages of 8 bits (kernels::attention::fp8): each number is one of bf16's, and is widened where it is read.

typedef u8 Cell;

// A pair of bf16 whose exponents are those of 8 bits, times 2^120: their own.
__device__ __forceinline__ u32 with_exponents(u32 pair) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 scaled;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(scaled) : "r"(pair), "r"(0x7b807b80u), "r"(0x80008000u));
  return scaled;
#else
  u32 wide[2];
  for (u32 i = 0; i < 2; i++) {
    u32 bits = pair >> 16 * i & 0xffffu;
    // Below the least exponent: eighths of 2^-6.
    wide[i] = bits < 0x80u ? __float_as_uint((float)(bits >> 4) * 0.001953125f) >> 16 : bits + (120u << 7);
  }
  return wide[0] | wide[1] << 16;
#endif
}

// Two codes, in bytes 0 and 2, as bf16. The code of NaN would be 480: all bits of an exponent are set.
__device__ __forceinline__ u32 widen_codes(u32 codes) {
  u32 magnitude = codes & 0x007f007fu, is_nan = (magnitude + 0x00010001u) & 0x00800080u;
  return with_exponents(magnitude << 4) | is_nan * 0xffu | (codes & 0x00800080u) << 8;
}

// Devices of 8.9 convert codes for compilers of CUDA 12.1 and newer, later ones for all.
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ >= 900 || (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201))
#define CONVERTS_CODES
#endif

#ifdef CONVERTS_CODES
// Two codes beside each other as bf16, by way of halves, which the device makes of them.
__device__ __forceinline__ u32 widen_two(u32 codes) {
  u32 pair;
  asm("{ .reg .b32 halves; .reg .b16 low, high; .reg .f32 wide, wider;\n"
      "cvt.rn.f16x2.e4m3x2 halves, %1; mov.b32 {low, high}, halves;\n"
      "cvt.f32.f16 wide, low; cvt.f32.f16 wider, high; cvt.rn.bf16x2.f32 %0, wider, wide; }"
      : "=r"(pair) : "h"((u16)codes));
  return pair;
}
#endif

__device__ __forceinline__ uint4 eight(const Cell* at) {
  uint2 w = *(const uint2*)at;
#ifdef CONVERTS_CODES
  return make_uint4(widen_two(w.x), widen_two(w.x >> 16), widen_two(w.y), widen_two(w.y >> 16));
#endif
  return make_uint4(widen_codes(__byte_perm(w.x, 0, 0x4140)), widen_codes(__byte_perm(w.x, 0, 0x4342)),
                    widen_codes(__byte_perm(w.y, 0, 0x4140)), widen_codes(__byte_perm(w.y, 0, 0x4342)));
}
