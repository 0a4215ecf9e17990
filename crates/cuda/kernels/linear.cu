// y = x * W^T over panels of 32 output rows, W in the format that FORMAT numbers.
//
// A warp reads 32 of k of a panel at a time. Lane 4 g + t takes output rows 4 g .. 4 g + 3 and k 8 t .. 8 t + 7
// (lines 4 t .. 4 t + 3 of the tiles): what it needs lies together in every format, 16 bytes and more. The order
// of k inside a product is free as long as x is read in the same one, so these registers are at once operands of
// the tensor cores: step s of two takes lines 4 t + 2 s and 4 t + 2 s + 1 as pairs t and t + 4, and product p of
// two takes rows 4 g + 2 p and 4 g + 2 p + 1 as rows g and g + 8.

// The numbers of kernels::linear::quant::Narrow, then those of the wide formats.
#define FORMAT_BF16 12
#define FORMAT_F32 13

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
};

__device__ __forceinline__ float activate(u32 kind, float x) {
  if (kind == 0) return x / (1.0f + expf(-x));
  if (kind == 1) return x < 0.0f ? 0.0f : x;
  if (kind == 2) return 0.5f * x * (1.0f + erff(x * 0.70710678f));
  return x / (1.0f + expf(-1.595769f * (x + 0.044715f * x * x * x)));
}

// One output: `place` of `panel`, token `row`. `up` is used by gated sinks, whose places 16 and up are skipped.
__device__ __forceinline__ void finish(const LinearArgs& a, u32 panel, u32 place, u32 row, float y, float up) {
  bool gated = a.sink == SINK_GATED;
  u32 column = gated ? panel * 16 + place : panel * 32 + place;
  u32 columns = gated ? a.n / 2 : a.n;
  if (row >= a.rows || column >= columns || (gated && place >= 16)) return;
  if (a.bias) y += a.bias[column];
  if (gated) {
    if (a.bias) up += a.bias[columns + column];
    y = activate(a.act, y) * up;
  } else if (a.sink == SINK_ACT) {
    y = activate(a.act, y);
  }
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

struct Plan {
  u32 unit_k, has_min, bf16_scales, sub, low_bits, high_bits, offset;
};

#define SUB_NONE 0
#define SUB_SCALE_MIN 1
#define SUB_NIBBLES 2
#define SUB_SIGNED 3

__device__ constexpr Plan PLANS[13] = {
    {64, 0, 1, SUB_NONE, 8, 0, 0},        {64, 1, 1, SUB_NONE, 4, 0, 0},     {32, 0, 0, SUB_NONE, 4, 0, 8},
    {32, 1, 0, SUB_NONE, 4, 0, 0},        {32, 0, 0, SUB_NONE, 4, 1, 16},    {32, 1, 0, SUB_NONE, 4, 1, 0},
    {32, 0, 0, SUB_NONE, 8, 0, 0},        {256, 1, 0, SUB_NIBBLES, 2, 0, 0}, {256, 0, 0, SUB_SIGNED, 2, 1, 4},
    {256, 1, 0, SUB_SCALE_MIN, 4, 0, 0},  {256, 1, 0, SUB_SCALE_MIN, 4, 1, 0},
    {256, 0, 0, SUB_SIGNED, 4, 2, 32},    {32, 0, 0, SUB_NONE, 0, 0, 0},
};

constexpr Plan PLAN = PLANS[FORMAT];
constexpr u32 LOW_BYTES = 512 * PLAN.low_bits / 8;
constexpr u32 HIGH_BYTES = 512 * PLAN.high_bits / 8;
constexpr u32 SUB_BYTES = PLAN.sub == SUB_NONE ? 0 : 64;
constexpr u32 HEAD_BYTES = FORMAT == FORMAT_BF16 ? 0 : 64 * (1 + PLAN.has_min);
constexpr u32 GROUP_BYTES = FORMAT == FORMAT_BF16 ? 2048 : SUB_BYTES + 2 * (LOW_BYTES + HIGH_BYTES);
constexpr u32 UNIT_GROUPS = PLAN.unit_k / 32;
constexpr u32 UNIT_BYTES = HEAD_BYTES + UNIT_GROUPS * GROUP_BYTES;
// Codes of four rows beside each other, a word of 16 bits for each k; else in the order of a tile's lines.
constexpr bool BY_ROW = PLAN.low_bits == 4 && PLAN.high_bits == 0;

// lines[i].{x,y,z,w}: the pair of k at 8 t + 2 i of output rows 4 g .. 4 g + 3, as two bf16.
typedef uint4 Lines[4];

// Codes of `bits` bits, added above those there are. `plane` is that of the lane's tile.
template <u32 BITS>
__device__ __forceinline__ void add_plane(const u8* plane, u32 quad, u32 t, u32 shift, u32 (&codes)[4][4][2]) {
  const uint4* at = (const uint4*)(plane + 64 * (t * BITS / 4) + 32 * (quad % 2));
  uint4 first = __ldg(at), second = __ldg(at + 1);
  u32 words[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 down = (8 * t + 2 * i + quad / 2) * BITS % 32;
#pragma unroll
    for (u32 e = 0; e < 8; e++) codes[i][e / 2][e % 2] |= (words[e] >> down & ((1u << BITS) - 1)) << shift;
  }
}

__device__ __forceinline__ void read_codes(const u8* group, u32 g, u32 t, u32 (&codes)[4][4][2]) {
  u32 tile = g / 4, quad = g % 4;
  const u8* low = group + SUB_BYTES + tile * LOW_BYTES;
  if constexpr (BY_ROW) {
    uint4 v = __ldg((const uint4*)(low + 64 * quad + 16 * t));
#pragma unroll
    for (u32 i = 0; i < 4; i++)
#pragma unroll
      for (u32 r = 0; r < 4; r++) {
        codes[i][r][0] = component(v, i) >> (4 * r) & 15u;
        codes[i][r][1] = component(v, i) >> (16 + 4 * r) & 15u;
      }
  } else if constexpr (PLAN.low_bits == 8) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      uint2 v = __ldg((const uint2*)(low + 16 * (2 * (4 * t + i) + quad / 2) + 8 * (quad % 2)));
#pragma unroll
      for (u32 e = 0; e < 8; e++) codes[i][e / 2][e % 2] = (e < 4 ? v.x : v.y) >> (8 * (e % 4)) & 255u;
    }
  } else {
#pragma unroll
    for (u32 e = 0; e < 32; e++) codes[e / 8][e / 2 % 4][e % 2] = 0;
    add_plane<PLAN.low_bits == 2 ? 2 : 4>(low, quad, t, 0, codes);
    const u8* high = group + SUB_BYTES + 2 * LOW_BYTES + tile * HIGH_BYTES;
    if constexpr (PLAN.high_bits == 1) add_plane<1>(high, quad, t, PLAN.low_bits, codes);
    if constexpr (PLAN.high_bits == 2) add_plane<2>(high, quad, t, PLAN.low_bits, codes);
  }
}

