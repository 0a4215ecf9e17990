// y = x * W^T.

#define SINK_STORE 0
#define SINK_ADD 1
#define SINK_ACT 2
#define SINK_GATED 3

struct LinearArgs {
  const void* x;      // [rows, k]
  const u8* panels;   // those of this part
  const float* bias;  // [n], null: none
  void* out;          // [rows, out_cols], from column out_first
  u64 panel_bytes;
  u32 rows, n, k;
  u32 first_panel;    // number of the part's first
  u32 out_cols, out_first;
  u32 sink, act, out_bf16;
  u32 row_bytes;      // of the panels of bf16 that were put into rows, else 0
};

__device__ __forceinline__ float activate(u32 kind, float x) {
  if (kind == 0) return x / (1.0f + expf(-x));
  if (kind == 1) return x < 0.0f ? 0.0f : x;
  if (kind == 2) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  if (kind == 4) return x < 0.0f ? 0.0f : x * x;
  return x / (1.0f + expf(-1.595769f * (x + 0.044715f * x * x * x)));
}

// Of a sum its result, which comes to a column of so many. `up` is used by gated sinks.
__device__ __forceinline__ float result(const LinearArgs& a, u32 column, u32 columns, float y, float up) {
  if (a.bias) y += a.bias[column];
  if (a.sink == SINK_ACT) return activate(a.act, y);
  if (a.sink != SINK_GATED) return y;
  if (a.bias) up += a.bias[columns + column];
  return activate(a.act, y) * up;
}

// One output: `place` of `panel`, token `row`. Of gated sinks places 16 and up are skipped.
__device__ __forceinline__ void finish(const LinearArgs& a, u32 panel, u32 place, u32 row, float y, float up) {
  bool gated = a.sink == SINK_GATED;
  u32 column = gated ? panel * 16 + place : panel * 32 + place;
  u32 columns = gated ? a.n / 2 : a.n;
  if (row >= a.rows || column >= columns || (gated && place >= 16)) return;
  y = result(a, column, columns, y, up);
  u64 at = (u64)row * a.out_cols + a.out_first + column;
  if (a.out_bf16) ((u16*)a.out)[at] = (u16)narrow(y);
  else if (a.sink == SINK_ADD) ((float*)a.out)[at] += y;
  else ((float*)a.out)[at] = y;
}

#if FORMAT == FORMAT_F32

// One warp takes a panel and a token; a lane takes an output.
KERNEL(linear_floats, LinearArgs, 256) {
  u32 lane = threadIdx.x % 32, row = blockIdx.y * 8 + threadIdx.x / 32;
  const float* w = (const float*)(a.panels + blockIdx.x * a.panel_bytes) + lane;
  const float* x = (const float*)a.x + (u64)row * a.k;
  float sum = 0.0f;
  if (row < a.rows)
    for (u32 k = 0; k < a.k; k++) sum = fmaf(x[k], w[k * 32], sum);
  float up = __shfl_xor_sync(ALL_LANES, sum, 16);
  finish(a, a.first_panel + blockIdx.x, lane, row, sum, up);
}

#else

// x[k .. k + 8] of a row, zero beyond its end.
__device__ __forceinline__ uint4 read_x(const u16* row, u32 k, u32 end) {
  if (end % 8 == 0) return k < end ? load_16(row + k) : make_uint4(0, 0, 0, 0);
  u32 w[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 low = k + 2 * i < end ? row[k + 2 * i] : 0, high = k + 2 * i + 1 < end ? row[k + 2 * i + 1] : 0;
    w[i] = low | high << 16;
  }
  return make_uint4(w[0], w[1], w[2], w[3]);
}

