#define OF_LANE (DIM / 32 + 1)

// f32 pages: one warp takes a query in one head; plain arithmetic.
KERNEL(attend_floats, AttendArgs, 128) {
  __shared__ float queries[4][DIM];
  u32 lane = threadIdx.x % 32, head = blockIdx.y * 4 + threadIdx.x / 32;
  const SpanData span = a.spans[a.work[blockIdx.x].x];
  u32 i = a.work[blockIdx.x].y, position = span.start + i;
  if (head >= a.heads) return;
  u64 at = ((u64)(span.row + i) * a.heads + head) * DIM;
  float* q = queries[threadIdx.x / 32];
  for (u32 j = lane; j < DIM; j += 32) q[j] = ((const float*)a.q)[at + j];
  __syncwarp();
  u32 first = a.window && position + 1 > a.window ? position + 1 - a.window : 0;
  float o[OF_LANE] = {}, most = NO_SCORE, sum = 0.0f;
  for (u32 page = first / 32; page <= position / 32; page++) {
    const float* k = (const float*)a.pages + ((u64)a.tables[span.table + page] * a.kv_heads + head / (a.heads / a.kv_heads)) * 64 * DIM;
    const float* v = k + 32 * DIM;
    u32 token = page * 32 + lane;
    float score = NO_SCORE;
    if (token >= first && token <= position) {
      score = 0.0f;
      for (u32 j = 0; j < DIM; j++) score = fmaf(q[j], k[lane * DIM + j], score);
      score *= a.scale;
    }
    float larger = fmaxf(most, warp_max(score)), fade = exp2f(most - larger), p = exp2f(score - larger);
    most = larger;
    sum = sum * fade + warp_sum(p);
    for (u32 j = 0; j < OF_LANE; j++) o[j] *= fade;
    for (u32 n = 0; n < 32; n++) {
      float weight = __shfl_sync(ALL_LANES, p, n);
      if (weight == 0.0f) continue;
      for (u32 j = lane; j < DIM; j += 32) o[j / 32] = fmaf(weight, v[j * 32 + n], o[j / 32]);
    }
  }
  for (u32 j = lane; j < DIM; j += 32) {
    float y = o[j / 32] / sum;
    if (a.out_bf16) ((u16*)a.out)[at + j] = (u16)narrow(y);
    else ((float*)a.out)[at + j] = y;
  }
}
