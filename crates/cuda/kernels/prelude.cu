// What every kernel begins with: numbers, warps, the tensor cores' product, copies that do not wait.
//
// No header is included, so that the run-time compiler needs nothing but itself. The same text compiles as
// C++ after emulate.h, which stands in for the device.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef BALLAST_EMULATED
#define KERNEL(name, Args, threads) extern "C" __global__ void __launch_bounds__(threads) name(const Args a)
// With registers for so many blocks on a multiprocessor.
#define KERNEL_BLOCKS(name, Args, threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks) name(const Args a)
#endif

#define ALL_LANES 0xffffffffu
#define NO_SCORE __uint_as_float(0xff800000u)

__device__ __forceinline__ float widen(u32 bits) { return __uint_as_float(bits << 16); }

// To the nearest bf16, ties to even; NaN stays NaN.
#if !defined(BALLAST_EMULATED) && __CUDA_ARCH__ >= 800
__device__ __forceinline__ u32 narrow_pair(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ u32 narrow(float x) { return narrow_pair(x, 0.0f) & 0xffffu; }
#else
__device__ __forceinline__ u32 narrow(float x) {
  u32 bits = __float_as_uint(x);
  u32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return x != x ? (bits >> 16 | 0x40u) : rounded;
}

__device__ __forceinline__ u32 narrow_pair(float low, float high) { return narrow(low) | narrow(high) << 16; }
#endif

// Half `i` of a pair of bf16.
__device__ __forceinline__ float widen_half(u32 pair, u32 i) { return __uint_as_float(i ? pair & 0xffff0000u : pair << 16); }

__device__ __forceinline__ u32 component(const uint4& v, u32 i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// A finite half-precision number, exactly, without a subnormal float on the way: the host may flush those.
__device__ __forceinline__ float half_to_float(u32 bits) {
  float normal = __uint_as_float(((bits & 0x7fffu) << 13) + (112u << 23));
  float magnitude = bits & 0x7c00u ? normal : (float)(bits & 0x3ffu) * 5.9604644775390625e-8f;  // 2^-24
  return bits & 0x8000u ? -magnitude : magnitude;
}

// Both halves of a word.
__device__ __forceinline__ float2 halves_to_floats(u32 pair) {
#ifdef BALLAST_EMULATED
  return make_float2(half_to_float(pair & 0xffffu), half_to_float(pair >> 16));
#else
  float2 both;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
      : "=f"(both.x), "=f"(both.y)
      : "r"(pair));
  return both;
#endif
}

// 2 to the power of x, nothing where that is less than the least normal number: one instruction.
__device__ __forceinline__ float power_of_two(float x) {
#ifdef BALLAST_EMULATED
  return x < -126.0f ? 0.0f : exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

__device__ __forceinline__ float warp_min(float x) {
  for (int step = 16; step > 0; step /= 2) x = fminf(x, __shfl_xor_sync(ALL_LANES, x, step));
  return x;
}

#ifndef BALLAST_EMULATED
// Two numbers as halves, to the nearest. None of them is too large.
__device__ __forceinline__ u32 pair_of_halves(float low, float high) {
  u32 halves;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
#else
  asm("{ .reg .b16 low, high; cvt.rn.f16.f32 low, %1; cvt.rn.f16.f32 high, %2; mov.b32 %0, {low, high}; }"
      : "=r"(halves) : "f"(low), "f"(high));
#endif
  return halves;
}
#endif

#if defined(BALLAST_MMA_BY_HALVES) && !defined(BALLAST_EMULATED)

// c: [16, 8] += a: [16, 8] halves * b: [8, 8] halves: of a, lane 4 g + t holds pair t of rows g and g + 8; of b, pair t of column g.
// (PTX, "mma.m16n8k8".)
__device__ __forceinline__ void mma_halves(float (&c)[4], u32 a0, u32 a1, u32 b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(b));
}
#endif

#if defined(BALLAST_MMA_BY_HALVES)
// c: [16, 8] += a: [16, 16] halves * b: [16, 8] halves, which lie as below.
__device__ __forceinline__ void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  mma_halves(c, a[0], a[1], b0);
  mma_halves(c, a[2], a[3], b1);
}

// A pair of bf16 as halves.
__device__ __forceinline__ u32 to_halves(u32 pair) { return pair_of_halves(widen_half(pair, 0), widen_half(pair, 1)); }

__device__ __forceinline__ float dot_pair(u32 a, u32 b) {
  return widen(a & 0xffffu) * widen(b & 0xffffu) + __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
}