// sums[p] += rows 4 g + 2 p, 4 g + 2 p + 1 by eight tokens.
__device__ __forceinline__ void multiply(const Lines& w, const uint4& x, float (&sums)[2][4]) {
  u32 a[4];
  a[0] = w[0].x; a[1] = w[0].y; a[2] = w[1].x; a[3] = w[1].y;
  mma(sums[0], a, x.x, x.y);
  a[0] = w[0].z; a[1] = w[0].w; a[2] = w[1].z; a[3] = w[1].w;
  mma(sums[1], a, x.x, x.y);
  a[0] = w[2].x; a[1] = w[2].y; a[2] = w[3].x; a[3] = w[3].y;
  mma(sums[0], a, x.z, x.w);
  a[0] = w[2].z; a[1] = w[2].w; a[2] = w[3].z; a[3] = w[3].w;
  mma(sums[1], a, x.z, x.w);
}

// However many tokens there are, k is cut into the same eight runs of groups; a run's products are added in order, then the
// sums of the runs in theirs. So a token's result does not depend on how many others there are.
__device__ __forceinline__ u32 groups_of_run(u32 groups) { return (groups + 7) / 8; }

// A group on its way: weights as they lie, and x of 8 * BLOCKS tokens.
template <u32 BLOCKS>
struct Coming {
  Raw w;
  uint4 x[BLOCKS];
};

// Groups that a warp has on their way: as many as 96 registers hold, or 80 where others unpack them; four of bf16 by 8 tokens. Two blocks of eight warps then
// have 128 KiB of weights under way on a multiprocessor, one of them 64 KiB (as a product with 4096 rows has no more); an
// H100 needs some 40 KiB, 3 TB/s for a microsecond, to keep its memory busy.
template <u32 BLOCKS>
__device__ constexpr u32 groups_ahead() {
  constexpr u32 fit = (FORMAT == FORMAT_BF16 ? 96 : 80) / (RAW_WORDS + 4 * BLOCKS);
  return fit < 2 ? 2 : fit > 8 ? 8 : fit;
}

// A warp's run, from group `index` to `end`, of a k that is a multiple of 32. `x_at`: where the lane's tokens begin.
template <u32 BLOCKS>
__device__ __forceinline__ void add_run(
    const u8* panel, u32 row_bytes, const u16* x, const u32 (&x_at)[BLOCKS], u32 index, u32 end, float (&sums)[BLOCKS][2][4]) {
  constexpr u32 AHEAD = groups_ahead<BLOCKS>();
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  Coming<BLOCKS> coming[AHEAD];
  auto load = [&](u32 at, Coming<BLOCKS>& to) {
    load_group(panel, row_bytes, at, g, t, to.w);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) to.x[b] = load_16(x + (x_at[b] + 8 * t) + 32 * at);
  };
#pragma unroll
  for (u32 i = 0; i < AHEAD; i++)
    if (index + i < end) load(index + i, coming[i]);
#pragma unroll 1
  for (; index < end; index += AHEAD) {
#pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      if (index + i >= end) break;
      Lines w;
      lines_of(coming[i].w, row_bytes, g, t, w);
#pragma unroll
      for (u32 b = 0; b < BLOCKS; b++) multiply(w, coming[i].x[b], sums[b]);
      if (index + i + AHEAD < end) load(index + i + AHEAD, coming[i]);
    }
  }
}

// The same of any k, a group at a time.
template <u32 BLOCKS>
__device__ __forceinline__ void add_odd_run(
    const LinearArgs& a, const u8* panel, const u32 (&x_at)[BLOCKS], u32 index, u32 end, float (&sums)[BLOCKS][2][4]) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (; index < end; index++) {
    Lines w;
    read_lines(panel, a.row_bytes, index, g, t, w);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) multiply(w, read_x((const u16*)a.x + x_at[b], 32 * index + 8 * t, a.k), sums[b]);
  }
}

