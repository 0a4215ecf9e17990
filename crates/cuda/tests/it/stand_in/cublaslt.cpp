// A library of products: D = alpha op(A) op(B) + beta C, with a bias for each row of D if it was asked for, matrices by columns as
// their descriptions say, added up in double precision. What is described wrongly is refused; what is then asked for wrongly ends the
// process, as of a product that is refused others compute the results. BALLAST_STAND_IN_REFUSES: rows of D that it fails at, once it
// is asked for them. BALLAST_STAND_IN_LACKS: those that it has no algorithm for.
#include "device.h"

namespace {
constexpr int LT_INVALID = 7, LT_FAILED = 13, LT_INTERNAL = 14, LT_UNSUPPORTED = 15;
constexpr int R_32F = 0, R_16BF = 14;

struct Product {
  int turns_a = 0, turns_b = 0, bias_type = R_32F;
  unsigned epilogue = 1;
  uint64_t bias = 0;
};
struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t stride;
  size_t bytes() const { return (stride * (cols - 1) + rows) * (type == R_32F ? 4 : 2); }
};
struct Search {
  uint64_t workspace = 0;
  unsigned reduction = ~0u, alignment[4] = {256, 256, 256, 256};
};
struct Found {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
constexpr uint64_t MAGIC = 0x0a16011711;

float read(uint64_t at, int type, uint64_t i) {
  if (type == R_32F) return ((const float*)at)[i];
  uint32_t bits = (uint32_t)((const uint16_t*)at)[i] << 16;
  float value;
  return std::memcpy(&value, &bits, 4), value;
}

void write(uint64_t at, int type, uint64_t i, float value) {
  if (type == R_32F) {
    ((float*)at)[i] = value;
    return;
  }
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  ((uint16_t*)at)[i] = value != value ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <class T>
int set(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return LT_INVALID;
  return std::memcpy(&to, value, bytes), DONE;
}

// Whether the sizes go together.
bool fits(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  uint64_t m = p.turns_a ? a.cols : a.rows, k = p.turns_a ? a.rows : a.cols;
  uint64_t n = p.turns_b ? b.rows : b.cols, other = p.turns_b ? b.cols : b.rows;
  bool strides = true;
  for (const Layout* layout : {&a, &b, &c, &d}) strides &= layout->stride >= (int64_t)layout->rows;
  return strides && k == other && m == d.rows && n == d.cols && c.rows == m && c.cols == n && a.type == b.type && c.type == d.type;
}
}  // namespace

extern "C" size_t cublasLtGetVersion() { return 129900; }
extern "C" const char* cublasLtGetStatusString(int status) { 
  return status == LT_UNSUPPORTED ? "not supported" : status == LT_FAILED ? "the program failed to execute" : "an invalid value";
}
CALL cublasLtCreate(void** handle) { return *handle = &context, current == &context ? DONE : 1; }
CALL cublasLtDestroy(void* handle) { return handle == &context ? DONE : LT_INVALID; }

CALL cublasLtMatmulDescCreate(Product** product, int compute, int scale) {
  return *product = new Product, compute == 68 && scale == R_32F ? DONE : LT_UNSUPPORTED;
}
CALL cublasLtMatmulDescSetAttribute(Product* product, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 3: return set(product->turns_a, value, bytes);
    case 4: return set(product->turns_b, value, bytes);
    case 7: return set(product->epilogue, value, bytes);
    case 8: return set(product->bias, value, bytes);
    case 26: return set(product->bias_type, value, bytes);
    default: return LT_INVALID;
  }
}
CALL cublasLtMatmulDescDestroy(Product* product) { return delete product, DONE; }

CALL cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t cols, int64_t stride) {
  return *layout = new Layout{type, rows, cols, stride}, (type == R_32F || type == R_16BF) && rows && cols ? DONE : LT_INVALID;
}
CALL cublasLtMatrixLayoutDestroy(Layout* layout) { return delete layout, DONE; }

