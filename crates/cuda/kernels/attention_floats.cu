// All keys that a query sees: a warp each.
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
  FloatRow r;
  begin(r);
  for (u32 page = first / 32; page <= position / 32; page++) {
    const float* k = block_at(a, a.tables[span.table + page], head / (a.heads / a.kv_heads));
    u32 token = page * 32 + lane;
    float score = NO_SCORE;
    if (token >= first && token <= position) {
      score = 0.0f;
      for (u32 j = 0; j < DIM; j++) score = fmaf(q[j], k[lane * DIM + j], score);
      score = capped(a, score * a.scale);
    }
    add_scored(k + 32 * DIM, score, r);
  }
  put_row(a, at, r);
}