// Few tokens: a block takes a panel and 8 * BLOCKS tokens, each of its eight warps a run. Blocks of one panel follow each other,
// so that its weights come from the device's memory once. Tokens beyond the last are the last, and go nowhere. So many TOKENS pass
// through shared memory at a time.
template <u32 BLOCKS, u32 TOKENS>
__device__ __forceinline__ void few(const LinearArgs& a, float (&shared)[8][TOKENS][33]) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const u8* panel = a.panels + blockIdx.y * a.panel_bytes;
  u32 first = blockIdx.x * 8 * BLOCKS, groups = (a.k + 31) / 32, run = groups_of_run(groups);
  u32 begin = warp * run, end = min(begin + run, groups), x_at[BLOCKS];
#pragma unroll
  for (u32 b = 0; b < BLOCKS; b++) x_at[b] = min(first + 8 * b + g, a.rows - 1) * a.k;
  float sums[BLOCKS][2][4] = {};
  if (a.k % 32 == 0) add_run<BLOCKS>(panel, a.row_bytes, (const u16*)a.x, x_at, begin, end, sums);
  else add_odd_run<BLOCKS>(a, panel, x_at, begin, end, sums);
#pragma unroll
  for (u32 done = 0; done < 8 * BLOCKS; done += TOKENS) {
    if (done > 0) __syncthreads();
#pragma unroll
    for (u32 b = 0; b < TOKENS / 8; b++)
#pragma unroll
      for (u32 e = 0; e < 8; e++)
        shared[warp][8 * b + 2 * t + e % 2][4 * g + 2 * (e / 4) + e / 2 % 2] = sums[done / 8 + b][e / 4][e % 4];
    __syncthreads();
#pragma unroll 1
    for (u32 token = warp; token < TOKENS; token += 8) {
      float y = 0.0f;
      for (u32 w = 0; w < 8; w++) y += shared[w][token][lane];
      float up = __shfl_xor_sync(ALL_LANES, y, 16);
      finish(a, a.first_panel + blockIdx.y, lane, first + done + token, y, up);
    }
  }
}

KERNEL_BLOCKS(linear_few_8, LinearArgs, 256, 2) {
  __shared__ float shared[8][8][33];
  few<1>(a, shared);
}

KERNEL(linear_few_32, LinearArgs, 256) {
  __shared__ float shared[8][32][33];
  few<4>(a, shared);
}

KERNEL(linear_few_64, LinearArgs, 256) {
  __shared__ float shared[8][32][33];
  few<8>(a, shared);
}

// Many tokens: a block takes 4 panels by 128 tokens, three stages of 32 of k in shared memory. Weights lie there in
// the order of the lanes that read them, as lines or, of bf16, as what they were read from. Warps 0 to 3 bring a panel each, the others x.
struct Stage {
  uint4 w[4][4][32];  // [panel][i][lane]
  uint4 x[128][4];    // [token][t]
};

struct ManyArgs {
  LinearArgs linear;
  u32 panels;  // in the part
};

__device__ __forceinline__ void bring(const ManyArgs& a, u32 index, Stage& stage) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  if (warp < 4) {
    u32 number = min(blockIdx.x * 4 + warp, a.panels - 1);
    const u8* panel = a.linear.panels + number * a.linear.panel_bytes;
    if constexpr (FORMAT == FORMAT_BF16) {
#pragma unroll
      for (u32 i = 0; i < 4; i++)
        copy_16(&stage.w[warp][i][lane], quad_at(panel, a.linear.row_bytes, index, g, t, i));
    } else {
      Lines w;
      read_lines(panel, 0, index, g, t, w);
#pragma unroll
      for (u32 i = 0; i < 4; i++) stage.w[warp][i][lane] = w[i];
    }
    return;
  }
  const u16* x = (const u16*)a.linear.x;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 token = (threadIdx.x - 128) / 4 + 32 * i, k = 32 * index + 8 * (threadIdx.x % 4);
    u32 row = min(blockIdx.y * 128 + token, a.linear.rows - 1);
    const u16* from = x + (u64)row * a.linear.k;
    if (a.linear.k % 8 == 0 && k < a.linear.k) copy_16(&stage.x[token][threadIdx.x % 4], from + k);
    else stage.x[token][threadIdx.x % 4] = read_x(from, k, a.linear.k);
  }
}

