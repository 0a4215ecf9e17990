// Kernels over whole rows: norms, gathers, conversions. One block a row.

struct NormArgs {
  const float* x;
  const float* weight;  // null: ones
  const float* bias;    // null: zeros
  void* out;
  u32 cols;
  float eps;
  u32 layer;    // layer norm, else RMS
  u32 to_bf16;
};

__device__ __forceinline__ float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (u32 i = 0; i < blockDim.x / 32; i++) sum += partial[i];
  __syncthreads();
  return sum;
}

KERNEL(norm_rows, NormArgs, 256) {
  __shared__ float partial[8];
  const float* x = a.x + (u64)blockIdx.x * a.cols;
  u64 first = (u64)blockIdx.x * a.cols;
  float mean = 0.0f;
  if (a.layer) {
    float sum = 0.0f;
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) sum += x[i];
    mean = block_sum(sum, partial) / (float)a.cols;
  }
  float squares = 0.0f;
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) squares += (x[i] - mean) * (x[i] - mean);
  float scale = 1.0f / sqrtf(block_sum(squares, partial) / (float)a.cols + a.eps);
  for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
    float y = (x[i] - mean) * scale;
    if (a.weight) y *= a.weight[i];
    if (a.bias) y += a.bias[i];
    if (a.to_bf16) ((u16*)a.out)[first + i] = (u16)narrow(y);
    else ((float*)a.out)[first + i] = y;
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
  const u32* positions; // [rows], from the tables' first
  const u32* slots;     // [rows] block * 32 + token; all ones: a row of no sequence
  void* q;
  void* pages;
  u32 heads, kv_heads, head_dim, rotary_dim;
  float eps;
  u32 q_bf16, kv_bf16;
};

__device__ __forceinline__ void put(void* to, u64 at, float x, u32 bf16) {
  if (bf16) ((u16*)to)[at] = (u16)narrow(x);
  else ((float*)to)[at] = x;
}

// One warp takes one head of one row: queries, then keys, then values.
KERNEL(store_kv, StoreKvArgs, 128) {
  __shared__ float buffer[4][256];
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
    u64 at = (u64)a.positions[row] * half;
    for (u32 i = lane; i < half; i += 32) {
      float low = x[i], high = x[half + i], c = a.cos[at + i], s = a.sin[at + i];
      x[i] = low * c - high * s;
      x[half + i] = high * c + low * s;
    }
    __syncwarp();
  }
  if (is_q) {
    for (u32 i = lane; i < d; i += 32) put(a.q, ((u64)row * a.heads + head) * d + i, x[i], a.q_bf16);
    return;
  }
  u32 kv_head = (head - a.heads) % a.kv_heads, token = a.slots[row] % 32;
  u64 k = ((u64)(a.slots[row] / 32) * a.kv_heads + kv_head) * 2 * 32 * d;
  for (u32 i = lane; i < d; i += 32) {
    u64 at = is_v ? k + 32 * d + 32 * i + token : k + token * d + i;
    put(a.pages, at, x[i], a.kv_bf16);
  }
}