CALL cublasLtMatmulPreferenceCreate(Search** search) { return *search = new Search, DONE; }
CALL cublasLtMatmulPreferenceSetAttribute(Search* search, int attribute, const void* value, size_t bytes) {
  switch (attribute) {
    case 1: return set(search->workspace, value, bytes);
    case 3: return set(search->reduction, value, bytes);
    case 5: case 6: case 7: case 8: return set(search->alignment[attribute - 5], value, bytes);
    default: return LT_INVALID;
  }
}
CALL cublasLtMatmulPreferenceDestroy(Search* search) { return delete search, DONE; }

// The algorithm remembers how places must be aligned.
CALL cublasLtMatmulAlgoGetHeuristic(void*, Product* p, Layout* a, Layout* b, Layout* c, Layout* d, Search* search, int wanted, Found* found,
                                    int* count) {
  // As the library of CUDA 13.3 does.
  if (is_noting) return LT_INTERNAL;
  if (wanted < 1 || !fits(*p, *a, *b, *c, *d)) return LT_INVALID;
  static const uint64_t lacked = number("BALLAST_STAND_IN_LACKS", 0);
  if (d->rows == lacked) return *count = 0, LT_UNSUPPORTED;
  *found = {{MAGIC, search->alignment[0], search->alignment[1], search->alignment[3]}, search->workspace, DONE, 1.0f, {}};
  return *count = 1, DONE;
}

CALL cublasLtMatmul(void* handle, Product* product, const float* alpha, uint64_t a, Layout* of_a, uint64_t b, Layout* of_b, const float* beta,
                    uint64_t c, Layout* of_c, uint64_t d, Layout* of_d, const uint64_t* algorithm, uint64_t workspace, size_t workspace_bytes,
                    Stream* stream) {
  if (handle != &context || current != &context || !streams.has(stream)) wrong("a product of another context's");
  if (algorithm[0] != MAGIC || a % algorithm[1] || b % algorithm[2] || d % algorithm[3]) wrong("a product by another's algorithm");
  if (!fits(*product, *of_a, *of_b, *of_c, *of_d)) wrong("a product of matrices that do not fit");
  static const uint64_t refused = number("BALLAST_STAND_IN_REFUSES", 0);
  if (of_d->rows == refused) return LT_FAILED;
  look_at(a, of_a->bytes(), true);
  look_at(b, of_b->bytes(), true);
  look_at(c, of_c->bytes(), true);
  look_at(d, of_d->bytes(), true);
  if (workspace_bytes) look_at(workspace, workspace_bytes, true);
  bool is_biased = product->epilogue == 4;
  if (is_biased) look_at(product->bias, 4 * of_d->rows, true);
  if ((!is_biased && product->epilogue != 1) || product->bias_type != R_32F) wrong("a product with another end");
  Product p = *product;
  Layout la = *of_a, lb = *of_b, lc = *of_c, ld = *of_d;
  float by = *alpha, kept = *beta;
  stream->ask([=] {
    uint64_t k = p.turns_a ? la.rows : la.cols;
    for (uint64_t n = 0; n < ld.cols; n++)
      for (uint64_t m = 0; m < ld.rows; m++) {
        double sum = 0;
        for (uint64_t i = 0; i < k; i++) {
          float x = read(a, la.type, p.turns_a ? m * la.stride + i : i * la.stride + m);
          sum += (double)x * read(b, lb.type, p.turns_b ? i * lb.stride + n : n * lb.stride + i);
        }
        double before = kept == 0.0f ? 0.0 : (double)kept * read(c, lc.type, n * lc.stride + m);
        double bias = is_biased ? ((const float*)p.bias)[m] : 0.0;
        write(d, ld.type, n * ld.stride + m, (float)(by * sum + before + bias));
      }
    // Others' results lie there meanwhile.
    if (workspace_bytes) std::memset((void*)workspace, 0xa5, std::min(workspace_bytes, size_t(4096)));
  });
  return DONE;
}
