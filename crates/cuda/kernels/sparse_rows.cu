// Scores and values of a tile whose queries are bf16: as in attention.cu.

// What a block's warps share.
struct SparseRoom {
  Merging<SPARSE_WARPS> merging;
};

// Tokens at which lane 4 g + t has its scores `j` are those from 8 t + 2 j on, of rows g and g + 8.
__device__ __forceinline__ float2* scores_at(const SparseArgs& a, const Tile& tile, u32 row, u32 page, u32 j) {
  return (float2*)(tile.scores + (u64)row * 32 * a.pages + 32 * page + 8 * (threadIdx.x % 4) + 2 * j);
}

// A warp takes every eighth page.
__device__ void score_tile(const SparseArgs& a, const Tile& tile, SparseRoom&) {
  u32 g = threadIdx.x % 32 / 4;
  Rows16 none;
  Queries q;
  begin(a.attend, tile.span, tile.kv_head, tile.first_row, q, none);
  InRegisters queries = {q};
  for (u32 page = tile.from + threadIdx.x / 32; page <= tile.to; page += SPARSE_WARPS) {
    float s[1][4][4];
    score<false>(block_at(a.attend, block_of(a, tile, page), tile.kv_head), queries, s);
#pragma unroll
    for (u32 h = 0; h < 2; h++)
      if (g + 8 * h < tile.rows)
#pragma unroll
        for (u32 j = 0; j < 4; j++) *scores_at(a, tile, g + 8 * h, page, j) = make_float2(s[0][j][2 * h], s[0][j][2 * h + 1]);
  }
}

// The scores of a page's tokens that count.
__device__ __forceinline__ void chosen_scores(const SparseArgs& a, const Tile& tile, u32 page, float (&s)[1][4][4]) {
  u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (u32 h = 0; h < 2; h++) {
    u32 row = g + 8 * h, bits = row < tile.rows ? tile.chosen[row * a.pages + page] : 0;
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      u32 mine = bits >> (8 * t + 2 * j) & 3;
      float2 both = mine ? *scores_at(a, tile, row, page, j) : make_float2(NO_SCORE, NO_SCORE);
      s[0][j][2 * h] = mine & 1 ? both.x : NO_SCORE;
      s[0][j][2 * h + 1] = mine & 2 ? both.y : NO_SCORE;
    }
  }
}

// A warp takes every eighth page of the sequence; what the warps found is merged in their order.
__device__ void attend_tile(const SparseArgs& a, const Tile& tile, SparseRoom& room) {
  Rows16 all[1];
  Queries q;
  begin(a.attend, tile.span, tile.kv_head, tile.first_row, q, all[0]);
  u32 tokens = tile.span.start + tile.span.rows, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (u32 page = tile.from / SPARSE_WARPS * SPARSE_WARPS + warp; page <= tile.to; page += SPARSE_WARPS) {
    if (page < tile.from || !is_read(a, tile, page)) continue;
    float s[1][4][4];
    chosen_scores(a, tile, page, s);
    const Cell* v = block_at(a.attend, block_of(a, tile, page), tile.kv_head) + PLANE;
    if (32 * page + 32 > tokens) add_scored<true>(a.attend, v, 32 * page, tokens, s, all);
    else add_scored<false>(a.attend, v, 32 * page, tokens, s, all);
  }
  end(all[0]);
  merge_warps(all[0], tile.rows, room.merging);
  for (u32 row = warp; row < tile.rows; row += SPARSE_WARPS) {
    float share = 1.0f / room.merging.sums[row];
    u64 at = place_of(a, tile, row);
    for (u32 d = lane; d < DIM; d += 32) {
      float y = room.merging.means[row][d] * share;
      if (a.attend.out_bf16) ((u16*)a.attend.out)[at + d] = (u16)narrow(y);
      else ((float*)a.attend.out)[at + d] = y;
    }
  }
}
