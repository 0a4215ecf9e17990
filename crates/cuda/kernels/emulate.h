// A device in one thread of the host: enough of CUDA C++ to run the kernels beside this file as they are.
//
// Each thread of a block is a fiber. A warp runs until all its lanes wait for others or have ended, or in every
// other block until its lanes have come past one wait, then the next warp does; the order turns round each time,
// so that a missing barrier is seen by one side or the other. Collective operations (shuffles, the tensor cores' product) wait for all 32 lanes.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include <pthread.h>  // <mutex> takes as long to read as all others do

#define BALLAST_EMULATED 1
#define __device__
#define __forceinline__ inline
#define __noinline__
// All of a module's together, so that a block finds nonsense there, too.
#define __shared__ static __attribute__((section("ballast_shared")))
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__

struct alignas(8) uint2 { unsigned int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Everything is static: each library of kernels has a device of its own.
namespace emu {
struct Dim { unsigned x, y, z; };
constexpr size_t STACK = 256 << 10;
// By how much the next fiber's begins lower, an odd number of lines: beginnings that lie alike would share few lines of the caches.
constexpr size_t COLOUR = 13 * 64;

struct Copy {
  void* to;
  const void* from;
  unsigned bytes;  // of 16; the others are zero
};

struct Fiber {
  // Of global to shared memory; those up to `copied` are done. Where their groups end.
  std::vector<Copy> copies;
  std::vector<size_t> groups;
  size_t copied = 0;
  std::shared_ptr<struct Products> products;  // of its warpgroup: emulate_wgmma.h
  void* sp = nullptr;
  char* stack = nullptr;
  Dim thread{};
  bool done = true;
  unsigned steps = 0;  // how often it has begun or come past a wait
};

// What the lanes of a warp tell each other.
using Words = unsigned[32][6];

struct Warp {
  unsigned arrived = 0, generation = 0;
  // By turns: once all have come past the wait of one exchange, they may write for the next while others still read.
  Words words[2];
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  unsigned arrived = 0, alive = 0, generation = 0;
};

struct Kernel {
  const char* name;
  unsigned args_bytes, threads;  // of a block at the most
  void (*run)(const void*);
  Kernel* next;
};

static Kernel*& kernels() { static Kernel* first = nullptr; return first; }
struct Register {
  Kernel kernel;
  Register(const char* name, unsigned args_bytes, unsigned threads, void (*run)(const void*))
      : kernel{name, args_bytes, threads, run, kernels()} {
    kernels() = &kernel;
  }
};

static Block block;
static Fiber* current;
static void* home;
static Dim block_index, block_size, grid_size;
// Memory that the launch gives to each block: as much as a device has, of which so many bytes are asked for. Nonsense, until
// somebody writes to it.
alignas(1024) static char launched[227 << 10];
// What products of warpgroups see of it.
static char fenced[sizeof launched];
static unsigned launched_bytes;
// What kernels have of their own, between these: the linker's, of which there is none where kernels have none.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_ballast_shared[], __stop_ballast_shared[];
static void (*entry)(const void*);
static const void* arguments;

// Saves the callee's registers and the stack, and goes on where the other one stopped.
extern "C" void ballast_switch(void** from, void* to);
asm(R"(
.text
.globl ballast_switch
.hidden ballast_switch
ballast_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

static const unsigned NONSENSE[4] = {~0u, ~0u, ~0u, ~0u};

// To shared memory, of which products of warpgroups see nonsense until there is a fence.
inline void write_16(void* shared, const void* from) {
  std::memcpy(shared, from, 16);
  size_t at = (char*)shared - launched;
  if (at < sizeof launched) std::memset(fenced + at, 0xff, 16);
}

inline void yield() { ballast_switch(&current->sp, home); }

inline void release_if_all() {
  if (block.alive > 0 && block.arrived == block.alive) {
    block.arrived = 0;
    block.generation++;
  }
}

inline void body() {
  current->steps++;
  entry(arguments);
  current->done = true;
  block.alive--;
  release_if_all();
  yield();
  std::abort();
}

inline void begin(Fiber& fiber, unsigned i) {
  if (!fiber.stack) fiber.stack = (char*)std::malloc(STACK);
  void** top = (void**)((uintptr_t)(fiber.stack + STACK - i % 64 * COLOUR) & ~uintptr_t(15));
  *--top = nullptr;
  *--top = (void*)body;
  for (int i = 0; i < 6; i++) *--top = nullptr;
  fiber.sp = top;
  fiber.done = false;
  fiber.copies.clear();
  fiber.groups.clear();
  fiber.copied = 0;
  fiber.products.reset();
}

inline void sync_block() {
  unsigned mine = block.generation;
  block.arrived++;
  release_if_all();
  while (block.generation == mine) yield();
  current->steps++;
}

inline Warp& warp() { return block.warps[current->thread.x / 32]; }

// Those of the exchange that comes next.
inline Words& words() { return warp().words[warp().generation % 2]; }

inline void sync_warp() {
  Warp& w = warp();
  unsigned mine = w.generation;
  if (++w.arrived == 32) {
    w.arrived = 0;
    w.generation++;
  }
  while (w.generation == mine) yield();
  current->steps++;
}

// Runs each lane of a warp once; whether any of them came further.
inline bool run_lanes(unsigned first, bool backwards) {
  bool moved = false;
  for (unsigned i = 0; i < 32; i++) {
    Fiber& fiber = block.fibers[first + (backwards ? 31 - i : i)];
    if (fiber.done) continue;
    unsigned before = fiber.steps;
    current = &fiber;
    ballast_switch(&home, fiber.sp);
    moved |= fiber.done || fiber.steps != before;
  }
  return moved;
}

inline void run_block() {
  unsigned threads = block_size.x;
  std::memset(launched, 0xff, launched_bytes);
  std::memset(fenced, 0xff, launched_bytes);
  std::memset(__start_ballast_shared, 0xff, __stop_ballast_shared - __start_ballast_shared);
  // Those of larger blocks keep their stacks.
  if (block.fibers.size() < threads) block.fibers.resize(threads);
  block.warps.assign(threads / 32, Warp{});
  block.arrived = 0;
  block.alive = threads;
  for (unsigned i = 0; i < threads; i++) {
    begin(block.fibers[i], i);
    block.fibers[i].thread = {i, 0, 0};
  }
  for (unsigned round = 0; block.alive > 0; round++) {
    bool moved = false;
    for (unsigned w = 0; w < threads / 32; w++) {
      unsigned at = round % 2 ? threads / 32 - 1 - w : w;
      while (run_lanes(32 * at, round % 2)) {
        moved = true;
        if (block_index.x % 2) break;
      }
    }
    if (!moved && block.alive > 0) {
      std::fprintf(stderr, "a block cannot go on: %u threads left, %u at the barrier\n", block.alive, block.arrived);
      std::abort();
    }
  }
}

template <class T>
inline T shuffle(T value, unsigned from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "one word or two");
  Words& told = words();
  std::memcpy(told[current->thread.x % 32], &value, sizeof(T));
  sync_warp();
  std::memcpy(&value, told[from % 32], sizeof(T));
  return value;
}
}  // namespace emu

#define threadIdx (emu::current->thread)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)
#define KERNEL(name, Args, threads)                                                        \
  static void name(const Args& a);                                                         \
  static emu::Register register_##name(#name, sizeof(Args), threads, [](const void* p) { name(*(const Args*)p); }); \
  static void name(const Args& a)

#define KERNEL_BLOCKS(name, Args, threads, blocks) KERNEL(name, Args, threads)

static inline void __syncthreads() { emu::sync_block(); }
static inline void __syncwarp() { emu::sync_warp(); }
// As much as the kernel takes, and no more: a device would let it write beyond, or run fewer blocks side by side.
template <class T>
static inline T& block_memory() {
  if (sizeof(T) != emu::launched_bytes || sizeof(T) > sizeof(emu::launched)) {
    std::fprintf(stderr, "a block takes %zu bytes and is given %u\n", sizeof(T), emu::launched_bytes);
    std::abort();
  }
  return *(T*)emu::launched;
}
template <class T>
static inline T __shfl_sync(unsigned, T value, unsigned from) { return emu::shuffle(value, from); }
template <class T>
static inline T __shfl_xor_sync(unsigned, T value, unsigned step) {
  return emu::shuffle(value, (emu::current->thread.x % 32) ^ step);
}
template <class T>
static inline T __shfl_down_sync(unsigned, T value, unsigned step) {
  unsigned lane = emu::current->thread.x % 32;
  return emu::shuffle(value, lane + step < 32 ? lane + step : lane);
}
static inline unsigned __ballot_sync(unsigned, bool mine) {
  emu::Words& told = emu::words();
  told[emu::current->thread.x % 32][0] = mine;
  emu::sync_warp();
  unsigned all = 0;
  for (unsigned lane = 0; lane < 32; lane++) all |= told[lane][0] << lane;
  return all;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  unsigned long long both = x | (unsigned long long)y << 32;
  unsigned chosen = 0;
  for (unsigned i = 0; i < 4; i++) chosen |= (unsigned)(both >> 8 * (selectors >> 4 * i & 7) & 0xff) << 8 * i;
  return chosen;
}
static inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
// Nothing is fused here anyway.
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
template <class T>
static inline T __ldg(const T* p) {
  if ((uintptr_t)p % alignof(T) != 0) { std::fprintf(stderr, "a load is not aligned\n"); std::abort(); }
  return *p;
}
using std::max;
using std::min;

// Threads take turns: nothing comes in between.
template <class T>
static inline T atomicAdd(T* at, T value) { T before = *at; *at += value; return before; }
template <class T>
static inline T atomicMin(T* at, T value) { T before = *at; *at = min(before, value); return before; }

// There is nonsense until somebody waits for the copy: who reads too early sees it, and who still reads what was there before.
static inline void copy_16_of(void* shared, const void* global, unsigned bytes) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16) { std::fprintf(stderr, "a copy is not aligned\n"); std::abort(); }
  emu::write_16(shared, emu::NONSENSE);
  emu::current->copies.push_back({shared, global, bytes});
}
static inline void copy_16(void* shared, const void* global) { copy_16_of(shared, global, 16); }
static inline void copies_commit() { emu::current->groups.push_back(emu::current->copies.size()); }
template <int PENDING>
static inline void copies_wait() {
  emu::Fiber& fiber = *emu::current;
  if (fiber.groups.size() <= PENDING) return;
  size_t end = fiber.groups[fiber.groups.size() - PENDING - 1];
  for (; fiber.copied < end; fiber.copied++) {
    const emu::Copy& copy = fiber.copies[fiber.copied];
    std::memset(copy.to, 0, 16);
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

// To the nearest half, ties to even: multiples of 2^-24 below its least exponent. NaN stays NaN.
static inline unsigned emulated_half(float x) {
  unsigned sign = __float_as_uint(x) >> 16 & 0x8000, magnitude = __float_as_uint(x) & 0x7fffffff;
  float size = __uint_as_float(magnitude);
  if (x != x) return sign | 0x7e00u;
  if (size >= 65520.0f) { std::fprintf(stderr, "%g is no half\n", x); std::abort(); }
  if (size < 6.103515625e-5f) return sign | (unsigned)std::nearbyint(size * 16777216.0f);
  return sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112u << 10));
}
static inline unsigned pair_of_halves(float low, float high) { return emulated_half(low) | emulated_half(high) << 16; }

