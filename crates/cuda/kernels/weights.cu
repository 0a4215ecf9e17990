// Weights: panels of 32 output rows, in the format that FORMAT numbers.
//
// A warp reads 32 of k of a panel at a time. Lane 4 g + t takes output rows 4 g .. 4 g + 3 and k 8 t .. 8 t + 7
// (lines 4 t .. 4 t + 3 of the tiles): what it needs lies together in every format, 16 bytes and more. The order
// of k inside a product is free as long as x is read in the same one, so these registers are at once operands of
// the tensor cores: step s of two takes lines 4 t + 2 s and 4 t + 2 s + 1 as pairs t and t + 4, and product p of
// two takes rows 4 g + 2 p and 4 g + 2 p + 1 as rows g and g + 8.

// The numbers of kernels::linear::quant::Narrow, then those of the wide formats.
#define FORMAT_BF16 13
#define FORMAT_F32 14

#if FORMAT != FORMAT_F32

struct Plan {
  u32 unit_k, has_min, bf16_scales, sub, low_bits, high_bits, offset, floats;
};

#define SUB_NONE 0
#define SUB_SCALE_MIN 1
#define SUB_NIBBLES 2
#define SUB_SIGNED 3

__device__ constexpr Plan PLANS[14] = {
    {64, 0, 1, SUB_NONE, 8, 0, 0, 0},       {64, 1, 1, SUB_NONE, 4, 0, 0, 0},     {32, 0, 0, SUB_NONE, 4, 0, 8, 0},
    {32, 1, 0, SUB_NONE, 4, 0, 0, 0},       {32, 0, 0, SUB_NONE, 4, 1, 16, 0},    {32, 1, 0, SUB_NONE, 4, 1, 0, 0},
    {32, 0, 0, SUB_NONE, 8, 0, 0, 0},       {256, 1, 0, SUB_NIBBLES, 2, 0, 0, 0}, {256, 0, 0, SUB_SIGNED, 2, 1, 4, 0},
    {256, 1, 0, SUB_SCALE_MIN, 4, 0, 0, 0}, {256, 1, 0, SUB_SCALE_MIN, 4, 1, 0, 0},
    {256, 0, 0, SUB_SIGNED, 4, 2, 32, 0},   {64, 0, 1, SUB_NONE, 8, 0, 0, 1},     {32, 0, 0, SUB_NONE, 0, 0, 0, 0},
};

constexpr Plan PLAN = PLANS[FORMAT];
// A min, or the lower half of a scale of 32 bits, which floats of 8 bits have.
constexpr u32 SECOND_WORD = PLAN.has_min || PLAN.floats;
constexpr u32 LOW_BYTES = 512 * PLAN.low_bits / 8;
constexpr u32 HIGH_BYTES = 512 * PLAN.high_bits / 8;
constexpr u32 SUB_BYTES = PLAN.sub == SUB_NONE ? 0 : 64;
constexpr u32 HEAD_BYTES = FORMAT == FORMAT_BF16 ? 0 : 64 * (1 + SECOND_WORD);
constexpr u32 GROUP_BYTES = FORMAT == FORMAT_BF16 ? 2048 : SUB_BYTES + 2 * (LOW_BYTES + HIGH_BYTES);
constexpr u32 UNIT_GROUPS = PLAN.unit_k / 32;
constexpr u32 UNIT_BYTES = HEAD_BYTES + UNIT_GROUPS * GROUP_BYTES;
// Codes of four rows beside each other, a word of 16 bits for each k; else in the order of a tile's lines.
constexpr bool BY_ROW = PLAN.low_bits == 4 && PLAN.high_bits == 0;

// What a lane takes of a group as it lies in memory: read long before it is used, so that several groups are on their way.
constexpr u32 RAW_QUADS = FORMAT == FORMAT_BF16 ? 4 : BY_ROW ? 1 : PLAN.low_bits == 8 ? 2 : PLAN.high_bits ? 4 : 2;
constexpr u32 HEAD_WORDS = FORMAT == FORMAT_BF16 ? 0 : 2 * (1 + SECOND_WORD) + (PLAN.sub == SUB_NONE ? 0 : 2);
constexpr u32 RAW_WORDS = 4 * RAW_QUADS + HEAD_WORDS;

