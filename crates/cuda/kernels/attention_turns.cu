// As attention_warpgroups.cu, by blocks that stay: one warpgroup brings what two others attend to, and these take turns.
// (FlashAttention-3, "3.1 Producer-Consumer asynchrony through warp-specialization and pingpong scheduling".)
//
// The first warpgroup brings queries, keys and values, of the next tile too, as soon as there is a place. A reader asks for its
// products when it is its turn, and gives the turn away before it makes weights: so one has the tensor cores while the other
// makes weights. Gates say what is there, and what nobody reads any more.
//
//   bringer      K 0 | Q | K 1 | V 0 | K 2 | V 1 | ...
//   reader 0     S 0 | weights 0           | S 1, P 0 V 0 | weights 1           | ...
//   reader 1           | S 0 | weights 0                  | S 1, P 0 V 0 | weights 1
//
// Keys come a step before they are needed with the values: who waits for a place of values has told of the keys before.
// Neither waits for what waits for it: all that is two steps back was told of, and no reader needs more to leave a place of the ring.
//
// No GPU has run it yet. It is used where a trial at the first start finds it right, and faster than attention_warpgroups.cu; and where
// BALLAST_CUDA_PREFILL=turns says so.

#define BRINGERS 128
#define READERS 256

// A block's memory; Module::block_bytes knows its size. Of pairs of gates the first is of keys, the second of values.
struct Turns {
  Cell q[SLABS][BLOCK_ROWS][64];
  Step steps[RING];
  Gate there[2][RING], unread[2][RING], turns[2], queries_there, queries_unread;
};

// A place of the ring, and how often it has come round, odd or even.
struct Place {
  u32 at, odd;
  __device__ __forceinline__ void next() {
    bool round = at + 1 == RING;
    at = round ? 0 : at + 1;
    odd ^= round;
  }
};

// What a block attends, one item after another: a tile of a head of keys. Tiles are dealt longest first, to and fro, so that blocks
// have much the same to do.
struct Deal {
  u32 round, items, kv_heads;
  __device__ __forceinline__ explicit Deal(const AttendArgs& a) : round(0), items(a.pieces * a.kv_heads), kv_heads(a.kv_heads) {}
  // Whether there is another.
  __device__ __forceinline__ bool next(u32& piece, u32& head) {
    u32 item = round * gridDim.x + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    piece = item / kv_heads, head = item % kv_heads;
    round++;
    return item < items;
  }
};

// Tells that this warp has brought what it asked for, but for the last PENDING groups.
template <int PENDING>
__device__ __forceinline__ void tell(Gate& there) {
  copies_wait<PENDING>();
  fence_shared();
  __syncwarp();
  gate_arrive(there, threadIdx.x % 32 == 0);
}

__device__ __forceinline__ void bring(const AttendArgs& a, Turns& shared) {
  // The same for all of a warp, which the compiler does not see.
  u32 page = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0), lane = threadIdx.x % 32, piece, head;
  Deal deal(a);
  if (!deal.next(piece, head)) return;
  Tile tile(a, piece, head);
  u32 block = tile.block_of(a, tile.from, page), odd = 0;
  Place place = {0, 0};
  for (bool more = true; more; odd ^= 1) {
    // Of the step before: where its values lie and come to, and, once they were asked for, who is to be told.
    Place before = place;
    const Cell* values = nullptr;
    u32 filled = 0;
    Gate* untold = nullptr;
    for (u32 step = tile.from; step <= tile.to + 1; step++) {
      bool keys = step <= tile.to;
      const Cell* from = block_at(a, block, tile.kv_head);
      u32 written = tile.written(step, page);
      if (keys) {
        block = tile.block_of(a, step + 1, page);
        // Who comes round for the first time finds the place empty.
        gate_wait(shared.unread[0][place.at], place.odd ^ 1, a.stalled);
        if (written == 32) bring_keys_of<32, true>(from, written, page, lane, shared.steps[place.at]);
        else bring_keys_of<32, false>(from, written, page, lane, shared.steps[place.at]);
      }
      copies_commit();
      if (untold) tell<1>(*untold);
      if (step == tile.from) {
        gate_wait(shared.queries_unread, odd ^ 1, a.stalled);
        put_queries<BRINGERS>(a, tile, shared.q);
        fence_shared();
        __syncwarp();
        gate_arrive(shared.queries_there, lane == 0);
      } else {
        gate_wait(shared.unread[1][before.at], before.odd ^ 1, a.stalled);
        if (filled == 32) bring_values_of<32, true>(values, filled, page, lane, shared.steps[before.at]);
        else bring_values_of<32, false>(values, filled, page, lane, shared.steps[before.at]);
        untold = &shared.there[1][before.at];
      }
      copies_commit();
      if (keys) {
        tell<1>(shared.there[0][place.at]);
        before = place, values = from, filled = written;
        place.next();
      }
    }
    // What the next tile is takes as long to be read as the last values take to come.
    more = deal.next(piece, head);
    if (more) tile = Tile(a, piece, head), block = tile.block_of(a, tile.from, page);
    tell<0>(*untold);
  }
}

