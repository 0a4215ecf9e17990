// Kernels over whole rows: norms, gathers, conversions. One block a row.

struct NormArgs {
  const float* x;
  const float* weight;  // null: ones
  const float* bias;    // null: zeros
  void* out;
  u32 cols;
  u32 stride;  // from one row to the next
  float eps;
  u32 layer;  // layer norm, else RMS
  u32 to;     // TO_...
  u32 unused;
};

#define TO_FLOATS 0
#define TO_BF16 1
#define TO_SUM 2  // added to floats

__device__ __forceinline__ float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (u32 i = 0; i < blockDim.x / 32; i++) sum += partial[i];
  __syncthreads();
  return sum;
}

__device__ __forceinline__ void put(void* to, u64 at, float x, u32 how) {
  if (how == TO_BF16) ((u16*)to)[at] = (u16)narrow(x);
  else ((float*)to)[at] = how == TO_SUM ? ((float*)to)[at] + x : x;
}

// Writes `count` of four numbers of a row, as words where the row is one of whole words.
__device__ __forceinline__ void put_four(void* to, u64 at, const float (&y)[4], u32 count, bool words, u32 how) {
  if (words && how == TO_BF16) *(uint2*)((u16*)to + at) = make_uint2(narrow_pair(y[0], y[1]), narrow_pair(y[2], y[3]));
  else if (words && how == TO_FLOATS) *(float4*)((float*)to + at) = make_float4(y[0], y[1], y[2], y[3]);
  else if (words) {
    float4* sum = (float4*)((float*)to + at);
    *sum = make_float4(sum->x + y[0], sum->y + y[1], sum->z + y[2], sum->w + y[3]);
  } else
    for (u32 i = 0; i < count; i++) put(to, at + i, y[i], how);
}

// Numbers i .. i + 3 of a row, `beyond` in place of those that it has not.
__device__ __forceinline__ float4 four_of(const float* row, u32 i, u32 cols, bool words, float beyond) {
  if (words) return *(const float4*)(row + i);
  return make_float4(row[i], i + 1 < cols ? row[i + 1] : beyond, i + 2 < cols ? row[i + 2] : beyond, i + 3 < cols ? row[i + 3] : beyond);
}

// As many threads for each number of rows: a row's sums do not depend on the others. `out` may be `x`: each thread writes what it
// alone reads, after the sums. Of a row in parts each has a block, and scales, of its own.
KERNEL(norm_rows, NormArgs, 512) {
  __shared__ float partial[16];
  u64 first = (u64)blockIdx.x * a.stride + (u64)blockIdx.y * a.cols;
  const float* weights = a.weight ? a.weight + (u64)blockIdx.y * a.cols : nullptr;
  const float* x = a.x + first;
  bool words = (a.cols | a.stride) % 4 == 0 && (u64)a.x % 16 == 0;
  u32 begin = 4 * threadIdx.x, step = 4 * blockDim.x;
  float mean = 0.0f;
  if (a.layer) {
    float sum = 0.0f;
#pragma unroll 4
    for (u32 i = begin; i < a.cols; i += step) {
      float4 v = four_of(x, i, a.cols, words, 0.0f);
      sum += (v.x + v.y) + (v.z + v.w);
    }
    mean = block_sum(sum, partial) / (float)a.cols;
  }
  float squares = 0.0f;
#pragma unroll 4
  for (u32 i = begin; i < a.cols; i += step) {
    float4 v = four_of(x, i, a.cols, words, mean);
    v = make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean);
    squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
  }
  float scale = 1.0f / sqrtf(block_sum(squares, partial) / (float)a.cols + a.eps);
#pragma unroll 4
  for (u32 i = begin; i < a.cols; i += step) {
    float4 v = four_of(x, i, a.cols, words, 0.0f);
    float4 weight = weights ? four_of(weights, i, a.cols, words, 0.0f) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    float4 bias = a.bias ? four_of(a.bias, i, a.cols, words, 0.0f) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float y[4] = {(v.x - mean) * scale * weight.x + bias.x, (v.y - mean) * scale * weight.y + bias.y,
                  (v.z - mean) * scale * weight.z + bias.z, (v.w - mean) * scale * weight.w + bias.w};
    put_four(a.out, first + i, y, min(a.cols - i, 4u), words, a.to);
  }
}

struct PickArgs {
  const float* from;
  const u32* rows;
  float* out;
  u32 cols;
  u32 add;
};

// out[i] = from[rows[i]], or added to what is there.
KERNEL(pick_rows, PickArgs, 256) {
  const float* from = a.from + (u64)a.rows[blockIdx.x] * a.cols;
  float* out = a.out + (u64)blockIdx.x * a.cols;
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = a.add ? out[i] + from[i] : from[i];
}

struct CapArgs {
  float* x;
  u64 count;
  float cap;
  u32 unused;
};

