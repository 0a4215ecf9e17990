// Products of warpgroups, as the hardware makes them: late, from operands where a descriptor says, of shared memory as a fence left
// it. What a kernel may not do beside them ends the run, or spoils the result.

namespace emu {
// Where a block's memory begins in the addresses of shared memory: a device keeps the first 1024 bytes.
constexpr unsigned SHARED_FIRST = 1024;

// Registers that products under way add to.
struct Sums {
  float* registers;
  unsigned count, products;
  std::vector<float> values;
};

// One of a lane: of a, the 16 numbers of rows g and g + 8, from registers that must stay what they were, or from where `a` says.
struct Product {
  float* sums;
  bool adds;
  const unsigned* registers;
  unsigned were[4];
  float rows[2][16];
  unsigned long long a, b;
  unsigned long long traces[2];  // of what lies in memory, where the lane is the first of its warpgroup
};

// What a lane has asked for: the groups that are under way, the last of which is open.
struct Products {
  std::vector<std::vector<Product>> groups = {{}};
  std::vector<Sums> sums;
  bool has_begun = false;
  // Places in shared memory that it has written to, and copies that have arrived there, which no fence has shown yet.
  std::vector<void*> puts;
  size_t fenced = 0;
  // How many descriptors it has given; and, where it is the first of its warpgroup, those that all of that give.
  size_t given = 0;
  std::vector<unsigned long long> agreed;
  // Gates that it has waited for, and how often each was to have opened by then.
  std::vector<std::pair<const void*, unsigned>> passed;
};

inline void wrong(const char* what) {
  std::fprintf(stderr, "products of warpgroups: %s\n", what);
  std::abort();
}

inline Products& products_of(Fiber& fiber) {
  if (!fiber.products) fiber.products = std::make_shared<Products>();
  return *fiber.products;
}

inline Products& products() { return products_of(*current); }

inline float number(unsigned bits) {
#ifdef KV_F16
  return emulated_f16(bits);
#else
  return emulated_bf16(bits);
#endif
}

// Numbers 8 half .. 8 half + 7 of a row of an operand whose rows have 16 of them beside each other, in memory. (PTX, "Matrix
// Descriptor Format" and "Shared Memory Matrix Layout", K-major.) A swizzle moves bits of the address, wherever a row begins.
inline const unsigned short* place_of(unsigned long long descriptor, unsigned row, unsigned half) {
  auto bytes = [&](unsigned bit) { return (unsigned)(descriptor >> bit & 0x3fff) << 4; };
  unsigned first = bytes(0), leading = bytes(16), stride = bytes(32), mode = descriptor >> 62;
  unsigned swizzled_bits = mode == 0 ? 0 : 4 - mode, row_bytes = 16 << swizzled_bits, mask = (1 << swizzled_bits) - 1;
  if (descriptor >> 49 & 7 || first >> 7 & mask) wrong("rows do not begin where their order does");
  unsigned at = first + row / 8 * stride + row % 8 * row_bytes + half * (mode == 0 ? leading : 16);
  at ^= (at >> 7 & mask) << 4;
  if (at < SHARED_FIRST || at - SHARED_FIRST + 16 > launched_bytes) wrong("an operand is not in the block's memory");
  return (const unsigned short*)(fenced + (at - SHARED_FIRST));
}

inline void read_row(unsigned long long descriptor, unsigned row, float (&to)[16]) {
  for (unsigned half = 0; half < 2; half++) {
    const unsigned short* from = place_of(descriptor, row, half);
    for (unsigned k = 0; k < 8; k++) to[8 * half + k] = number(from[k]);
  }
}

// Something that changes with an operand of so many rows.
inline unsigned long long trace_of(unsigned long long descriptor, unsigned rows) {
  unsigned long long trace = 0, words[2];
  for (unsigned i = 0; i < 2 * rows; i++) {
    std::memcpy(words, place_of(descriptor, i / 2, i % 2), sizeof words);
    for (unsigned long long word : words) trace = (trace ^ word) * 0x9e3779b97f4a7c15ull;
  }
  return trace;
}

// Whichever thread of a warpgroup comes first gives its descriptors, and the others the same.
inline void give(unsigned long long descriptor) {
  auto& agreed = products_of(block.fibers[current->thread.x / 128 * 128]).agreed;
  size_t at = products().given++;
  if (at == agreed.size()) agreed.push_back(descriptor);
  if (agreed[at] != descriptor) wrong("descriptors differ in a warpgroup");
}

inline bool looks() { return current->thread.x % 128 == 0; }

// Of a and b, of which b has as many rows as there are columns of sums.
inline void look(const Product& product, unsigned columns, unsigned long long (&traces)[2]) {
  traces[0] = product.registers ? 0 : trace_of(product.a, 64);
  traces[1] = trace_of(product.b, columns);
}

// Registers that are added to are nonsense meanwhile.
inline void ask(float* registers, unsigned count, Product product) {
  Products& mine = products();
  if (!mine.has_begun) wrong("nothing began them");
  Sums* sums = nullptr;
  for (Sums& s : mine.sums)
    if (s.registers == registers) sums = &s;
  if (!sums) {
    mine.sums.push_back({registers, count, 0, std::vector<float>(registers, registers + count)});
    sums = &mine.sums.back();
    std::memset(registers, 0xff, count * sizeof(float));
  }
  sums->products++;
  product.sums = registers;
  if (looks()) look(product, 2 * count, product.traces);
  mine.groups.back().push_back(product);
}

inline void multiply(Product& product, Sums& sums) {
  unsigned lane = current->thread.x % 32, g = lane / 4, t = lane % 4, warp = current->thread.x / 32 % 4;
  if (product.registers && std::memcmp(product.registers, product.were, sizeof product.were)) wrong("an operand was touched");
  if (looks()) {
    unsigned long long traces[2];
    look(product, 2 * sums.count, traces);
    if (std::memcmp(traces, product.traces, sizeof traces)) wrong("an operand in memory came late, or went early");
  }
  for (unsigned row = 0; row < 2 && !product.registers; row++) read_row(product.a, 16 * warp + g + 8 * row, product.rows[row]);
  if (!product.adds) sums.values.assign(sums.count, 0.0f);
  for (unsigned i = 0; i < sums.count; i += 4)
    for (unsigned column = 0; column < 2; column++) {
      float b[16];
      read_row(product.b, 2 * i + 2 * t + column, b);
      for (unsigned row = 0; row < 2; row++)
        for (unsigned k = 0; k < 16; k++) sums.values[i + column + 2 * row] += product.rows[row][k] * b[k];
    }
}

// The oldest group is done.
inline void finish_group(Products& mine) {
  for (Product& product : mine.groups.front()) {
    size_t i = 0;
    while (mine.sums[i].registers != product.sums) i++;
    Sums& sums = mine.sums[i];
    multiply(product, sums);
    if (--sums.products > 0) continue;
    for (unsigned j = 0; j < sums.count; j++)
      if (__float_as_uint(sums.registers[j]) != ~0u) wrong("sums were touched");
    std::memcpy(sums.registers, sums.values.data(), sums.count * sizeof(float));
    mine.sums.erase(mine.sums.begin() + i);
  }
  mine.groups.erase(mine.groups.begin());
}
}  // namespace emu

