// As attention_warpgroups.cu, without a barrier that holds both warpgroups to the same place: one softens its scores while the other
// has the tensor cores. (FlashAttention-3, "3.1 Producer-Consumer asynchrony through warp-specialization and pingpong scheduling".)
//
// The first warpgroup brings keys, the second values, each of them some time before anybody needs them; gates say what is there and
// what nobody reads any more:
//
//   step u, first warpgroup    keys of u + 1 are there | scores of u, sums of u - 1 | ask for keys of u + 2 | weights of u
//   step u, second             values of u are there   | scores of u, sums of u - 1 | ask for values of u + 1 | weights of u
//
// A warpgroup may be a step behind or ahead. Neither waits for what waits for it: what a step reads was asked for two steps before by
// the first, and one by the second, and a place is asked for whose last reader was a step before that.
//
// No GPU has run it: BALLAST_CUDA_PREFILL=turns does.

// A block's memory; Module::block_bytes knows its size. Of gates the first is of keys, the second of values.
struct Turns {
  Cell q[SLABS][BLOCK_ROWS][64];
  Step steps[RING];
  Gate there[2][RING], unread[2][RING];
};

// A place of the ring, and how often it has come round, odd or even.
struct Turn {
  u32 place, parity;
  __device__ __forceinline__ void next() {
    bool round = place + 1 == RING;
    place = round ? 0 : place + 1;
    parity ^= round;
  }
};

KERNEL_BLOCKS(attend_many, AttendArgs, THREADS, 1) {
  Turns& shared = block_memory<Turns>();
  const Tile tile(a);
  const u32 from = tile.from, to = tile.to;
  // The same for all of a warp, which the compiler does not see.
  u32 warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0), warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
  u32 lane = threadIdx.x % 32, page_of_step = warp % STEP_PAGES;
  // How many steps ahead this warpgroup brings what it brings.
  u32 ahead = 2 - warpgroup;
  if (threadIdx.x == 0)
#pragma unroll
    for (u32 i = 0; i < 2 * RING; i++) {
      gate_make(shared.there[i / RING][i % RING], THREADS / 2);
      gate_make(shared.unread[i / RING][i % RING], THREADS);
    }
  auto block_of = [&](u32 step) { return tile.block_of(a, step, page_of_step); };
  auto ask = [&](u32 step, u32 block, Step& place) {
    u32 written = tile.written(step, page_of_step);
    const Cell* at = block_at(a, block, tile.kv_head);
    if (warpgroup == 0) {
      if (written == 32) bring_keys_of<32, true>(at, written, page_of_step, lane, place);
      else bring_keys_of<32, false>(at, written, page_of_step, lane, place);
    } else {
      if (written == 32) bring_values_of<32, true>(at, written, page_of_step, lane, place);
      else bring_values_of<32, false>(at, written, page_of_step, lane, place);
    }
  };
  // What is asked for next, and where it goes.
  Turn asked = {0, 0};
  u32 item = from;
  for (; item < from + ahead && item <= to; item++, asked.next()) ask(item, block_of(item), shared.steps[asked.place]);
  u32 next = block_of(item);
  copies_commit();
  put_queries(a, tile, shared.q);
  copies_wait<0>();
  fence_shared();
  __syncthreads();
  u32 row = tile.first_row + 16 * warp, queries = shared_address(&shared.q[0][64 * warpgroup]);
  Rows16 r;
  begin_sums(tile.span, tile.group, row, r);
  float s[STEP / 8][4], fade[2];
  u32 p[STEP / 16][4];
  Turn now = {0, 0}, before = now, brought = asked;
  bool is_coming = false;
  // What this warpgroup asked for a step ago is there. What it asked for at the beginning was there before anybody went on.
  auto tell = [&] {
    if (!is_coming) return;
    copies_wait<0>();
    fence_shared();
    gate_arrive(shared.there[warpgroup][brought.place]);
  };
  auto wait_for = [&](u32 what, Turn turn, u32 step) {
    // What was there at the beginning, two steps' keys and one's values, has not passed its gate.
    u32 passed = turn.place < 2 - what;
    if (step >= from + 2 - what) gate_wait(shared.there[what][turn.place], turn.parity ^ passed);
  };
  auto ask_next = [&] {
    is_coming = item <= to;
    if (!is_coming) return;
    // Who comes round for the first time finds the place empty.
    if (item >= from + RING) gate_wait(shared.unread[warpgroup][asked.place], asked.parity ^ 1);
    ask(item, next, shared.steps[asked.place]);
    copies_commit();
    next = block_of(item + 1);
    brought = asked;
    asked.next();
    item++;
  };
  // See attention_warpgroups.cu. Between both waits there is one path, and nobody is waited for.
  auto advance = [&](u32 step, bool edge) {
    before = now;
    now.next();
    tell();
    wait_for(0, now, step);
    wait_for(1, before, step - 1);
    wgmma_begin();
    ask_scores(queries, shared_address(&shared.steps[now.place]), s);
    ask_sums(p, shared_address(&shared.steps[before.place]), r);
    ask_next();
    wgmma_wait<1>(s);
    gate_arrive(shared.unread[0][now.place]);
    if (edge) hide<2, 8>(s, STEP * step, a, r);
    bool moved = __ballot_sync(ALL_LANES, weigh(s, a, r, fade));
    if (!are_made(r)) return;
    // Outside of what only some warps do: a warpgroup waits as one.
    wgmma_wait<0>(r.o);
    gate_arrive(shared.unread[1][before.place]);
    if (moved) dim_rows(fade, r);
    to_weights(s, p);
  };
  wgmma_begin();
  ask_scores(queries, shared_address(&shared.steps[0]), s);
  ask_next();
  wgmma_wait<0>(s);
  gate_arrive(shared.unread[0][0]);
  if (tile.is_edge(a, from)) hide<2, 8>(s, STEP * from, a, r);
  weigh(s, a, r, fade);
  to_weights(s, p);
  for (u32 step = from + 1; step <= to; step++) {
    if (tile.is_edge(a, step)) advance(step, true);
    else advance(step, false);
  }
  wait_for(1, now, to);
  wgmma_begin();
  ask_sums(p, shared_address(&shared.steps[now.place]), r);
  wgmma_wait<0>(r.o);
  end(r);
  put_rows(a, tile, row, r);
}
