/* Both products by AMX tiles of 16 rows of 64 bytes: TDPBF16PS adds 16 rows by 32 elements of A,
 * times 32 elements by 16 columns of B, to 16 x 16 sums. Four sums at once, 32 rows by 32
 * columns, so that each tile that is loaded is used twice:
 *
 *     tiles 0 1     4     6 7
 *           2 3  =  5  *
 *
 * A panel of VL columns is a stack of B tiles as it stands. */
#ifndef EA_CPU_KERNELS_PRODUCTS_H
#define EA_CPU_KERNELS_PRODUCTS_H

#include "cpu/kernels/rows.h"

enum { TILE_ROWS = 16, TILE_UNITS = 16, TILE_FLOATS = 256, TILE_BYTES_A_ROW = 64 };

/* Rows that a product can make do with, keys that it takes at once. */
enum { ROW_STEP = TILE_ROWS, KEY_STEP = 32 };

/* Queries are packed as tiles of A: [rows / 16][head_units / 16][16][16]. */
EA_INLINE void query_store(float *q, const block_dims *dims, int32_t row, int32_t unit, vf x) {
  const size_t tile = (size_t)(row / TILE_ROWS) * (size_t)(dims->head_units / TILE_UNITS) + (size_t)(unit / TILE_UNITS);
  vf_store(q + tile * TILE_FLOATS + (size_t)(row % TILE_ROWS) * TILE_UNITS, x);
}

/* s[0 .. 32)[n .. n+32): A from a0 and a1, B from b0 and b1, all of them tiles side by side. */
static inline void scores_32x32(float *s, const float *a0, const float *a1, const float *b0, const float *b1,
                                int32_t tiles) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int32_t i = 0; i < tiles; ++i) {
    const size_t at = (size_t)i * TILE_FLOATS;
    _tile_loadd(4, a0 + at, TILE_BYTES_A_ROW);
    _tile_loadd(6, b0 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a1 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, s, TILE_N * sizeof(float));
  _tile_stored(1, s + TILE_UNITS, TILE_N * sizeof(float));
  _tile_stored(2, s + TILE_ROWS * TILE_N, TILE_N * sizeof(float));
  _tile_stored(3, s + TILE_ROWS * TILE_N + TILE_UNITS, TILE_N * sizeof(float));
}

