// Many rows on devices of compute capability 9.0, of pages of 16 bits with heads of 64 or 128: as `attend_many` elsewhere, by
// products of warpgroups. (FlashAttention-3, "3.2 Intra-warpgroup overlapping GEMMs and softmax".)
//
// A block has two warpgroups of 64 (query, head) pairs each, and takes steps of 128 tokens, counted from the sequence's beginning.
// The scores of a step and the sums of the one before are asked for together; while these are summed, those become weights:
//
//   tensor cores   S 0        | S 1 | P 0 V 0 | S 2 | P 1 V 1 | ...
//   weights             0     |     |    1    |     |    2    |
//
// and two warpgroups fill each other's gaps. What of a step is not the sequence's, or before what its rows see, is zero in shared
// memory: a weight of zero would not take NaN away.
//
// Where the time of a step goes on an H200: bench/results/2026-11-26-h200.md.

#define THREADS 256

// A block's memory; Module::block_bytes knows its size. One step is computed, of the one before values are, the next is on its way.
struct Prefill {
  Cell q[SLABS][BLOCK_ROWS][64];
  Step steps[RING];
};

// Brings one page of a step: 64 threads do.
template <bool WHOLE>
__device__ __forceinline__ void bring_page(const Cell* from, u32 written, u32 page, u32 thread, Step& to) {
  bring_keys_of<64, WHOLE>(from, written, page, thread, to);
  bring_values_of<64, WHOLE>(from, written, page, thread, to);
}

KERNEL_BLOCKS(attend_many, AttendArgs, THREADS, 1) {
  Prefill& shared = block_memory<Prefill>();
  const Tile tile(a, blockIdx.x, blockIdx.y);
  const u32 from = tile.from, to = tile.to;
  u32 page_of_step = threadIdx.x / 64;
  auto block_of = [&](u32 step) { return tile.block_of(a, step, page_of_step); };
  auto ask = [&](u32 step, u32 block, Step& place) {
    u32 written = tile.written(step, page_of_step);
    const Cell* at = block_at(a, block, tile.kv_head);
    if (step <= to && written == 32) bring_page<true>(at, written, page_of_step, threadIdx.x % 64, place);
    else if (step <= to) bring_page<false>(at, written, page_of_step, threadIdx.x % 64, place);
    copies_commit();
  };
  ask(from, block_of(from), shared.steps[0]);
  u32 next = block_of(from + 1);
  put_queries<THREADS>(a, tile, shared.q);
  // The same for all of a warp, which the compiler does not see.
  u32 warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);
  u32 row = tile.first_row + 16 * (threadIdx.x / 32), queries = shared_address(&shared.q[0][64 * warpgroup]);
  Rows16 r;
  begin_sums(tile.span, tile.group, row, r);
  float s[STEP / 8][4], fade[2];
  u32 p[STEP / 16][4];
  u32 place = 0, before = 0;
  // A step is there, and nobody reads the one before the last any more.
  auto arrive = [&] {
    copies_wait<0>();
    fence_shared();
    __syncthreads();
    wgmma_begin();
  };
  auto ask_next = [&](u32 step) {
    ask(step, next, shared.steps[place + 1 == RING ? 0 : place + 1]);
    next = block_of(step + 1);
  };
  // Whether this step is an edge is asked before its products begin: where paths meet while they are under way, the compiler waits
  // for all of them.
  auto advance = [&](u32 step, bool edge) {
    before = place;
    place = place + 1 == RING ? 0 : place + 1;
    arrive();
    ask_scores(queries, shared_address(&shared.steps[place]), s);
    ask_sums(p, shared_address(&shared.steps[before]), r);
    ask_next(step + 1);
    wgmma_wait<1>(s);
    if (edge) hide<2, 8>(s, STEP * step, a, r);
    bool moved = __ballot_sync(ALL_LANES, weigh(s, a, r, fade));
    if (!are_made(r)) return;
    // Outside of what only some warps do: a warpgroup waits as one.
    wgmma_wait<0>(r.o);
    if (moved) dim_rows(fade, r);
    to_weights(s, p);
  };
  arrive();
  ask_scores(queries, shared_address(&shared.steps[0]), s);
  ask_next(from + 1);
  wgmma_wait<0>(s);
  if (tile.is_edge(from)) hide<2, 8>(s, STEP * from, a, r);
  weigh(s, a, r, fade);
  to_weights(s, p);
  for (u32 step = from + 1; step <= to; step++) {
    if (tile.is_edge(step)) advance(step, true);
    else advance(step, false);
  }
  wgmma_begin();
  ask_sums(p, shared_address(&shared.steps[place]), r);
  wgmma_wait<0>(r.o);
  end(r);
  put_rows(a, tile, row, r);
}