__device__ __forceinline__ float scale_word(u32 bits) {
  return PLAN.bf16_scales ? widen(bits) : half_to_float(bits);
}

__device__ __forceinline__ u32 word_of(const uint2& v, u32 r) { return (r < 2 ? v.x : v.y) >> (16 * (r % 2)) & 0xffffu; }

// Scale and min of the lane's four rows: value = scale * code + min.
__device__ __forceinline__ void read_scales(const u8* unit, const u8* group, u32 g, u32 t, float (&scale)[4], float (&min_)[4]) {
  uint2 d = __ldg((const uint2*)(unit + 8 * g)), m = {0, 0};
  if constexpr (PLAN.has_min) m = __ldg((const uint2*)(unit + 64 + 8 * g));
  u32 sub0 = 0, sub1 = 0;
  if constexpr (PLAN.sub != SUB_NONE) {
    sub0 = __ldg((const u32*)(group + 4 * g));
    sub1 = __ldg((const u32*)(group + 32 + 4 * g));
  }
#pragma unroll
  for (u32 r = 0; r < 4; r++) {
    float df = scale_word(word_of(d, r)), mf = scale_word(word_of(m, r));
    u32 first = sub0 >> (8 * r) & 255u, second = sub1 >> (8 * r) & 255u, mine = t / 2 ? second : first;
    if constexpr (PLAN.sub == SUB_SCALE_MIN) { df *= (float)first; mf = -(mf * (float)second); }
    if constexpr (PLAN.sub == SUB_NIBBLES) { df *= (float)(mine & 15u); mf = -(mf * (float)(mine >> 4)); }
    if constexpr (PLAN.sub == SUB_SIGNED) df *= (float)(signed char)mine;
    scale[r] = df;
    min_[r] = PLAN.offset ? -(df * (float)PLAN.offset) : mf;
  }
}

__device__ __forceinline__ float code_value(u32 code) {
  return PLAN.low_bits == 8 ? (float)(signed char)code : (float)code;
}

__device__ __forceinline__ void decode_narrow(const u8* unit, const u8* group, u32 g, u32 t, Lines& lines) {
  u32 codes[4][4][2];
  float scale[4], min_[4];
  read_codes(group, g, t, codes);
  read_scales(unit, group, g, t, scale, min_);
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 w[4];
#pragma unroll
    for (u32 r = 0; r < 4; r++)
      w[r] = narrow_pair(fmaf(scale[r], code_value(codes[i][r][0]), min_[r]),
                         fmaf(scale[r], code_value(codes[i][r][1]), min_[r]));
    lines[i] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// The place of line 4 t + i of the lane's rows in a group of bf16 tiles.
__device__ __forceinline__ u32 line_offset(u32 g, u32 t, u32 i) { return 1024 * (g / 4) + 64 * (4 * t + i) + 16 * (g % 4); }

// What lane 4 g + t takes of group number `index` of a panel.
__device__ __forceinline__ void read_lines(const u8* panel, u32 index, u32 g, u32 t, Lines& lines) {
  if constexpr (FORMAT == FORMAT_BF16) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) lines[i] = __ldg((const uint4*)(panel + (u64)index * 2048 + line_offset(g, t, i)));
  } else {
    const u8* unit = panel + (u64)(index / UNIT_GROUPS) * UNIT_BYTES;
    decode_narrow(unit, unit + HEAD_BYTES + index % UNIT_GROUPS * GROUP_BYTES, g, t, lines);
  }
}