struct Raw {
  uint4 quads[RAW_QUADS];
  uint2 d, m;
  u32 sub[2];
};

// lines[i].{x,y,z,w}: the pair of k at 8 t + 2 i of output rows 4 g .. 4 g + 3, as two bf16.
typedef uint4 Lines[4];

// Where quad i of the lane is, in group number `index` of a panel of bf16: line 4 t + i of its rows, or, where a panel was put into
// rows of `row_bytes` (which is else 0) for a library of products, k 8 t .. 8 t + 7 of its row i.
__device__ __forceinline__ const u8* quad_at(const u8* panel, u32 row_bytes, u32 index, u32 g, u32 t, u32 i) {
  if (row_bytes) return panel + (4 * g + i) * row_bytes + 16 * t + 64 * index;
  return panel + (1024 * (g / 4) + 256 * t + 16 * (g % 4)) + (u64)index * 2048 + 64 * i;
}

// Codes of `bits` bits of the lane's rows; `plane` is that of its tile.
__device__ __forceinline__ void load_plane(const u8* plane, u32 quad, u32 t, u32 bits, uint4& first, uint4& second) {
  const u8* at = plane + 64 * (t * bits / 4) + 32 * (quad % 2);
  first = load_once(at);
  second = load_once(at + 16);
}

__device__ __forceinline__ void load_codes(const u8* group, u32 g, u32 t, Raw& raw) {
  u32 tile = g / 4, quad = g % 4;
  const u8* low = group + tile * LOW_BYTES + SUB_BYTES;
  if constexpr (BY_ROW) {
    raw.quads[0] = load_once(low + 64 * quad + 16 * t);
  } else if constexpr (PLAN.low_bits == 8) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
      const u8* at = low + 32 * (4 * t + 2 * i) + 16 * (quad / 2) + 8 * (quad % 2);
      uint2 first = load_8(at), second = load_8(at + 32);
      raw.quads[i] = make_uint4(first.x, first.y, second.x, second.y);
    }
  } else {
    load_plane(low, quad, t, PLAN.low_bits, raw.quads[0], raw.quads[1]);
    const u8* high = group + SUB_BYTES + 2 * LOW_BYTES + tile * HIGH_BYTES;
    if constexpr (PLAN.high_bits > 0) load_plane(high, quad, t, PLAN.high_bits, raw.quads[2], raw.quads[3]);
  }
}

// What lane 4 g + t takes of group number `index` of a panel.
__device__ __forceinline__ void load_group(const u8* panel, u32 row_bytes, u32 index, u32 g, u32 t, Raw& raw) {
  if constexpr (FORMAT == FORMAT_BF16) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) raw.quads[i] = load_once(quad_at(panel, row_bytes, index, g, t, i));
  } else {
    const u8* unit = panel + (u64)(index / UNIT_GROUPS) * UNIT_BYTES;
    const u8* group = unit + HEAD_BYTES + index % UNIT_GROUPS * GROUP_BYTES;
    load_codes(group, g, t, raw);
    raw.d = load_8(unit + 8 * g);
    if constexpr (SECOND_WORD) raw.m = load_8(unit + 64 + 8 * g);
    if constexpr (PLAN.sub != SUB_NONE) {
      raw.sub[0] = load_4(group + 4 * g);
      raw.sub[1] = load_4(group + 32 + 4 * g);
    }
  }
}

// (word & mask) | power in one instruction, which the compiler makes two of where both are constants.
__device__ __forceinline__ u32 masked_or(u32 word, u32 mask, u32 power) {
#ifdef BALLAST_EMULATED
  return (word & mask) | power;
#else
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(word), "r"(mask), "r"(power));
  return result;
#endif
}