static inline float emulated_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
static inline float emulated_f16(unsigned half) {
  // The bits where an f32 has them, whose exponents are larger by 112: exact for the smallest too.
  float size = __uint_as_float((half & 0x7fff) << 13) * __uint_as_float((127 + 112) << 23);
  if ((half & 0x7c00) == 0x7c00) size = half & 0x3ff ? NAN : INFINITY;
  return half & 0x8000 ? -size : size;
}

// c: [16, 8] += a: [16, 2 PAIRS] * b: [2 PAIRS, 8], of which a lane holds as many words as a row or column has groups of 4 pairs.
template <unsigned PAIRS, float NUMBER(unsigned)>
static inline void emulated_mma(float (&c)[4], const unsigned* a, const unsigned* b) {
  const unsigned GROUPS_OF_4 = PAIRS / 4;
  emu::Words& told = emu::words();
  unsigned lane = emu::current->thread.x % 32, g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 2 * GROUPS_OF_4; i++) told[lane][i] = a[i];
  for (unsigned i = 0; i < GROUPS_OF_4; i++) told[lane][4 + i] = b[i];
  emu::sync_warp();
  for (unsigned row = 0; row < 2; row++)
    for (unsigned e = 0; e < 2; e++)
      for (unsigned pair = 0; pair < PAIRS; pair++) {
        unsigned x = told[4 * g + pair % 4][row + pair / 4 * 2];
        unsigned y = told[4 * (2 * t + e) + pair % 4][4 + pair / 4];
        c[2 * row + e] += NUMBER(x & 0xffff) * NUMBER(y & 0xffff);
        c[2 * row + e] += NUMBER(x >> 16) * NUMBER(y >> 16);
      }
}