// x[k .. k + 8] of a row, zero beyond its end.
__device__ __forceinline__ uint4 read_x(const u16* row, u32 k, u32 end) {
  if (end % 8 == 0) return k < end ? __ldg((const uint4*)(row + k)) : make_uint4(0, 0, 0, 0);
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

// Few tokens: a block takes a panel and 8 * BLOCKS tokens, each of its eight warps a run.
template <u32 BLOCKS>
__device__ __forceinline__ void few(const LinearArgs& a, float (&shared)[8][32][33]) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const u8* panel = a.panels + blockIdx.x * a.panel_bytes;
  u32 first = blockIdx.y * 8 * BLOCKS, groups = (a.k + 31) / 32, run = groups_of_run(groups);
  const u16* x = (const u16*)a.x;
  float sums[BLOCKS][2][4] = {};
#pragma unroll 4
  for (u32 index = warp * run; index < min((warp + 1) * run, groups); index++) {
    Lines w;
    read_lines(panel, index, g, t, w);
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
      u32 row = first + 8 * b + g;
      uint4 values = row < a.rows ? read_x(x + (u64)row * a.k, 32 * index + 8 * t, a.k) : make_uint4(0, 0, 0, 0);
      multiply(w, values, sums[b]);
    }
  }
#pragma unroll
  for (u32 b = 0; b < BLOCKS; b++)
#pragma unroll
    for (u32 e = 0; e < 8; e++) shared[warp][8 * b + 2 * t + e % 2][4 * g + 2 * (e / 4) + e / 2 % 2] = sums[b][e / 4][e % 4];
  __syncthreads();
#pragma unroll 1
  for (u32 token = warp; token < 8 * BLOCKS; token += 8) {
    float y = 0.0f;
    for (u32 w = 0; w < 8; w++) y += shared[w][token][lane];
    float up = __shfl_xor_sync(ALL_LANES, y, 16);
    finish(a, a.first_panel + blockIdx.x, lane, first + token, y, up);
  }
}

KERNEL(linear_few_8, LinearArgs, 256) {
  __shared__ float shared[8][32][33];
  few<1>(a, shared);
}

KERNEL(linear_few_32, LinearArgs, 256) {
  __shared__ float shared[8][32][33];
  few<4>(a, shared);
}

// Many tokens: a block takes 4 panels by 128 tokens, three stages of 32 of k in shared memory. Weights lie there in
// the order of the lanes that read them. Warps 0 to 3 bring a panel each, the others x.
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
        copy_16(&stage.w[warp][i][lane], panel + (u64)index * 2048 + line_offset(g, t, i));
    } else {
      Lines w;
      read_lines(panel, index, g, t, w);
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
      Lines w;
#pragma unroll
      for (u32 i = 0; i < 4; i++) w[i] = stage.w[panels + q][i][lane];
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
    read_lines(panel, index, g, t, w);
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
};

// What is left of a linear whose sums another has computed: a warp takes a row of a panel.
KERNEL(finish_sums, SumsArgs, 256) {
  u32 lane = threadIdx.x % 32, row = blockIdx.y * 8 + threadIdx.x / 32;
  float y = row < a.linear.rows ? a.sums[((u64)row * gridDim.x + blockIdx.x) * 32 + lane] : 0.0f;
  float up = __shfl_xor_sync(ALL_LANES, y, 16);
  finish(a.linear, a.linear.first_panel + blockIdx.x, lane, row, y, up);
}

#endif

struct EmbedArgs {
  const u8* panels;
  const u32* ids;
  const u32* picked;
  float* out;  // [ids, k]
  u64 panel_bytes;
  u32 k, n;
  u32 first_panel, held_panels, gated;
};

#define PICKED 0x80000000u

// out[i] = row ids[i], for the rows that this part holds. An id with its highest bit is a place among tokens that were picked
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
  for (u32 k = threadIdx.x; k < a.k; k += blockDim.x) out[k] = ((const float*)bytes)[k * 32 + place];
#else
  u32 t = threadIdx.x % 4;
  for (u32 index = threadIdx.x / 4; index < (a.k + 31) / 32; index += blockDim.x / 4) {
    Lines w;
    read_lines(bytes, index, place / 4, t, w);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 pair = component(w[i], place % 4), k = 32 * index + 8 * t + 2 * i;
      if (k < a.k) out[k] = widen(pair & 0xffffu);
      if (k + 1 < a.k) out[k + 1] = widen(pair >> 16);
    }
  }
#endif
}