// Numbers come no further from zero than the cap.
KERNEL(cap_rows, CapArgs, 256) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += (u64)gridDim.x * blockDim.x)
    a.x[i] = a.cap * tanhf(a.x[i] / a.cap);
}

struct ConvertArgs {
  const void* from;
  void* out;
  u64 count;
  u32 from_bf16;
  u32 to_bf16;
};

KERNEL(convert_rows, ConvertArgs, 256) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += (u64)gridDim.x * blockDim.x) {
    float x = a.from_bf16 ? widen(((const u16*)a.from)[i]) : ((const float*)a.from)[i];
    if (a.to_bf16) ((u16*)a.out)[i] = (u16)narrow(x);
    else ((float*)a.out)[i] = x;
  }
}

struct StoreKvArgs {
  const float* qkv;     // [rows, (heads + 2 kv_heads) head_dim]
  const float* q_norm;  // null: none
  const float* k_norm;
  const float* cos;     // null: none
  const float* sin;
  const u32* turns; // [rows], rows of cos and sin
  const u32* slots;     // [rows] block * 32 + token; all ones: a row of no sequence
  void* q;
  void* pages;
  u32 heads, kv_heads, head_dim, rotary_dim;
  float eps;
  u32 q_bf16, kv;  // KV_...
  float beta;      // queries grow by 1 + beta ln(1 + turns / period), a whole quotient; 0: they do not
  u32 period;
  u32 unused;
};

#define KV_FLOATS 0
#define KV_BF16 1
#define KV_INT4 2
#define KV_FP8 3
#define KV_F16 4

// To the nearest number of so many bits, ties to even, up to the one whose code is LARGEST, as kernels::attention::minifloat has
// it; NaN stays NaN.
template <u32 BITS, u32 MANTISSA, u32 LARGEST, u32 NO_NUMBER>
__device__ __forceinline__ u32 narrow_to(float x) {
  const u32 BIAS = 128 - (1u << (BITS - MANTISSA - 2)), DROPPED = 23 - MANTISSA;
  u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
  u32 half = (1u << (DROPPED - 1)) - 1 + (magnitude >> DROPPED & 1u);
  u32 normal = min(((magnitude + half) >> DROPPED) - (BIAS << MANTISSA), LARGEST);
  // Below the least normal number steps are equal, and this one has them as its last place.
  const u32 STEPS = (BIAS + DROPPED + 1) << 23;
  u32 steps = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(STEPS))) - STEPS;
  u32 code = magnitude < (BIAS + 1) << 23 ? steps : normal;
  return (x != x ? NO_NUMBER : code) | bits >> 31 << (BITS - 1);
}

__device__ __forceinline__ u32 narrow_8(float x) { return narrow_to<8, 3, 0x7e, 0x7f>(x); }
__device__ __forceinline__ u32 narrow_16(float x) { return narrow_to<16, 10, 0x7bff, 0x7e00>(x); }

// A head's numbers on grids of 16 steps, one for each 64 of them, as kernels::attention::int4 has it: codes[i] is that of
// x[i]; scales and minima go to their places in the plane. Products and sums are rounded one by one, as on the CPU.
__device__ __forceinline__ void encode(const float* x, u32 d, u16* plane, u32 token, u8* codes) {
  u32 lane = threadIdx.x % 32, groups = (d + 63) / 64;
  u16* grids = plane + 8 * d + token;
  for (u32 group = 0; group < groups; group++) {
    u32 first = 64 * group + lane, second = first + 32;
    float a = x[first < d ? first : 64 * group], b = x[second < d ? second : 64 * group];
    // 0, or NaN if a number is not finite.
    float sound = warp_sum(a * 0.0f + b * 0.0f);
    u32 low_bits = narrow(warp_min(fminf(a, b)));
    float low = widen(low_bits), range = warp_max(fmaxf(a, b)) - low;
    u32 step_bits = narrow(fmaxf(range / 15.0f, 0.0f));
    float step = widen(step_bits), per_step = step > 0.0f ? 1.0f / step : 0.0f;
    float code_a = __fadd_rn(__fmul_rn(a - low, per_step), 0.5f), code_b = __fadd_rn(__fmul_rn(b - low, per_step), 0.5f);
    if (first < d) codes[first] = (u8)fminf(fmaxf(code_a, 0.0f), 15.0f);
    if (second < d) codes[second] = (u8)fminf(fmaxf(code_b, 0.0f), 15.0f);
    if (lane == 0) {
      grids[32 * group] = (u16)(sound == 0.0f ? step_bits : 0);
      grids[32 * (groups + group)] = (u16)(sound == 0.0f ? low_bits : 0x7fc0);
    }
  }
  __syncwarp();
}