#ifndef BALLAST_MMA_BY_HALVES
static inline void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  emulated_mma<8, emulated_bf16>(c, a, b);
}
static inline void mma_f16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned b[2] = {b0, b1};
  emulated_mma<8, emulated_f16>(c, a, b);
}
#else
static inline void mma_halves(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  const unsigned a[2] = {a0, a1};
  emulated_mma<4, emulated_f16>(c, a, &b);
}
#endif

// Bytes that a kernel takes as its arguments; 0 if there is none of that name.
extern "C" unsigned ballast_arguments(const char* name) {
  const emu::Kernel* kernel = emu::kernels();
  while (kernel && std::strcmp(kernel->name, name) != 0) kernel = kernel->next;
  return kernel ? kernel->args_bytes : 0;
}

// Runs a kernel over a whole grid. 0; 1 if there is none of that name; 2 if its arguments are of another size, of which the
// driver would copy as much as the kernel takes; 3 if its blocks may not have so many threads.
extern "C" int ballast_launch(
    const char* name, unsigned x, unsigned y, unsigned threads, unsigned block_bytes, const void* args, unsigned args_bytes) {
  emu::Kernel* kernel = emu::kernels();
  while (kernel && std::strcmp(kernel->name, name) != 0) kernel = kernel->next;
  if (!kernel || threads % 32 != 0) return 1;
  if (kernel->args_bytes != args_bytes) return 2;
  if (threads > kernel->threads) return 3;
  // Its threads are fibers of the caller, and there is one device.
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  emu::grid_size = {x, y, 1};
  emu::block_size = {threads, 1, 1};
  emu::launched_bytes = block_bytes;
  emu::entry = kernel->run;
  emu::arguments = args;
  for (unsigned j = 0; j < y; j++)
    for (unsigned i = 0; i < x; i++) {
      emu::block_index = {i, j, 0};
      emu::run_block();
    }
  pthread_mutex_unlock(&lock);
  return 0;
}
