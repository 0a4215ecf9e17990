// The tensor cores' product for warpgroups, of compute capability 9.0 alone. (PTX, "wgmma.mma_async".)
//
// d: [64, N] += a: [64, 16] * b: [16, N], halves or bf16. Lane 4 g + t of warp w holds, of d, columns 8 i + 2 t and 8 i + 2 t + 1 of
// row 16 w + g in d[i], then of row 16 w + g + 8; of a, pairs t of these rows, then pairs t + 4. b lies in shared memory, and a may
// too: rows of 16 numbers beside each other (those of b are its columns). It is under way until `wgmma_wait` says so: until then
// nobody touches its registers, nor writes to its memory.

// Where 16 columns of an operand lie: rows of ROW_BYTES, 128 or 64, of which 8 follow each other in the order of `swizzled`. Only the
// low half of what the tensor cores are told differs from one to the next, by one addition: as 64 bits the compiler makes it of four
// instructions, each of which waits for the one before, and the products for them.
template <u32 ROW_BYTES>
struct Operand {
  u32 low;
  enum : u32 { HIGH = 8 * ROW_BYTES >> 4 | (ROW_BYTES == 128 ? 1u : 2u) << 30 };
  __device__ __forceinline__ explicit Operand(u32 at) : low((at >> 4 & 0x3fffu) | 1u << 16) {}
  // So many bytes further on. All addresses of a block's memory fit.
  __device__ __forceinline__ Operand further(u32 bytes) const {
    Operand there = *this;
    there.low += bytes >> 4;
    return there;
  }
  __device__ __forceinline__ operator u64() const { return (u64)HIGH << 32 | low; }
};

// The place of 16 bytes in a row of ROW_BYTES: so rows of an operand, read side by side, meet in no bank.
template <u32 ROW_BYTES>
__device__ __forceinline__ u32 swizzled(u32 row, u32 place) {
  return ROW_BYTES == 128 ? place ^ row % 8 : place ^ row / 2 % 4;
}

#ifndef BALLAST_EMULATED
__device__ __forceinline__ u32 shared_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

__device__ __forceinline__ void put_16(void* shared, const uint4& v) { *(uint4*)shared = v; }

// As `copy_16`, of which only the first `bytes` are there; the others are zero.
__device__ __forceinline__ void copy_16_of(void* shared, const void* global, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}

// What this thread has put and copied is for the tensor cores to read, once others know of it.
__device__ __forceinline__ void fence_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A gate in a block's memory: so many arrive, then it opens, for those that wait for it to open an even time (from the first on) or an
// odd one. (PTX, "mbarrier".) What those that arrive have written is there for those that pass.
typedef u64 Gate;

// Before anybody knows of it: all of a block do after its next barrier.
__device__ __forceinline__ void gate_make(Gate& gate, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&gate)), "r"(arrivals) : "memory");
}

// A thread arrives, or does not, without a path of its own: where the paths of a warp part and meet, the compiler waits for products
// under way.
__device__ __forceinline__ void gate_arrive(Gate& gate, bool arrives) {
  asm volatile("{ .reg .pred arrives; setp.ne.u32 arrives, %1, 0; @arrives mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(
                   shared_address(&gate)),
               "r"((u32)arrives)
               : "memory");
}

// Nothing takes ten seconds: whoever has waited for so long ends the device's work with an error. In a trial, which has a place for
// that, it notes after a fifth of one that it has waited in vain and goes on, with numbers that are wrong; who comes after that waits
// for nothing any more. No look at the gate takes a second but of a block that was suspended (by a debugger, or on its way to another
// machine), and others with it: they have the whole time again.
__device__ __forceinline__ void gate_wait(Gate& gate, u32 odd, u32* stalled) {
  asm volatile(
      "{ .reg .pred open, late, slept, trial; .reg .u32 noted; .reg .u64 before, now, took, most, end;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n"
      "@open bra DONE;\n"
      "setp.ne.u64 trial, %2, 0;\n"
      "mov.u32 noted, 0;\n"
      "@trial ld.volatile.global.u32 noted, [%2];\n"
      "setp.ne.u32 late, noted, 0;\n"
      "@late bra DONE;\n"
      "selp.u64 most, 200000000, 10000000000, trial;\n"
      "mov.u64 before, %%globaltimer;\n"
      "add.u64 end, before, most;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1;\n"
      "@open bra DONE;\n"
      "mov.u64 now, %%globaltimer;\n"
      "sub.u64 took, now, before;\n"
      "mov.u64 before, now;\n"
      "setp.gt.u64 slept, took, 1000000000;\n"
      "@slept add.u64 end, now, most;\n"
      "setp.lt.u64 late, now, end;\n"
      "@late bra WAIT;\n"
      "@!trial trap;\n"
      "st.volatile.global.u32 [%2], 1;\n"
      "DONE: }" ::"r"(shared_address(&gate)), "r"(odd), "l"(stalled)
      : "memory");
}

// A warpgroup's threads have so many registers from here on. (PTX, "setmaxnreg".) What each warpgroup does is one branch of one `if`.
template <u32 COUNT>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <u32 COUNT>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

#ifdef KV_F16
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#else
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "
#endif
#define REGISTERS_32                                                                                  \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26" \
  ",%27,%28,%29,%30,%31"
#define REGISTERS_64                                                                                             \
  REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55" \
               ",%56,%57,%58,%59,%60,%61,%62,%63"
#define FOUR(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define SUMS_32(d, i)                                                                                               \
  FOUR(d, i), FOUR(d, i + 1), FOUR(d, i + 2), FOUR(d, i + 3), FOUR(d, i + 4), FOUR(d, i + 5), FOUR(d, i + 6), FOUR(d, i + 7)
#define SUMS_64(d) SUMS_32(d, 0), SUMS_32(d, 8)

// Before the products that follow each other: registers are as was written, and no product before is under way that writes them.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// d is what was there, if it ADDs, else nothing.
template <bool ADD, u32 A, u32 B>
__device__ __forceinline__ void wgmma(float (&d)[16][4], Operand<A> a, Operand<B> b) {
  asm volatile("{ .reg .b64 a, b; mov.b64 a, {%64, %65}; mov.b64 b, {%66, %67};\n" WGMMA(128) "{" REGISTERS_64 "}, a, b, %68, 1, 1, 0, 0; }"
               : SUMS_64(d)
               : "r"(a.low), "r"((u32)Operand<A>::HIGH), "r"(b.low), "r"((u32)Operand<B>::HIGH), "n"(ADD));
}

template <u32 B>
__device__ __forceinline__ void wgmma(float (&d)[16][4], const u32 (&a)[4], Operand<B> b) {
  asm volatile("{ .reg .b64 b; mov.b64 b, {%68, %69};\n" WGMMA(128) "{" REGISTERS_64 "}, {%64,%65,%66,%67}, b, 1, 1, 1, 0; }"
               : SUMS_64(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"((u32)Operand<B>::HIGH));
}

template <u32 B>
__device__ __forceinline__ void wgmma(float (&d)[8][4], const u32 (&a)[4], Operand<B> b) {
  asm volatile("{ .reg .b64 b; mov.b64 b, {%36, %37};\n" WGMMA(64) "{" REGISTERS_32 "}, {%32,%33,%34,%35}, b, 1, 1, 1, 0; }"
               : SUMS_32(d, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"((u32)Operand<B>::HIGH));
}

// Waits until at most PENDING groups are under way, none of which has to do with d.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait(float (&d)[16][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;" : SUMS_64(d) : "n"(PENDING) : "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait(float (&d)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;" : SUMS_32(d, 0) : "n"(PENDING) : "memory");
}
#endif
