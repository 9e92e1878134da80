/* Matrix products and what brings their operands: ldmatrix, mma.sync, wgmma. Products of two 16-bit
 * floats are exact in f32; they are added in the order of k. */
#include "block.h"

#include <memory>
#include <stdio.h>
#include <stdlib.h>

/* ---- 16-bit floats ---------------------------------------------------------------------------- */

static float widen_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 0) return __uint_as_float(__float_as_uint((float)mantissa * 0x1p-24f) | sign);
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static const float *f16_table() {
  static const float *const table = [] {
    float *made = (float *)malloc(65536 * sizeof(float));
    for (uint32_t bits = 0; bits < 65536; bits++) made[bits] = widen_f16(bits);
    return made;
  }();
  return table;
}

float emu_f16_to_f32(uint32_t bits) {
  return widen_f16(bits);
}

uint32_t emu_f32_to_f16(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and up round to infinity */
  if (magnitude < 0x38800000u) {                       /* subnormal: a multiple of 2^-24, rounded by nearbyint */
    return sign | (uint32_t)nearbyintf(__uint_as_float(magnitude) * 0x1p24f);
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
  return sign | ((rounded >> 13) - (112u << 10));
}

static inline float element(const uint16_t *at, const float *table) {
  return table ? table[*at] : __uint_as_float((uint32_t)*at << 16);
}

/* ---- ldmatrix --------------------------------------------------------------------------------- */

struct ldmatrix_args {
  uint32_t *r;
  uint32_t address;
  int matrices;
  bool transposed;
};

static void ldmatrix_all(const void *const *all) {
  const ldmatrix_args *first = (const ldmatrix_args *)all[0];
  for (int m = 0; m < first->matrices; m++) {
    const char *rows[8];
    for (int r = 0; r < 8; r++) {
      const ldmatrix_args *giver = (const ldmatrix_args *)all[m * 8 + r];
      emu_shared_check(giver->address, 16, "ldmatrix");
      rows[r] = emu_shared_at(giver->address);
    }
    for (int lane = 0; lane < EMU_WARP; lane++) {
      uint32_t *to = &((const ldmatrix_args *)all[lane])->r[m];
      if (!first->transposed) {
        memcpy(to, rows[lane / 4] + lane % 4 * 4, 4);
      } else {
        uint16_t pair[2];
        memcpy(&pair[0], rows[lane % 4 * 2] + lane / 4 * 2, 2);
        memcpy(&pair[1], rows[lane % 4 * 2 + 1] + lane / 4 * 2, 2);
        memcpy(to, pair, 4);
      }
    }
  }
}

void emu_ldmatrix(uint32_t *r, uint32_t address, int matrices, bool transposed) {
  const ldmatrix_args args = {r, address, matrices, transposed};
  emu_meet_warp(transposed ? "ldmatrix.x4.trans" : matrices > 2 ? "ldmatrix.x4" : "ldmatrix.x2", &args, ldmatrix_all);
}

struct stmatrix_args {
  uint32_t address;
  const uint32_t *r;
};

static void stmatrix_all(const void *const *all) {
  for (int m = 0; m < 4; m++) {
    for (int row = 0; row < 8; row++) {
      const uint32_t address = ((const stmatrix_args *)all[m * 8 + row])->address;
      char *to = (char *)emu_shared_write(address, 16);
      for (int c = 0; c < 4; c++) memcpy(to + c * 4, &((const stmatrix_args *)all[row * 4 + c])->r[m], 4);
    }
  }
}

void emu_stmatrix(uint32_t address, const uint32_t *r) {
  const stmatrix_args args = {address, r};
  emu_meet_warp("stmatrix.x4", &args, stmatrix_all);
}

/* ---- mma.sync --------------------------------------------------------------------------------- */

typedef float floats __attribute__((vector_size(32), aligned(4)));

struct mma_args {
  float *d;
  const uint32_t *a, *b;
  bool bf16, zero;
};

__attribute__((target_clones("arch=x86-64-v3", "default"))) static void mma_all(const void *const *all) {
  const mma_args *args[EMU_WARP];
  for (int lane = 0; lane < EMU_WARP; lane++) args[lane] = (const mma_args *)all[lane];
  const float *table = args[0]->bf16 ? nullptr : f16_table();
  const bool zero = args[0]->zero;
  float a[16][16];
  floats b[16], d[16];
  for (int lane = 0; lane < EMU_WARP; lane++) {
    const int row = lane / 4, col = lane % 4 * 2;
    const uint16_t *from_a = (const uint16_t *)args[lane]->a, *from_b = (const uint16_t *)args[lane]->b;
    for (int c = 0; c < 2; c++) {
      a[row][col + c] = element(from_a + c, table);
      a[row + 8][col + c] = element(from_a + 2 + c, table);
      a[row][col + 8 + c] = element(from_a + 4 + c, table);
      a[row + 8][col + 8 + c] = element(from_a + 6 + c, table);
      b[col + c][row] = element(from_b + c, table);
      b[col + 8 + c][row] = element(from_b + 2 + c, table);
      d[row][col + c] = zero ? 0.0f : args[lane]->d[c];
      d[row + 8][col + c] = zero ? 0.0f : args[lane]->d[2 + c];
    }
  }
  for (int row = 0; row < 16; row++) {
    floats sum = d[row];
    for (int k = 0; k < 16; k++) sum += a[row][k] * b[k];
    d[row] = sum;
  }
  for (int lane = 0; lane < EMU_WARP; lane++) {
    const int row = lane / 4, col = lane % 4 * 2;
    for (int c = 0; c < 2; c++) {
      args[lane]->d[c] = d[row][col + c];
      args[lane]->d[2 + c] = d[row + 8][col + c];
    }
  }
}

void emu_mma(float *d, const uint32_t *a, const uint32_t *b, bool bf16, bool zero) {
  const mma_args args = {d, a, b, bf16, zero};
  emu_meet_warp(zero ? "mma.sync (zero)" : "mma.sync", &args, mma_all);
}

/* ---- wgmma ------------------------------------------------------------------------------------ */

/* The accumulator of products in flight. The threads' registers show POISON meanwhile, unless the
 * products take effect when they are issued. */
struct emu_accumulator {
  float *d[EMU_GROUP];
  int n, users;
  bool poisoned;
  std::vector<float> c; /* 64 x n */
};

struct emu_product {
  emu_accumulator *acc;
  int64_t group; /* INT64_MAX: not committed */
  uint64_t a_descriptor, b_descriptor;
  bool accumulate, bf16, a_in_registers, b_along_n, done;
  uint16_t a[64][16];
};

static const uint32_t POISON = 0x7fc0beefu;

/* Where thread t's register r of an accumulator lies. */
static int row_of(int t, int r) {
  return t / 32 * 16 + t % 32 / 4 + (r & 2) * 4;
}
static int col_of(int t, int r) {
  return r / 4 * 8 + t % 4 * 2 + (r & 1);
}

static void write_back(emu_accumulator *acc) {
  for (int t = 0; t < EMU_GROUP; t++) {
    for (int r = 0; r < acc->n / 2; r++) {
      if (acc->poisoned && __float_as_uint(acc->d[t][r]) != POISON) {
        emu_fail("wgmma: thread %d's accumulator %d was written while products were in flight",
                 emu_me().group->id * EMU_GROUP + t, r);
      }
      acc->d[t][r] = acc->c[(size_t)(row_of(t, r) * acc->n + col_of(t, r))];
    }
  }
}

struct operand {
  uint32_t start, leading, stride;
};

static operand decode(uint64_t descriptor, const char *which) {
  const operand o = {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                     (uint32_t)(descriptor >> 32 & 0x3fff) << 4};
  if (descriptor >> 62 != 1) emu_fail("wgmma: %s is not under the 128-byte swizzle", which);
  if (descriptor >> 49 & 7) emu_fail("wgmma: %s has a base offset, which is not emulated", which);
  if (o.stride != 1024) emu_fail("wgmma: %s has stride %u, only 1024 is emulated", which, o.stride);
  return o;
}

/* 8 elements that follow each other, in the async proxy's eyes. */
static const uint16_t *chunk_at(uint32_t plain, const char *which) {
  const uint32_t address = emu_swizzle_128(plain);
  emu_shared_check(address, 16, "wgmma");
  const uint16_t writer = emu_now->writer[(address - EMU_SHARED_BASE) / EMU_UNIT];
  if (writer) {
    emu_fail("wgmma reads %s at offset %u, which thread %d wrote and has not made visible by a wait and "
             "fence.proxy.async",
             which, address - EMU_SHARED_BASE, writer - 1);
  }
  return (const uint16_t *)emu_shared_at(address);
}

/* rows x 16, k along the columns: as `to[k][row]`, or as `to[row][k]`. */
static void read_k_major(const operand &o, int rows, const char *which, const float *table, float *to, int row_step,
                         int k_step) {
  for (int row = 0; row < rows; row++) {
    for (int half = 0; half < 2; half++) {
      const uint16_t *chunk =
          chunk_at(o.start + (uint32_t)(row / 8) * o.stride + (uint32_t)(row % 8 * 128 + half * 16), which);
      for (int e = 0; e < 8; e++) to[row * row_step + (half * 8 + e) * k_step] = element(chunk + e, table);
    }
  }
}

/* 16 x n, n along the columns: to[k][n]. */
static void read_n_major(const operand &o, int n, const float *table, float *to) {
  for (int k = 0; k < 16; k++) {
    for (int col = 0; col < n; col += 8) {
      const uint16_t *chunk = chunk_at(o.start + (uint32_t)(col / 64) * o.leading + (uint32_t)(k / 8) * o.stride +
                                           (uint32_t)(k % 8 * 128 + col % 64 * 2),
                                       "B");
      for (int e = 0; e < 8; e++) to[k * n + col + e] = element(chunk + e, table);
    }
  }
}

/* The operands are read now: what has been overwritten since the product was issued shows. */
__attribute__((target_clones("arch=x86-64-v3", "default"))) static void execute(emu_product *p) {
  if (p->done) return;
  p->done = true;
  emu_now->products_waiting--;
  const int n = p->acc->n;
  const float *table = p->bf16 ? nullptr : f16_table();
  float a[64][16], b[16 * 256];
  if (p->a_in_registers) {
    for (int row = 0; row < 64; row++) {
      for (int k = 0; k < 16; k++) a[row][k] = element(&p->a[row][k], table);
    }
  } else {
    read_k_major(decode(p->a_descriptor, "A"), 64, "A", table, a[0], 16, 1);
  }
  if (p->b_along_n) {
    read_n_major(decode(p->b_descriptor, "B"), n, table, b);
  } else {
    read_k_major(decode(p->b_descriptor, "B"), n, "B", table, b, 1, n);
  }
  for (int row = 0; row < 64; row++) {
    float *c = &p->acc->c[(size_t)(row * n)];
    for (int col = 0; col < n; col += 16) { /* n is a multiple of 16 */
      floats sum[2];
      if (p->accumulate) {
        sum[0] = *(const floats *)(c + col), sum[1] = *(const floats *)(c + col + 8);
      } else {
        sum[0] = sum[1] = floats{};
      }
      for (int k = 0; k < 16; k++) {
        const float *from = b + k * n + col;
        sum[0] += a[row][k] * *(const floats *)from;
        sum[1] += a[row][k] * *(const floats *)(from + 8);
      }
      *(floats *)(c + col) = sum[0], *(floats *)(c + col + 8) = sum[1];
    }
  }
}

struct wgmma_args {
  float *d;
  const uint32_t *a;
  uint64_t a_descriptor, b_descriptor;
  int n, accumulate;
  bool b_along_n, bf16;
};

static emu_accumulator *accumulator_of(emu_group *group, const void *const *all) {
  const wgmma_args *first = (const wgmma_args *)all[0];
  for (emu_accumulator *acc : group->accumulators) {
    if (acc->d[0] == first->d) return acc;
  }
  emu_accumulator *acc = new emu_accumulator;
  acc->n = first->n;
  acc->users = 0;
  acc->poisoned = emu_now->order != EMU_EARLY;
  acc->c.resize((size_t)(64 * first->n));
  for (int t = 0; t < EMU_GROUP; t++) {
    acc->d[t] = ((const wgmma_args *)all[t])->d;
    for (int r = 0; r < acc->n / 2; r++) {
      acc->c[(size_t)(row_of(t, r) * acc->n + col_of(t, r))] = acc->d[t][r];
      if (acc->poisoned) acc->d[t][r] = __uint_as_float(POISON);
    }
  }
  group->accumulators.push_back(acc);
  return acc;
}

static void wgmma_all(const void *const *all) {
  emu_group *group = emu_me().group;
  const wgmma_args *first = (const wgmma_args *)all[0];
  for (int t = 1; t < EMU_GROUP; t++) {
    const wgmma_args *other = (const wgmma_args *)all[t];
    if (other->a_descriptor != first->a_descriptor || other->b_descriptor != first->b_descriptor ||
        other->accumulate != first->accumulate || !other->a != !first->a || other->b_along_n != first->b_along_n) {
      emu_fail("wgmma: thread %d of the warpgroup has other operands than its first", t);
    }
  }
  if (!group->fenced) emu_fail("wgmma: no wgmma.fence since the last wait");
  emu_product *p = new emu_product;
  p->acc = accumulator_of(group, all);
  if (p->acc->n != first->n) emu_fail("wgmma: the accumulator is in flight with another shape");
  p->acc->users++;
  p->group = INT64_MAX;
  p->a_descriptor = first->a_descriptor, p->b_descriptor = first->b_descriptor;
  p->accumulate = first->accumulate != 0, p->bf16 = first->bf16;
  p->a_in_registers = first->a != nullptr, p->b_along_n = first->b_along_n;
  p->done = false;
  for (int t = 0; p->a_in_registers && t < EMU_GROUP; t++) {
    const uint32_t *a = ((const wgmma_args *)all[t])->a;
    const int row = t / 32 * 16 + t % 32 / 4, col = t % 4 * 2;
    memcpy(&p->a[row][col], &a[0], 4);
    memcpy(&p->a[row + 8][col], &a[1], 4);
    memcpy(&p->a[row][col + 8], &a[2], 4);
    memcpy(&p->a[row + 8][col + 8], &a[3], 4);
  }
  group->products.push_back(p);
  emu_now->products_waiting++;
  if (emu_now->order == EMU_EARLY) {
    execute(p);
    write_back(p->acc);
  }
}

void emu_wgmma(float *d, const uint32_t *a, uint64_t a_descriptor, uint64_t b_descriptor, int n, int accumulate,
               bool b_along_n, bool bf16) {
  const wgmma_args args = {d, a, a_descriptor, b_descriptor, n, accumulate, b_along_n, bf16};
  emu_meet_group("wgmma.mma_async", &args, wgmma_all);
}

void emu_wgmma_fence(void) {
  emu_meet_group("wgmma.fence", nullptr, [](const void *const *) { emu_me().group->fenced = true; });
}

void emu_wgmma_commit(void) {
  emu_meet_group("wgmma.commit_group", nullptr, [](const void *const *) {
    emu_group *group = emu_me().group;
    group->product_groups++;
    for (size_t i = group->products.size(); i-- > 0 && group->products[i]->group == INT64_MAX;) {
      group->products[i]->group = group->product_groups;
    }
  });
}

static void release(emu_group *group, emu_accumulator *acc) {
  if (--acc->users > 0) return;
  if (acc->poisoned) write_back(acc);
  for (size_t i = 0; i < group->accumulators.size(); i++) {
    if (group->accumulators[i] == acc) group->accumulators.erase(group->accumulators.begin() + (ptrdiff_t)i);
  }
  delete acc;
}

void emu_wgmma_wait(int newest_groups) {
  struct args {
    int newest_groups;
  };
  const args mine = {newest_groups};
  if (emu_me().id % EMU_GROUP == 0) emu_idle(); /* the others wait for it */
  emu_meet_group("wgmma.wait_group", &mine, [](const void *const *all) {
    emu_group *group = emu_me().group;
    const int64_t last = group->product_groups - ((const args *)all[0])->newest_groups;
    group->fenced = false;
    while (!group->products.empty() && group->products.front()->group <= last) {
      emu_product *p = group->products.front();
      group->products.pop_front();
      execute(p);
      release(group, p->acc);
      delete p;
    }
  });
}

bool emu_product_happens() {
  if (emu_now->order == EMU_LATE || !emu_now->products_waiting) return false;
  const int groups = (emu_now->warps + 3) / 4, first = (int)emu_draw((uint32_t)groups);
  for (int g = 0; g < groups; g++) {
    for (emu_product *p : emu_now->group[(first + g) % groups].products) {
      if (p->done) continue;
      execute(p);
      return true;
    }
  }
  return false;
}

void emu_end_products() {
  for (int g = 0; g < (emu_now->warps + 3) / 4; g++) {
    if (!emu_now->group[g].products.empty()) emu_fail("warpgroup %d ends with wgmma in flight", g);
  }
}