// The whole number of `bits` bits that stands in a word from bit `shift` on, without a conversion: put below the power of two
// whose last place is that bit, which is then taken away.
__device__ __forceinline__ float whole_at(u32 word, u32 shift, u32 bits) {
  if (shift + bits > 23) {
    word >>= 16;
    shift -= 16;
  }
  u32 power = (150 - shift) << 23;
  return __uint_as_float(masked_or(word, ((1u << bits) - 1) << shift, power)) - __uint_as_float(power);
}

// Byte n of a word as a whole number from -128 on, without a conversion, of which a multiprocessor makes few: put below 2^23, as above.
__device__ __forceinline__ float signed_at(u32 word, u32 n) {
  return __uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440u | n)) - 8388736.0f;
}

// Bytes n and n + 1 of a word, floats of 8 bits, as those: halves whose exponent has one bit more, so that all but the sign goes
// down by one and stands for 2^-8 of it.
__device__ __forceinline__ float2 floats_at(u32 word, u32 n) {
  u32 upper = __byte_perm(word, 0, 0x0404u | n << 4 | (n + 1) << 12);
  return halves_to_floats((upper >> 1 & 0x3f803f80u) | (upper & 0x80008000u));
}

// Planes were moved so that the first of the lane's codes begins at bit 0: those of a pair of k stand in one place.
__device__ __forceinline__ void align_planes(u32 quad, u32 t, Raw& raw) {
#pragma unroll
  for (u32 i = 0; i < RAW_QUADS; i++) {
    u32 down = (8 * t + quad / 2) * (i < 2 ? PLAN.low_bits : PLAN.high_bits) % 32;
    uint4& v = raw.quads[i];
    v = make_uint4(v.x >> down, v.y >> down, v.z >> down, v.w >> down);
  }
}

// The code at k 8 t + 2 i + e of output row 4 g + r, a whole number.
__device__ __forceinline__ float code_at(const Raw& raw, u32 i, u32 r, u32 e) {
  u32 place = 2 * r + e;
  if constexpr (BY_ROW) return whole_at(component(raw.quads[0], i), 16 * e + 4 * r, 4);
  if constexpr (PLAN.low_bits == 8)
    return signed_at(component(raw.quads[i / 2], 2 * (i % 2) + r / 2), place % 4);
  u32 low = component(raw.quads[place / 4], place % 4);
  if constexpr (PLAN.high_bits == 0) return whole_at(low, 2 * i * PLAN.low_bits, PLAN.low_bits);
  u32 high = component(raw.quads[(2 + place / 4) % RAW_QUADS], place % 4);
  u32 code = low >> (2 * i * PLAN.low_bits) & ((1u << PLAN.low_bits) - 1);
  code |= (high >> (2 * i * PLAN.high_bits) & ((1u << PLAN.high_bits) - 1)) << PLAN.low_bits;
  return whole_at(code, 0, PLAN.low_bits + PLAN.high_bits);
}

// Those at k 8 t + 2 i and 8 t + 2 i + 1.
__device__ __forceinline__ float2 codes_at(const Raw& raw, u32 i, u32 r) {
  if constexpr (PLAN.floats) return floats_at(component(raw.quads[i / 2], 2 * (i % 2) + r / 2), 2 * (r % 2));
  return make_float2(code_at(raw, i, r, 0), code_at(raw, i, r, 1));
}

__device__ __forceinline__ float scale_word(u32 bits) {
  return PLAN.bf16_scales ? widen(bits) : half_to_float(bits);
}

__device__ __forceinline__ u32 word_of(const uint2& v, u32 r) { return (r < 2 ? v.x : v.y) >> (16 * (r % 2)) & 0xffffu; }