static inline unsigned shared_address(const void* shared) {
  size_t at = (const char*)shared - emu::launched;
  if (at >= sizeof emu::launched) emu::wrong("an address is not in the block's memory");
  return emu::SHARED_FIRST + at;
}

static inline void put_16(void* shared, const uint4& v) {
  emu::write_16(shared, &v);
  emu::products().puts.push_back(shared);
}

static inline void fence_shared() {
  emu::Fiber& fiber = *emu::current;
  auto see = [](void* shared) { std::memcpy(emu::fenced + ((char*)shared - emu::launched), shared, 16); };
  emu::Products& mine = emu::products();
  for (; mine.fenced < fiber.copied; mine.fenced++) see(fiber.copies[mine.fenced].to);
  for (void* shared : mine.puts) see(shared);
  mine.puts.clear();
}

// Gates: how many arrive each time, how many are still to come, which warps have, and how often it has opened.
struct Gate {
  unsigned char arrivals, missing;
  unsigned short warps;
  unsigned opened;
};
static_assert(sizeof(Gate) == 8, "as on a device");

static inline void gate_make(Gate& gate, unsigned arrivals) { gate = {(unsigned char)arrivals, (unsigned char)arrivals, 0, 0}; }

static inline void gate_arrive(Gate& gate, bool arrives) {
  if (arrives) {
    unsigned short mine = 1 << emu::current->thread.x / 32;
    if (gate.warps & mine) emu::wrong("a warp came to a gate twice before it opened");
    gate.warps |= mine;
    if (--gate.missing == 0) {
      gate.missing = gate.arrivals;
      gate.warps = 0;
      gate.opened++;
    }
  }
  // Who passes may go on before who arrived does.
  emu::current->steps++;
  emu::yield();
}

// Who sees but odd and even must not miss that a gate opened once more than it waited for.
static inline void gate_wait(Gate& gate, unsigned odd, unsigned*) {
  auto& passed = emu::products().passed;
  size_t i = 0;
  while (i < passed.size() && passed[i].first != &gate) i++;
  if (i == passed.size()) passed.push_back({&gate, odd == 0 ? 0u : ~0u});
  unsigned due = ++passed[i].second;
  while (gate.opened % 2 == odd) emu::yield();
  if (gate.opened != due) emu::wrong("a gate opened for somebody else");
  emu::current->steps++;
}

template <unsigned COUNT>
static inline void fewer_registers() {}

template <unsigned COUNT>
static inline void more_registers() {}

static inline void wgmma_begin() { emu::products().has_begun = true; }

static inline void wgmma_commit() { emu::products().groups.push_back({}); }

template <int PENDING>
static inline void wgmma_wait() {
  emu::Products& mine = emu::products();
  if (!mine.groups.back().empty()) emu::wrong("a group has no end");
  while (mine.groups.size() > PENDING + 1) emu::finish_group(mine);
  mine.has_begun = false;
  // A warp waits as one.
  emu::sync_warp();
}

template <int PENDING, unsigned N>
static inline void wgmma_wait(float (&)[N][4]) { wgmma_wait<PENDING>(); }

template <bool ADD, unsigned N>
static inline void wgmma(float (&d)[N][4], unsigned long long a, unsigned long long b) {
  emu::give(a);
  emu::give(b);
  emu::Product product = {};
  product.adds = ADD;
  product.a = a;
  product.b = b;
  emu::ask(d[0], 4 * N, product);
}

template <unsigned N>
static inline void wgmma(float (&d)[N][4], const unsigned (&a)[4], unsigned long long b) {
  emu::give(b);
  emu::Product product = {};
  product.adds = true;
  product.b = b;
  product.registers = a;
  std::memcpy(product.were, a, sizeof a);
  emu::Words& told = emu::words();
  unsigned lane = emu::current->thread.x % 32;
  std::memcpy(told[lane], a, sizeof a);
  emu::sync_warp();
  for (unsigned i = 0; i < 32; i++) {
    unsigned row = i / 16, k = i % 16, word = told[lane / 4 * 4 + k % 8 / 2][row + k / 8 * 2];
    product.rows[row][k] = emu::number(word >> 16 * (k % 2) & 0xffff);
  }
  emu::ask(d[0], 4 * N, product);
}