KERNEL(linear_many, ManyArgs, 256) {
  __shared__ Stage stages[3];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  u32 groups = (a.linear.k + 31) / 32;
  u32 panels = 2 * (warp % 2), tokens = 32 * (warp / 2);
  float sums[2][4][2][4] = {}, run_sums[2][4][2][4] = {};
  u32 run = groups_of_run(groups), left = run;  // groups until the run ends
  for (u32 i = 0; i < 2; i++) {
    if (i < groups) bring(a, i, stages[i]);
    copies_commit();
  }
  for (u32 index = 0; index < groups; index++) {
    copies_wait<1>();
    __syncthreads();
    if (index + 2 < groups) bring(a, index + 2, stages[(index + 2) % 3]);
    copies_commit();
    const Stage& stage = stages[index % 3];
    uint4 x[4];
#pragma unroll
    for (u32 b = 0; b < 4; b++) x[b] = stage.x[tokens + 8 * b + g][t];
#pragma unroll
    for (u32 q = 0; q < 2; q++) {
      uint4 quads[4];
      Lines w;
#pragma unroll
      for (u32 i = 0; i < 4; i++) quads[i] = stage.w[panels + q][i][lane];
      lines_of(quads, FORMAT == FORMAT_BF16 ? a.linear.row_bytes : 0, w);
#pragma unroll
      for (u32 b = 0; b < 4; b++) multiply(w, x[b], run_sums[q][b]);
    }
    if (--left > 0 && index + 1 < groups) continue;
    left = run;
#pragma unroll
    for (u32 i = 0; i < 64; i++) {
      float& sum = run_sums[i / 32][i / 8 % 4][i / 4 % 2][i % 4];
      sums[i / 32][i / 8 % 4][i / 4 % 2][i % 4] += sum;
      sum = 0.0f;
    }
  }
  // Sums to rows of 32 outputs, through the memory of the stages: a warp's own piece of it.
  float(*rows)[33] = (float(*)[33])stages + 32 * warp;
  __syncthreads();
#pragma unroll
  for (u32 q = 0; q < 2; q++) {
    u32 number = blockIdx.x * 4 + panels + q;
#pragma unroll
    for (u32 e = 0; e < 32; e++)
      rows[8 * (e / 8) + 2 * t + e % 2][4 * g + 2 * (e / 4 % 2) + e / 2 % 2] = sums[q][e / 8][e / 4 % 2][e % 4];
    __syncwarp();
#pragma unroll 1
    for (u32 token = 0; token < 32; token++) {
      float y = rows[token][lane], up = __shfl_xor_sync(ALL_LANES, y, 16);
      if (number < a.panels)
        finish(a.linear, a.linear.first_panel + number, lane, blockIdx.y * 128 + tokens + token, y, up);
    }
    __syncwarp();
  }
}

struct UnpackArgs {
  const u8* panels;
  u16* out;  // [32 panels, k]
  u64 panel_bytes;
  u32 k;     // a multiple of 8
};

// Panels as plain rows of bf16, in the order of the panels. A warp takes 32 of k of a panel, every eighth of the block's 32.
KERNEL(unpack_panels, UnpackArgs, 256) {
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const u8* panel = a.panels + blockIdx.x * a.panel_bytes;
  u32 end = min((blockIdx.y + 1) * 32, (a.k + 31) / 32);
  for (u32 index = blockIdx.y * 32 + threadIdx.x / 32; index < end; index += 8) {
    Lines w;
    read_lines(panel, 0, index, g, t, w);
    u32 k = 32 * index + 8 * t;
    if (k >= a.k) continue;
#pragma unroll
    for (u32 r = 0; r < 4; r++)
      *(uint4*)(a.out + ((u64)blockIdx.x * 32 + 4 * g + r) * a.k + k) =
          make_uint4(component(w[0], r), component(w[1], r), component(w[2], r), component(w[3], r));
  }
}

