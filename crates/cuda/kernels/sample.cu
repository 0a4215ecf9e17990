// A token for each row of logits, as the CPU's sampler takes it: the same operations in the same order, without fused
// ones, so that seed and logits decide and not the device. One block a row.
//
// Truncation keeps the largest of (scaled logit, lowest id) down to a cutoff, which is found digit by digit from the
// highest: of every digit's value the count, or the mass, is added up. Masses are added as integers, so that the order in
// which threads come does not matter.

#define THREADS 512
// Ids whose masses are added up together: where nothing is truncated, and among candidates.
#define ROW_BLOCK 1024
#define GROUP 64
#define GROUPS_MAX 4352
#define MASS_ONE 35184372088832.0f  // 2^45

#define NOT_FINITE 0xffffffffu
#define NOTHING_ALLOWED 0xfffffffeu

#define EDIT_MASK 0
#define EDIT_ADD 1
#define EDIT_REPEATED 2
#define EDIT_COUNTED 3

struct TokenRow {
  double u;      // uniform in [0, 1)
  u32 row;       // of the logits
  u32 greedy;
  float scale;   // of the logits: the temperature's inverse
  float floor;   // of scaled logits below the largest: min-p's logarithm
  float top_p;   // 1: off
  u32 top_k;     // 0: off
  u32 first_edit, edits;
  float repetition, frequency, presence;
  u32 unused;
};

struct Edit {
  u32 id;  // those of one id follow one another, in order
  u32 kind;
  float value;
};

struct TokenArgs {
  float* logits;  // [_, vocab], edited in place
  const TokenRow* rows;
  const Edit* edits;
  u32* out;       // [rows]
  u32 vocab;
};

struct Shared {
  double masses[GROUPS_MAX];
  u64 sums[256];
  float values[ROW_BLOCK];
  float partial[THREADS / 32];
  u32 bad, best, key, inverse, stop, found;
  double left;
};

// Which tokens count: those at or above a cutoff of keys and, where keys are equal, of ids turned round.
struct Cut {
  const float* row;
  u32 n;
  float max, scale, floor;
  u32 key, inverse;
};

// As `row::exp` of the sampler.
__device__ __forceinline__ float sample_exp(float x) {
  const float round = 12582912.0f;
  float clamped = x > -87.0f ? x : -87.0f;
  float shifted = clamped * 1.44269504f + round;
  float n = shifted - round;
  float r = (clamped - n * 0.6933594f) - n * -2.1219444e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 0.16666665f;
  p = p * r + 0.5f;
  float e = p * r * r + r + 1.0f;
  float power = __uint_as_float((__float_as_uint(shifted) - __float_as_uint(round) + 127u) << 23);
  return x > -87.0f ? e * power : 0.0f;
}