/* The same for 16 rows. */
static inline void scores_16x32(float *s, const float *a0, const float *b0, const float *b1, int32_t tiles) {
  _tile_zero(0);
  _tile_zero(1);
  for (int32_t i = 0; i < tiles; ++i) {
    const size_t at = (size_t)i * TILE_FLOATS;
    _tile_loadd(4, a0 + at, TILE_BYTES_A_ROW);
    _tile_loadd(6, b0 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, s, TILE_N * sizeof(float));
  _tile_stored(1, s + TILE_UNITS, TILE_N * sizeof(float));
}

/* gcc's _tile_loadd does not say that it reads memory: what was stored before is to be there. */
static inline void finish_stores(void) {
  __asm__ volatile("" ::: "memory");
}

/* s[0 .. rows)[first .. end) for the rows from r0 on; whole groups of 16 rows. */
static void scores_product(float *s, const float *q, const float *k, const block_dims *dims, int32_t r0, int32_t rows,
                           int32_t first, int32_t end) {
  const int32_t tiles = dims->head_units / TILE_UNITS;
  const float *a0 = q + (size_t)r0 * (size_t)dims->head_units;
  const float *a1 = a0 + (size_t)tiles * TILE_FLOATS;
  finish_stores();
  for (int32_t n = first; n < end; n += KEY_STEP) {
    const float *b0 = k + (size_t)(n / VL) * dims->key_panel;
    const float *b1 = b0 + dims->key_panel;
    if (rows > TILE_ROWS) {
      scores_32x32(s + n, a0, a1, b0, b1, tiles);
    } else {
      scores_16x32(s + n, a0, b0, b1, tiles);
    }
  }
}

/* o[0 .. 32)[0 .. 32) += p * v over `steps` tiles of keys; o's rows are `width` floats apart. */
static inline void values_32x32(float *o, size_t width, const float *p, const float *b0, const float *b1,
                                int32_t steps) {
  const size_t stride = width * sizeof(float);
  const size_t p_stride = TILE_N / UNIT * sizeof(float);
  _tile_loadd(0, o, stride);
  _tile_loadd(1, o + TILE_UNITS, stride);
  _tile_loadd(2, o + TILE_ROWS * width, stride);
  _tile_loadd(3, o + TILE_ROWS * width + TILE_UNITS, stride);
  for (int32_t i = 0; i < steps; ++i) {
    const size_t at = (size_t)i * TILE_FLOATS;
    _tile_loadd(4, p + i * TILE_UNITS, p_stride);
    _tile_loadd(6, b0 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1 + at, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, p + TILE_ROWS * TILE_N / UNIT + i * TILE_UNITS, p_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, o, stride);
  _tile_stored(1, o + TILE_UNITS, stride);
  _tile_stored(2, o + TILE_ROWS * width, stride);
  _tile_stored(3, o + TILE_ROWS * width + TILE_UNITS, stride);
}

/* The same for 16 columns, and 16 or 32 rows. */
static inline void values_32x16(float *o, size_t width, const float *p, const float *b0, int32_t steps, bool both) {
  const size_t stride = width * sizeof(float);
  const size_t p_stride = TILE_N / UNIT * sizeof(float);
  _tile_loadd(0, o, stride);
  if (both) _tile_loadd(2, o + TILE_ROWS * width, stride);
  for (int32_t i = 0; i < steps; ++i) {
    _tile_loadd(4, p + i * TILE_UNITS, p_stride);
    _tile_loadd(6, b0 + (size_t)i * TILE_FLOATS, TILE_BYTES_A_ROW);
    _tile_dpbf16ps(0, 4, 6);
    if (both) {
      _tile_loadd(5, p + TILE_ROWS * TILE_N / UNIT + i * TILE_UNITS, p_stride);
      _tile_dpbf16ps(2, 5, 6);
    }
  }
  _tile_stored(0, o, stride);
  if (both) _tile_stored(2, o + TILE_ROWS * width, stride);
}

EA_INLINE void rescale_rows(float *o, const float *alpha, size_t width, int32_t rows) {
  for (int32_t r = 0; r < rows; ++r, o += width) {
    if (alpha[r] == 1.0f) continue;
    const vf factor = vf_set1(alpha[r]);
    for (size_t d = 0; d < width; d += VL) vf_store(o + d, vf_mul(vf_load(o + d), factor));
  }
}

/* o = alpha * o + p * v over the keys [first, end), for the rows from r0 on. */
static void values_product(float *o, const float *p, const float *v, const float *alpha, const block_dims *dims,
                           int32_t r0, int32_t rows, int32_t first, int32_t end) {
  const size_t width = (size_t)dims->value_width;
  const int32_t steps = (end - first) / KEY_STEP;
  const bool both = rows > TILE_ROWS;
  o += (size_t)r0 * width;
  p += first / UNIT;
  v += (size_t)(first / UNIT) * VL;
  rescale_rows(o, alpha, width, rows);
  finish_stores();
  size_t d = 0;
  for (; both && d + 2 * VL <= width; d += 2 * VL, v += 2 * dims->value_panel) {
    values_32x32(o + d, width, p, v, v + dims->value_panel, steps);
  }
  for (; d < width; d += VL, v += dims->value_panel) values_32x16(o + d, width, p, v, steps, both);
}

/* Layout: Intel SDM volume 1, "TILECFG": palette, start row, 14 reserved bytes, bytes a row of
 * 16 tiles as 16-bit numbers, rows of 16 tiles as bytes. */
typedef struct tile_config {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t bytes_a_row[16];
  uint8_t rows[16];
} tile_config;

/* Constant data, not a local: gcc's _tile_loadconfig says that it reads 8 bytes, and the stores
 * of the other 56 would be dropped as dead. */
#define EIGHT_TIMES(x)                                                                                                 \
  { x, x, x, x, x, x, x, x }
static const _Alignas(64) tile_config full_tiles = {
    .palette = 1, .bytes_a_row = EIGHT_TIMES(TILE_BYTES_A_ROW), .rows = EIGHT_TIMES(TILE_ROWS)};

static inline void amx_enter(void *state) {
  bf16_enter(state);
  _tile_loadconfig(&full_tiles);
}
static inline void amx_leave(void *state) {
  _tile_release();
  bf16_leave(state);
}

#endif