struct SumsArgs {
  LinearArgs linear;
  const float* sums;  // [rows, 32 panels]
  u32 panels, unused;
};

// What is left of a linear whose sums another has computed: a thread takes four results of a row beside each other, of a gated panel
// the first half of the places with what they are multiplied by in the other.
KERNEL(finish_sums, SumsArgs, 256) {
  bool gated = a.linear.sink == SINK_GATED;
  u32 each = gated ? 4 : 8, index = blockIdx.x * 256 + threadIdx.x, unit = index / each, first = index % each * 4;
  u32 row = unit / a.panels, panel = unit % a.panels;
  if (row >= a.linear.rows) return;
  const float* sums = a.sums + (u64)unit * 32 + first;
  float4 y = *(const float4*)sums, up = gated ? *(const float4*)(sums + 16) : y;
  panel += a.linear.first_panel;
  u32 column = panel * 4 * each + first, columns = gated ? a.linear.n / 2 : a.linear.n;
  if (a.linear.out_bf16 && column + 4 <= columns && (a.linear.out_cols | a.linear.out_first) % 4 == 0) {
    float z[4] = {result(a.linear, column, columns, y.x, up.x), result(a.linear, column + 1, columns, y.y, up.y),
                  result(a.linear, column + 2, columns, y.z, up.z), result(a.linear, column + 3, columns, y.w, up.w)};
    u16* out = (u16*)a.linear.out + ((u64)row * a.linear.out_cols + a.linear.out_first + column);
    *(uint2*)out = make_uint2(narrow_pair(z[0], z[1]), narrow_pair(z[2], z[3]));
    return;
  }
  finish(a.linear, panel, first, row, y.x, up.x);
  finish(a.linear, panel, first + 1, row, y.y, up.y);
  finish(a.linear, panel, first + 2, row, y.z, up.z);
  finish(a.linear, panel, first + 3, row, y.w, up.w);
}

#endif

struct EmbedArgs {
  const u8* panels;
  const u32* ids;
  const u32* picked;
  float* out;  // [ids, k]
  u64 panel_bytes;
  u32 k, n;
  u32 first_panel, held_panels, gated, row_bytes;
  float scale;
  u32 unused;
};

#define PICKED 0x80000000u

// out[i] = scale * row ids[i], for the rows that this part holds. An id with its highest bit is a place among tokens that were picked
// on the device; what could not be picked is no row, and stands for the first.
KERNEL(embed_rows, EmbedArgs, 128) {
  u32 row = a.ids[blockIdx.x], half = a.n / 2;
  if (row & PICKED) row = a.picked[row & ~PICKED];
  if (row >= a.n) row = 0;
  u32 panel = a.gated ? row % half / 16 : row / 32;
  u32 place = a.gated ? row % half % 16 + 16 * (row / half) : row % 32;
  if (panel < a.first_panel || panel >= a.first_panel + a.held_panels) return;
  const u8* bytes = a.panels + (panel - a.first_panel) * a.panel_bytes;
  float* out = a.out + (u64)blockIdx.x * a.k;
#if FORMAT == FORMAT_F32
  for (u32 k = threadIdx.x; k < a.k; k += blockDim.x) out[k] = a.scale * ((const float*)bytes)[k * 32 + place];
#else
  u32 t = threadIdx.x % 4;
  for (u32 index = threadIdx.x / 4; index < (a.k + 31) / 32; index += blockDim.x / 4) {
    Lines w;
    read_lines(bytes, a.row_bytes, index, place / 4, t, w);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 pair = component(w[i], place % 4), k = 32 * index + 8 * t + 2 * i;
      if (k < a.k) out[k] = a.scale * widen(pair & 0xffffu);
      if (k + 1 < a.k) out[k + 1] = a.scale * widen(pair >> 16);
    }
  }
#endif
}