// Larger for larger numbers.
__device__ __forceinline__ u32 ordered(float x) {
  u32 bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float scaled(const Cut& c, u32 id) { return (c.row[id] - c.max) * c.scale; }

__device__ __forceinline__ bool admits(const Cut& c, u32 id, float x) {
  u32 key = ordered(x);
  return x >= c.floor && x > NO_SCORE && (key > c.key || (key == c.key && ~id >= c.inverse));
}

// The largest of a row and the first of its equals. False, and the answer, if there is none.
__device__ bool largest(const float* row, u32 n, Shared& s, float& max_, u32& answer) {
  if (threadIdx.x == 0) {
    s.bad = 0;
    s.best = n;
  }
  float most = NO_SCORE;
  bool bad = false;
  for (u32 i = threadIdx.x; i < n; i += THREADS) {
    float x = row[i];
    bad |= x != x || x == -NO_SCORE;
    most = x > most ? x : most;
  }
  most = warp_max(most);
  __syncthreads();
  if (bad) s.bad = 1;
  if (threadIdx.x % 32 == 0) s.partial[threadIdx.x / 32] = most;
  __syncthreads();
  for (u32 i = 0; i < THREADS / 32; i++) most = s.partial[i] > most ? s.partial[i] : most;
  for (u32 i = threadIdx.x; i < n; i += THREADS)
    if (row[i] == most) {
      atomicMin(&s.best, i);
      break;
    }
  __syncthreads();
  max_ = most;
  bool sound = !s.bad && most > NO_SCORE;
  answer = s.bad ? NOT_FINITE : sound ? s.best : NOTHING_ALLOWED;
  __syncthreads();
  return sound;
}

// What a repetition makes of a logit. A finite one stays so, however near to zero the penalty is.
__device__ float repeated(float x, float penalty) {
  const float most = 3.402823466e38f;
  float changed = x > 0.0f ? x / penalty : x * penalty;
  bool is_finite = x >= -most && x <= most;
  return !is_finite ? changed : changed > most ? most : changed < -most ? -most : changed;
}

// Applies what changes single logits. The thread that comes to the first edit of an id does all of them.
__device__ void edit(const TokenArgs& a, const TokenRow& r, float* row) {
  const Edit* edits = a.edits + r.first_edit;
  for (u32 i = threadIdx.x; i < r.edits; i += THREADS) {
    u32 id = edits[i].id;
    if (id >= a.vocab || (i > 0 && edits[i - 1].id == id)) continue;
    float x = row[id];
    for (u32 j = i; j < r.edits && edits[j].id == id; j++) {
      float value = edits[j].value;
      if (edits[j].kind == EDIT_MASK) x = NO_SCORE;
      if (edits[j].kind == EDIT_ADD) x = x + value;
      if (edits[j].kind == EDIT_REPEATED) x = repeated(x, r.repetition);
      if (edits[j].kind == EDIT_COUNTED) x = x - r.frequency * value - r.presence;
    }
    row[id] = x;
  }
  __syncthreads();
}

// Finds the group in which the mass passes u, among those that thread 0 reads from `masses`. `left` is what remains.
__device__ u32 group_of(Shared& s, u32 groups, double u) {
  if (threadIdx.x == 0) {
    double total = 0.0;
    for (u32 g = 0; g < groups; g++) total += s.masses[g];
    double left = u * total;
    u32 g = 0;
    for (; g < groups && left >= s.masses[g]; g++) left -= s.masses[g];
    s.found = g;
    s.left = left;
  }
  __syncthreads();
  return s.found;
}

// Nothing is truncated: a warp adds up a block of the row, sixteen lanes of it side by side.
__device__ void draw_from_row(const Cut& c, Shared& s, double u, u32 best, u32* out) {
  u32 blocks = (c.n + ROW_BLOCK - 1) / ROW_BLOCK, lane = threadIdx.x % 32;
  for (u32 b = threadIdx.x / 32; b < blocks; b += THREADS / 32) {
    float sum = 0.0f;
    for (u32 i = lane; lane < 16 && i < ROW_BLOCK && b * ROW_BLOCK + i < c.n; i += 16)
      sum += sample_exp(scaled(c, b * ROW_BLOCK + i));
    double mass = 0.0;
    for (u32 i = 0; i < 16; i++) mass += (double)__shfl_sync(ALL_LANES, sum, i);
    if (lane == 0) s.masses[b] = mass;
  }
  __syncthreads();
  u32 found = group_of(s, blocks, u), first = found * ROW_BLOCK, count = 0;
  if (found < blocks) {
    count = min((u32)ROW_BLOCK, c.n - first);
    for (u32 i = threadIdx.x; i < count; i += THREADS) s.values[i] = sample_exp(scaled(c, first + i));
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  u32 last = best;
  double left = s.left;
  for (u32 i = 0; i < count; i++) {
    double p = (double)s.values[i];
    if (!(p > 0.0)) continue;
    last = first + i;
    if (left < p) break;
    left -= p;
  }
  *out = last;
}

__device__ __forceinline__ u64 measure_of(float x, bool by_mass) {
  return by_mass ? (u64)(sample_exp(x) * MASS_ONE) : 1;
}

// Adds what each lane brings to the sum that it names. Lanes that name the same one as the first of them are added up before,
// three times over: additions of 64 bits to one place of shared memory wait for each other, and often most ids name a few.
__device__ void add_to_sums(u64* sums, u32 name, u64 value, bool counts) {
  u32 left = __ballot_sync(ALL_LANES, counts);
  for (u32 round = 0; round < 3 && left != 0; round++) {
    u32 leader = __ffs(left) - 1, its = __shfl_sync(ALL_LANES, name, leader);
    bool mine = counts && name == its;
    u64 sum = mine ? value : 0;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (threadIdx.x % 32 == leader) atomicAdd(&sums[its], sum);
    left &= ~__ballot_sync(ALL_LANES, mine);
  }
  if (left >> threadIdx.x % 32 & 1u) atomicAdd(&sums[name], value);
}

// Raises the cutoff so far that no more is kept than it takes to reach `wanted`: a count, or a share of the mass.
__device__ void narrow_down(Cut& c, Shared& s, double wanted, bool by_mass) {
  u32 key = 0, inverse = 0, key_mask = 0, inverse_mask = 0;
  double above = 0.0;
  for (u32 digit = 0; digit < 8; digit++) {
    bool in_key = digit < 4;
    u32 shift = 24 - 8 * (digit % 4);
    for (u32 i = threadIdx.x; i < 256; i += THREADS) s.sums[i] = 0;
    __syncthreads();
    for (u32 first = 0; first < c.n; first += THREADS) {
      u32 id = first + threadIdx.x;
      float x = id < c.n ? scaled(c, id) : NO_SCORE;
      u32 mine = ordered(x);
      bool counts = id < c.n && admits(c, id, x) && (mine & key_mask) == key && (~id & inverse_mask) == inverse;
      add_to_sums(s.sums, (in_key ? mine : ~id) >> shift & 255u, counts ? measure_of(x, by_mass) : 0, counts);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      if (digit == 0 && by_mass) {
        u64 total = 0;
        for (u32 i = 0; i < 256; i++) total += s.sums[i];
        wanted *= (double)total;
      }
      s.stop = 256;
      for (u32 i = 256; i-- > 0;) {
        if (above + (double)s.sums[i] >= wanted) {
          s.stop = i;
          break;
        }
        above += (double)s.sums[i];
      }
    }
    __syncthreads();
    // There is no more than is wanted: everything stays.
    if (s.stop == 256) return;
    (in_key ? key : inverse) |= s.stop << shift;
    (in_key ? key_mask : inverse_mask) |= 255u << shift;
  }
  c.key = key;
  c.inverse = inverse;
}

__device__ void draw_from_candidates(const Cut& c, Shared& s, double u, u32 best, u32* out) {
  u32 groups = (c.n + GROUP - 1) / GROUP;
  for (u32 g = threadIdx.x; g < groups; g += THREADS) {
    double mass = 0.0;
    for (u32 id = g * GROUP; id < min((g + 1) * GROUP, c.n); id++) {
      float x = scaled(c, id);
      if (admits(c, id, x)) mass += (double)sample_exp(x);
    }
    s.masses[g] = mass;
  }
  __syncthreads();
  u32 found = group_of(s, groups, u);
  if (threadIdx.x > 0) return;
  // Of all, should rounding lead beyond the last.
  u32 first = found < groups ? found * GROUP : 0, end = found < groups ? min(first + GROUP, c.n) : c.n;
  u32 last = best;
  double left = found < groups ? s.left : 2.0 * (double)c.n;
  for (u32 id = first; id < end; id++) {
    float x = scaled(c, id);
    if (!admits(c, id, x)) continue;
    double p = (double)sample_exp(x);
    last = id;
    if (left < p) break;
    left -= p;
  }
  *out = last;
}

KERNEL(pick_tokens, TokenArgs, THREADS) {
  __shared__ Shared s;
  const TokenRow& r = a.rows[blockIdx.x];
  float* row = a.logits + (u64)r.row * a.vocab;
  u32* out = a.out + blockIdx.x;
  float max_;
  u32 best;
  // A masked logit may have hidden damage: what the model computed is looked at first.
  bool sound = largest(row, a.vocab, s, max_, best);
  if (sound && r.edits > 0) {
    edit(a, r, row);
    sound = largest(row, a.vocab, s, max_, best);
  }
  if (!sound || r.greedy) {
    if (threadIdx.x == 0) *out = best;
    return;
  }
  Cut c = {row, a.vocab, max_, r.scale, r.floor, 0, 0};
  bool by_count = r.top_k > 0 && r.top_k < a.vocab;
  if (!by_count && r.top_k == 0 && r.top_p == 1.0f && r.floor == NO_SCORE) return draw_from_row(c, s, r.u, best, out);
  if (by_count) narrow_down(c, s, (double)r.top_k, false);
  if (r.top_p < 1.0f) narrow_down(c, s, (double)r.top_p, true);
  draw_from_candidates(c, s, r.u, best, out);
}