// The same product, lane by lane. Not inlined: it is called dozens of times.
__device__ __noinline__ float4 mma_by_shuffles(float4 c, uint4 a, u32 b0, u32 b1) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (u32 i = 0; i < 4; i++) {
    u32 from = g * 4 + i, column = 8 * t + i;
    u32 a0 = __shfl_sync(ALL_LANES, a.x, from), a1 = __shfl_sync(ALL_LANES, a.y, from);
    u32 a2 = __shfl_sync(ALL_LANES, a.z, from), a3 = __shfl_sync(ALL_LANES, a.w, from);
    u32 low = __shfl_sync(ALL_LANES, b0, column), high = __shfl_sync(ALL_LANES, b1, column);
    c.x += dot_pair(a0, low) + dot_pair(a2, high);
    c.z += dot_pair(a1, low) + dot_pair(a3, high);
    low = __shfl_sync(ALL_LANES, b0, column + 4), high = __shfl_sync(ALL_LANES, b1, column + 4);
    c.y += dot_pair(a0, low) + dot_pair(a2, high);
    c.w += dot_pair(a1, low) + dot_pair(a3, high);
  }
  return c;
}

// Whether a number of a pair is larger than any half, or none.
__device__ __forceinline__ u32 beyond_halves(u32 pair) { return ((pair & 0x7fff7fffu) + 0x38803880u) & 0x80008000u; }

// Tensor cores without bf16 multiply halves. These have more bits, so that numbers from 2^-17 on stay what they are, and smaller
// ones come to a multiple of 2^-24. Where one is too large for a half, lanes multiply.
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  u32 beyond = beyond_halves(b0) | beyond_halves(b1);
#pragma unroll
  for (u32 i = 0; i < 4; i++) beyond |= beyond_halves(a[i]);
  if (__ballot_sync(ALL_LANES, beyond != 0)) {
    float4 y = mma_by_shuffles(make_float4(c[0], c[1], c[2], c[3]), make_uint4(a[0], a[1], a[2], a[3]), b0, b1);
    c[0] = y.x; c[1] = y.y; c[2] = y.z; c[3] = y.w;
  } else {
    mma_halves(c, to_halves(a[0]), to_halves(a[1]), to_halves(b0));
    mma_halves(c, to_halves(a[2]), to_halves(a[3]), to_halves(b1));
  }
}
#elif !defined(BALLAST_EMULATED)
// c: [16, 8] += a: [16, 16] bf16 * b: [16, 8] bf16, spread over a warp. Lane 4 g + t holds, of a, pairs t of
// rows g and g + 8, then pairs t + 4 of them; of b, pairs t and t + 4 of column g; of c, columns 2 t and
// 2 t + 1 of row g, then of row g + 8. (PTX, "mma.m16n8k16 with floating point type".)
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of halves.
__device__ __forceinline__ void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

// Loads of what no kernel writes meanwhile. They are made in the order of the text, beside the tensor cores' products, which the
// compiler would else move them down to: it then waits for the memory before each product.
#ifdef BALLAST_EMULATED
__device__ __forceinline__ uint4 load_16(const void* at) { return __ldg((const uint4*)at); }
__device__ __forceinline__ uint4 load_once(const void* at) { return load_16(at); }
__device__ __forceinline__ uint2 load_8(const void* at) { return __ldg((const uint2*)at); }
__device__ __forceinline__ u32 load_4(const void* at) { return __ldg((const u32*)at); }
#else
__device__ __forceinline__ uint4 load_16(const void* at) {
  uint4 v;
  asm volatile("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
  return v;
}

// What is read once passes by the first cache; the second one brings whole lines of 128 bytes, of which weights in rows are read
// 64 at a time, the rest soon after.
__device__ __forceinline__ uint4 load_once(const void* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

__device__ __forceinline__ uint2 load_8(const void* at) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
  return v;
}

__device__ __forceinline__ u32 load_4(const void* at) {
  u32 v;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
#endif

#ifndef BALLAST_EMULATED
// Memory of a block as large as the launch says, more than a kernel can have of its own: Module::block_bytes. It begins where the
// order of operands in it does (wgmma.cu).
template <class T>
__device__ __forceinline__ T& block_memory() {
  extern __shared__ __align__(1024) uint4 launched[];
  return *(T*)launched;
}

// 16 bytes from global to shared memory, done when `copies_wait` says so.
__device__ __forceinline__ void copy_16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  u32 to = (u32)__cvta_generic_to_shared(shared);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
  *(uint4*)shared = *(const uint4*)global;
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING groups of this thread are under way.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}
#endif