// Writes a token's key or value into its plane of 4 bits, four codes a word.
__device__ __forceinline__ void put_codes(const float* x, u32 d, u16* plane, u32 token, bool is_v, u8* codes) {
  encode(x, d, plane, token, codes);
  for (u32 word = threadIdx.x % 32; word < d / 4; word += 32) {
    // Of a key those of a unit of 32 dims (or of the 16 that are left) lie `apart` from each other, of a value together.
    u32 unit = word / 8 * 32, apart = is_v ? 1u : min(8u, (d - unit) / 4);
    const u8* from = codes + (is_v ? 4 * word : unit + word % 8);
    u32 bits = from[0] | from[apart] << 4 | from[2 * apart] << 8 | from[3 * apart] << 12;
    plane[is_v ? word * 32 + token : token * (d / 4) + word] = (u16)bits;
  }
}

// One warp takes one head of one row: queries, then keys, then values.
KERNEL(store_kv, StoreKvArgs, 128) {
  __shared__ float buffer[4][256];
  __shared__ u8 codes[4][256];
  u32 lane = threadIdx.x % 32, row = blockIdx.x, d = a.head_dim;
  u32 head = blockIdx.y * 4 + threadIdx.x / 32;
  u32 all = a.heads + 2 * a.kv_heads;
  if (head >= all || a.slots[row] == ALL_LANES) return;
  float* x = buffer[threadIdx.x / 32];
  const float* from = a.qkv + ((u64)row * all + head) * d;
  for (u32 i = lane; i < d; i += 32) x[i] = from[i];
  __syncwarp();
  bool is_q = head < a.heads, is_v = head >= a.heads + a.kv_heads;
  if (!is_v && a.q_norm) {
    float squares = 0.0f;
    for (u32 i = lane; i < d; i += 32) squares += x[i] * x[i];
    float scale = 1.0f / sqrtf(warp_sum(squares) / (float)d + a.eps);
    const float* weight = is_q ? a.q_norm : a.k_norm;
    for (u32 i = lane; i < d; i += 32) x[i] = x[i] * scale * weight[i];
    __syncwarp();
  }
  if (!is_v && a.cos) {
    u32 half = a.rotary_dim / 2;
    u64 at = (u64)a.turns[row] * half;
    for (u32 i = lane; i < half; i += 32) {
      float low = x[i], high = x[half + i], c = a.cos[at + i], s = a.sin[at + i];
      x[i] = low * c - high * s;
      x[half + i] = high * c + low * s;
    }
    __syncwarp();
  }
  if (is_q) {
    float factor = a.beta == 0.0f ? 1.0f : 1.0f + a.beta * logf((float)(1 + a.turns[row] / a.period));
    for (u32 i = lane; i < d; i += 32) put(a.q, ((u64)row * a.heads + head) * d + i, x[i] * factor, a.q_bf16);
    return;
  }
  u32 kv_head = (head - a.heads) % a.kv_heads, token = a.slots[row] % 32;
  u64 page_head = (u64)(a.slots[row] / 32) * a.kv_heads + kv_head;
  if (a.kv == KV_INT4) {
    u32 plane = 8 * d + 64 * ((d + 63) / 64);
    return put_codes(x, d, (u16*)a.pages + (2 * page_head + is_v) * plane, token, is_v, codes[threadIdx.x / 32]);
  }
  u64 k = page_head * 2 * 32 * d;
  for (u32 i = lane; i < d; i += 32) {
    u64 at = is_v ? k + 32 * d + 32 * i + token : k + token * d + i;
    if (a.kv == KV_FP8) ((u8*)a.pages)[at] = (u8)narrow_8(x[i]);
    else if (a.kv == KV_F16) ((u16*)a.pages)[at] = (u16)narrow_16(x[i]);
    else put(a.pages, at, x[i], a.kv == KV_BF16);
  }
}

struct CopyArgs {
  const uint4* from;
  uint4* to;
  u64 quads;
};

// Words of 16 bytes from one place to another.
KERNEL(copy_quads, CopyArgs, 256) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < a.quads; i += step) a.to[i] = a.from[i];
}

struct Piece {
  const uint4* from;
  uint4* to;
  u32 words;  // of 16 bytes
  u32 unused;
};

struct PiecesArgs {
  const Piece* pieces;
  u32 count;
  u32 unused;
};

// Pieces of memory, the device's or the host's, from place to place. A block takes one after the other, and reads four words a
// thread before it writes them: the host's are far. It is of two warps, whose registers find room on a multiprocessor beside
// blocks of attend_few, which stay for as long as a layer's decodes take: either all leave 4,096 of them, or some stay away (attend.rs).
KERNEL(carry_pieces, PiecesArgs, 64) {
  for (u32 i = blockIdx.x; i < a.count; i += gridDim.x) {
    const Piece piece = a.pieces[i];
    for (u32 first = threadIdx.x; first < piece.words; first += 4 * blockDim.x) {
      uint4 words[4];
#pragma unroll
      for (u32 j = 0; j < 4; j++)
        if (first + j * blockDim.x < piece.words) words[j] = piece.from[first + j * blockDim.x];
#pragma unroll
      for (u32 j = 0; j < 4; j++)
        if (first + j * blockDim.x < piece.words) piece.to[first + j * blockDim.x] = words[j];
    }
  }
}