// What a reader asks for and when: see attention_warpgroups.cu.
__device__ __forceinline__ void read(const AttendArgs& a, Turns& shared, u32 reader) {
  u32 warp = __shfl_sync(ALL_LANES, threadIdx.x / 32 % 4, 0), queries = shared_address(&shared.q[0][64 * reader]), piece, head;
  bool one = threadIdx.x % 32 == 0;
  gate_arrive(shared.turns[0], one && reader == 1);
  Place now = {0, 0}, before;
  u32 odd = 0, odd_turn = 0;
  Deal deal(a);
  if (!deal.next(piece, head)) return;
  Tile coming(a, piece, head);
  for (bool more = true; more; odd ^= 1) {
    Tile tile = coming;
    u32 row = tile.first_row + 64 * reader + 16 * warp;
    Rows16 r;
    begin_sums(tile.span, tile.group, row, r);
    float s[STEP / 8][4], fade[2];
    u32 p[STEP / 16][4];
    // Between both waits there is one path, and nobody is waited for: where paths meet while products are under way, the compiler
    // waits for all of them.
    auto advance = [&](u32 step, bool edge) {
      before = now;
      now.next();
      gate_wait(shared.there[0][now.at], now.odd, a.stalled);
      gate_wait(shared.there[1][before.at], before.odd, a.stalled);
      gate_wait(shared.turns[reader], odd_turn, a.stalled);
      odd_turn ^= 1;
      wgmma_begin();
      ask_scores(queries, shared_address(&shared.steps[now.at]), s);
      ask_sums(p, shared_address(&shared.steps[before.at]), r);
      gate_arrive(shared.turns[1 - reader], one);
      wgmma_wait<1>(s);
      gate_arrive(shared.unread[0][now.at], one);
      gate_arrive(shared.queries_unread, one && step == tile.to);
      if (edge) hide<2, 8>(s, STEP * step, a, r);
      bool moved = __ballot_sync(ALL_LANES, weigh(s, a, r, fade));
      if (!are_made(r)) return;
      // Outside of what only some warps do: a warpgroup waits as one.
      wgmma_wait<0>(r.o);
      gate_arrive(shared.unread[1][before.at], one);
      if (moved) dim_rows(fade, r);
      to_weights(s, p);
    };
    gate_wait(shared.queries_there, odd, a.stalled);
    gate_wait(shared.there[0][now.at], now.odd, a.stalled);
    gate_wait(shared.turns[reader], odd_turn, a.stalled);
    odd_turn ^= 1;
    wgmma_begin();
    ask_scores(queries, shared_address(&shared.steps[now.at]), s);
    gate_arrive(shared.turns[1 - reader], one);
    wgmma_wait<0>(s);
    gate_arrive(shared.unread[0][now.at], one);
    gate_arrive(shared.queries_unread, one && tile.from == tile.to);
    if (tile.is_edge(tile.from)) hide<2, 8>(s, STEP * tile.from, a, r);
    weigh(s, a, r, fade);
    to_weights(s, p);
    for (u32 step = tile.from + 1; step <= tile.to; step++) {
      if (tile.is_edge(step)) advance(step, true);
      else advance(step, false);
    }
    // What comes next is looked up while the last values come: the other reader would wait for this one.
    more = deal.next(piece, head);
    if (more) coming = Tile(a, piece, head);
    gate_wait(shared.there[1][now.at], now.odd, a.stalled);
    wgmma_begin();
    ask_sums(p, shared_address(&shared.steps[now.at]), r);
    wgmma_wait<0>(r.o);
    gate_arrive(shared.unread[1][now.at], one);
    now.next();
    end(r);
    put_rows(a, tile, row, r);
  }
}

KERNEL_BLOCKS(attend_many, AttendArgs, BRINGERS + READERS, 1) {
  Turns& shared = block_memory<Turns>();
  if (threadIdx.x == 0) {
#pragma unroll
    for (u32 i = 0; i < 2 * RING; i++) {
      gate_make(shared.there[i / RING][i % RING], BRINGERS / 32);
      gate_make(shared.unread[i / RING][i % RING], READERS / 32);
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) gate_make(shared.turns[i], READERS / 2 / 32);
    gate_make(shared.queries_there, BRINGERS / 32);
    gate_make(shared.queries_unread, READERS / 32);
  }
  __syncthreads();
  u32 warpgroup = __shfl_sync(ALL_LANES, threadIdx.x / 128, 0);
  // Of 65,536 registers 168 are each thread's at first. Who brings needs few.
  if (warpgroup == 0) {
    fewer_registers<40>();
    bring(a, shared);
  } else {
    more_registers<232>();
    read(a, shared, warpgroup - 1);
  }
}