// Scale and min of the lane's four rows: value = scale * code + min.
__device__ __forceinline__ void scales_of(const Raw& raw, u32 t, float (&scale)[4], float (&min_)[4]) {
#pragma unroll
  for (u32 r = 0; r < 4; r++) {
    float df = scale_word(word_of(raw.d, r)), mf = 0.0f;
    if constexpr (PLAN.has_min) mf = scale_word(word_of(raw.m, r));
    if constexpr (PLAN.floats) df = __uint_as_float(__float_as_uint(df) | word_of(raw.m, r));
    u32 first = 0, second = 0, mine = 0;
    if constexpr (PLAN.sub != SUB_NONE) {
      first = raw.sub[0] >> (8 * r) & 255u, second = raw.sub[1] >> (8 * r) & 255u, mine = t / 2 ? second : first;
    }
    if constexpr (PLAN.sub == SUB_SCALE_MIN) { df *= (float)first; mf = -(mf * (float)second); }
    if constexpr (PLAN.sub == SUB_NIBBLES) { df *= (float)(mine & 15u); mf = -(mf * (float)(mine >> 4)); }
    if constexpr (PLAN.sub == SUB_SIGNED) df *= (float)(signed char)mine;
    scale[r] = df;
    min_[r] = PLAN.offset ? -(df * (float)PLAN.offset) : mf;
  }
}

// Quads of bf16 as they lie: a pair of k of each of four rows, or four pairs of k of a row.
__device__ __forceinline__ void lines_of(const uint4* quads, u32 row_bytes, Lines& lines) {
#pragma unroll
  for (u32 i = 0; i < 4; i++)
    lines[i] = row_bytes ? make_uint4(component(quads[0], i), component(quads[1], i), component(quads[2], i), component(quads[3], i))
                         : quads[i];
}

// Whether the device multiplies bf16 in pairs.
#if defined(BALLAST_EMULATED) || __CUDA_ARCH__ >= 800
constexpr bool HAS_PAIRS = true;
#else
constexpr bool HAS_PAIRS = false;
#endif

// x y + z of two bf16 each, rounded once.
__device__ __forceinline__ u32 fma_pairs(u32 x, u32 y, u32 z) {
#if !defined(BALLAST_EMULATED) && __CUDA_ARCH__ >= 800
  u32 result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
  return result;
#else
  return narrow_pair(fmaf(widen_half(x, 0), widen_half(y, 0), widen_half(z, 0)), fmaf(widen_half(x, 1), widen_half(y, 1), widen_half(z, 1)));
#endif
}

__device__ __forceinline__ u32 twice(u32 bits) { return __byte_perm(bits, 0, 0x1010); }

// Codes of 4 bits whose scales and minima are bf16: a pair of k at a time, as 128 and the code, which a bf16 holds.
__device__ __forceinline__ void pairs_of(const Raw& raw, Lines& lines) {
  u32 scale[4], min_[4];
#pragma unroll
  for (u32 r = 0; r < 4; r++) scale[r] = twice(word_of(raw.d, r)), min_[r] = twice(word_of(raw.m, r));
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 w[4], word = component(raw.quads[0], i);
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
      u32 code = fma_pairs(masked_or(word >> 4 * r, 0x000f000fu, 0x43004300u), 0x3f803f80u, 0xc300c300u);
      w[r] = fma_pairs(code, scale[r], min_[r]);
    }
    lines[i] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

__device__ __forceinline__ void lines_of(Raw& raw, u32 row_bytes, u32 g, u32 t, Lines& lines) {
  if constexpr (FORMAT == FORMAT_BF16) {
    lines_of(raw.quads, row_bytes, lines);
  } else if constexpr (HAS_PAIRS && BY_ROW && PLAN.bf16_scales && PLAN.has_min) {
    pairs_of(raw, lines);
  } else {
    float scale[4], min_[4];
    scales_of(raw, t, scale, min_);
    if constexpr (!BY_ROW && PLAN.low_bits != 8) align_planes(g % 4, t, raw);
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 w[4];
#pragma unroll
      for (u32 r = 0; r < 4; r++) {
        float2 codes = codes_at(raw, i, r);
        w[r] = narrow_pair(fmaf(scale[r], codes.x, min_[r]), fmaf(scale[r], codes.y, min_[r]));
      }
      lines[i] = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

// What lane 4 g + t takes of group number `index` of a panel, as bf16.
__device__ __forceinline__ void read_lines(const u8* panel, u32 row_bytes, u32 index, u32 g, u32 t, Lines& lines) {
  Raw raw;
  load_group(panel, row_bytes, index, g, t, raw);
  lines_of(raw, row_bytes, g, t, lines);
}

#endif
