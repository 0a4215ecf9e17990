// Scores and values of a tile in f32: as in attention_floats_row.cu.

// What a block's warps share.
struct SparseRoom {
  float queries[16][DIM];
};

// A warp takes every eighth page, a lane a token.
__device__ void score_tile(const SparseArgs& a, const Tile& tile, SparseRoom& room) {
  u32 lane = threadIdx.x % 32;
  for (u32 i = threadIdx.x; i < 16 * DIM; i += SPARSE_THREADS)
    room.queries[i / DIM][i % DIM] = i / DIM < tile.rows ? ((const float*)a.attend.q)[place_of(a, tile, i / DIM) + i % DIM] : 0.0f;
  __syncthreads();
  for (u32 page = tile.from + threadIdx.x / 32; page <= tile.to; page += SPARSE_WARPS) {
    const float* k = block_at(a.attend, block_of(a, tile, page), tile.kv_head) + lane * DIM;
    float s[16] = {};
    for (u32 j = 0; j < DIM; j++) {
      float key = k[j];
#pragma unroll
      for (u32 row = 0; row < 16; row++) s[row] = fmaf(room.queries[row][j], key, s[row]);
    }
#pragma unroll
    for (u32 row = 0; row < 16; row++)
      if (row < tile.rows) tile.scores[(u64)row * 32 * a.pages + 32 * page + lane] = s[row];
  }
}

// A warp takes every eighth pair.
__device__ void attend_tile(const SparseArgs& a, const Tile& tile, SparseRoom&) {
  u32 lane = threadIdx.x % 32;
  for (u32 row = threadIdx.x / 32; row < tile.rows; row += SPARSE_WARPS) {
    FloatRow r;
    begin(r);
    for (u32 page = tile.from; page <= tile.to; page++) {
      u32 bits = tile.chosen[row * a.pages + page];
      if (bits == 0) continue;
      float score = tile.scores[(u64)row * 32 * a.pages + 32 * page + lane];
      const float* v = block_at(a.attend, block_of(a, tile, page), tile.kv_head) + 32 * DIM;
      add_scored(v, bits >> lane & 1 ? capped(a.attend, score * a.attend.scale) : NO_SCORE, r);
    }
    put_row(a.attend, place_of(a, tile, row), r);
  }
}
