// All pairs of a tile are scored, and choose.
__device__ __forceinline__ void choose_tile(const SparseArgs& a, const Tile& tile, SparseRoom& room, u32 (&counts)[SPARSE_WARPS][256]) {
  score_tile(a, tile, room);
  __syncthreads();
  u32 warp = threadIdx.x / 32;
  for (u32 row = warp; row < tile.rows; row += SPARSE_WARPS) choose_row(a, tile, row, counts[warp]);
  __syncthreads();
}

KERNEL(attend_chosen, SparseArgs, SPARSE_THREADS) {
  __shared__ __align__(16) SparseRoom room;
  __shared__ u32 counts[SPARSE_WARPS][256];
  for (u32 item = blockIdx.x; item < a.pieces * a.attend.kv_heads; item += gridDim.x) {
    Tile tile = tile_of(a, item);
    choose_tile(a, tile, room, counts);
    attend_tile(a, tile, room);
    __syncthreads();
  }
}

// Which values attend_chosen would read: of each page the tokens that some pair of the tile chose.
KERNEL_BLOCKS(choose_keys, SparseArgs, SPARSE_THREADS, 1) {
  __shared__ __align__(16) SparseRoom room;
  __shared__ u32 counts[SPARSE_WARPS][256];
  for (u32 item = blockIdx.x; item < a.pieces * a.attend.kv_heads; item += gridDim.x) {
    Tile tile = tile_of(a, item);
    choose_tile(a, tile, room, counts);
    for (u32 page = threadIdx.x; page < a.pages; page += SPARSE_THREADS) {
      u32 bits = 0;
      for (u32 row = 0; row < tile.rows && page >= tile.from && page <= tile.to; row++) bits |= tile.chosen[row * a.pages + page];
      a.chosen[(u64)item * a.pages + page] = bits;
    }
    __syncthreads();
  }
}
