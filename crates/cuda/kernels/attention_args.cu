// Paged attention over pages of 32 tokens: K [32][DIM], V transposed [DIM][32], head after head.
//
// Rows of a tile are (query, head of the group) pairs, so that all heads of a group share what is read. A warp has
// 16 of them. Tokens and dimensions are dealt to lanes so that every operand of the tensor cores is 16 bytes from one
// place: column n of score block j is token 8 (n / 2) + 2 j + n % 2; dimensions go 8 to a lane, as k does in linear.cu.
// Lane 4 g + t then has the scores of tokens 8 t .. 8 t + 7, which is what it needs as operand against V.

#define DIM HEAD_DIM
#define CHUNKS ((DIM + 31) / 32)
#define GROUPS ((DIM + 63) / 64)

struct SpanData {
  u32 row;          // of the batch
  u32 start;        // position of the first row
  u32 rows;
  u32 table;        // where its blocks begin
  u32 partial;      // decode: its first partial row
  u32 first_split;  // decode: the first that is seen
  u32 splits;       // decode: how many
};

struct AttendArgs {
  const void* q;         // [rows, heads DIM]
  const void* pages;
  void* out;             // [rows, heads DIM]
  const SpanData* spans;
  const u32* tables;
  const uint2* work;     // {span, first row of the tile} or {span, split}, all ones if there is none
  float* partials;       // [partial rows, kv_heads][DIM + 2]: mean not yet divided, maximum, sum
  u32* stalled;          // in a trial: what is not 0 once a thread has waited in vain
  float scale;           // times log2(e)
  u32 heads, kv_heads;
  u32 window;            // 0: none
  u32 out_bf16;
  u32 pieces;            // where blocks stay: how much work there is for each head of keys
  float cap;             // times log2(e); of kernels that are compiled as CAPPED
  u32 unused;
};

// A score, times log2(e), as far from zero as it may come. One that does not count stays.
__device__ __forceinline__ float capped(const AttendArgs& a, float score) {
#ifdef CAPPED
  return score == NO_SCORE ? score : a.cap * tanhf(score / a.cap);
#else
  return score;
#endif
}

// The first page that a query at `position` sees.
__device__ __forceinline__ u32 first_page(const AttendArgs& a, u32 position) {
  return a.window && position + 1 > a.window ? (position + 1 - a.window) / 32 : 0;
}
