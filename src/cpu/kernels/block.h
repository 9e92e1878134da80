/* One block of query rows against all the keys that it sees: the loop that every kernel of the
 * CPU shares. Included once a kernel, after its vector header, its products header and
 *
 *     TILE_M, TILE_N   most rows a block, keys a tile
 *     STRIP            rows that go through scores, softmax and values together
 *
 * For every tile of keys, at multiples of TILE_N from position 0: the keys and values are
 * gathered, converted and packed once; then, strip by strip, scores into S, S into weights P,
 * and P times the values onto O. A strip leaves out the keys that none of its rows sees.
 *
 * Why a row's bits depend on nothing but what it sees: a score is one chain of products in the
 * order of the head dimension; sums over keys run in the order of positions within tiles that
 * lie at fixed positions, lane l of a vector taking the keys at l modulo VL; a key that a row
 * does not see has the weight 0 exactly, and adding 0 times a finite value, or leaving it out,
 * gives the same sum (but for the sign of zero, which write_row settles). The same holds for a
 * whole tile: the maximum stays, its factor is exactly 1.
 *
 * Packed data is in units of 32 bits, one f32 or a pair of bf16, moved around as floats.
 * Panels: VL columns side by side, a unit of each column in turn. Keys are the columns of the
 * score product, head_dim_v those of the value product. */
#ifndef EA_CPU_KERNELS_BLOCK_H
#define EA_CPU_KERNELS_BLOCK_H

#include "common/tanh.h"
#include "cpu/kernels/kernel.h"

/* The keys [first, end) of a tile are loaded, counted from the tile's own first key j0; what is
 * before split belongs to the prefix. Rows that are not loaded are zero. */
typedef struct tile {
  int32_t j0;
  int32_t first;
  int32_t end;
  int32_t split;
  bool has_bad_values; /* some rows may not see a key whose value holds an Inf or a NaN */
  const uint8_t *keys[TILE_N];
  const uint8_t *values[TILE_N];
} tile;

typedef struct block {
  const ea_call *call;
  const ea_cpu_item *item;
  int32_t rows;
  block_dims dims;
  float to_log2;   /* from an adjusted score to an exponent of 2, without the temperature */
  float *q;        /* packed by the products header */
  float *k;        /* panels of dims.head_units units */
  float *v;        /* panels of TILE_N keys */
  float *s;        /* [STRIP][TILE_N] scores */
  float *p;        /* [STRIP][TILE_N] weights in the product's element */
  float *o;        /* [rows][dims.value_width] */
  float *row_sum;  /* [rows][VL]: sums of weights, a lane each */
  float *row_max;  /* the score that exponents are taken relative to */
  float *row_log2; /* to_log2 times the row's temperature */
  float *alpha;    /* [STRIP]: factor of what was summed before this tile */
  float *peak;     /* [STRIP]: greatest score in this tile, then row_max, or 0 where that is -Inf */
  float *stage;    /* [VL] rows of mixed type, converted */
  int32_t *seen;   /* [TILE_N]: the custom mask of one query, a word a key */
} block;

/* A maximum is left as it is until a score passes it by this much (as an exponent of 2): weights
 * then reach 2^8, and the sums seldom need rescaling. */
#define EA_MAX_SLACK 8.0f

/* Where there is an fma, an exponent is score * row_log2 - row_max * row_log2, the second product rounded, while that
 * rounding is small beside 1; what is summed is relative to the rounded product then (shift_error). Above this limit
 * (at 2^32 the rounding is up to 256: Inf, or nothing, comes out) it is (score - row_max) * row_log2. */
#define FUSED_LIMIT (HAS_FMA ? 0x1p14f : 0.0f)

#define EA_LOG2_E 1.44269504088896340736
#define EA_LN_2 0.69314718055994530942

_Static_assert(TILE_M % STRIP == 0 && STRIP % ROW_STEP == 0 && STRIP % VL == 0, "rows");
_Static_assert(TILE_N % KEY_STEP == 0 && KEY_STEP % (2 * VL) == 0, "keys");

/* ---- scratch ------------------------------------------------------------------------- */

static float *take_floats(uint8_t **at, size_t count) {
  float *taken = (float *)(void *)*at;
  *at += (count * sizeof(float) + 63) / 64 * 64;
  return taken;
}

static block_dims dims_of(int32_t head_dim, int32_t head_dim_v) {
  block_dims dims = {.head_dim = head_dim, .head_dim_v = head_dim_v};
  dims.head_units = round_up((head_dim + UNIT - 1) / UNIT, VL);
  dims.value_width = round_up(head_dim_v, VL);
  /* 64 bytes more than the data, so that panels do not start in one and the same cache set */
  dims.key_panel = (size_t)dims.head_units * VL + 16;
  dims.value_panel = (size_t)TILE_N / UNIT * VL + 16;
  return dims;
}

/* Lays a block's arrays out from base on; returns the bytes they take. */
static size_t lay_out(block *b, block_dims dims, void *base) {
  uint8_t *at = base;
  b->dims = dims;
  b->q = take_floats(&at, (size_t)TILE_M * (size_t)dims.head_units);
  b->k = take_floats(&at, TILE_N / VL * dims.key_panel);
  b->v = take_floats(&at, (size_t)(dims.value_width / VL) * dims.value_panel);
  b->s = take_floats(&at, (size_t)STRIP * TILE_N);
  b->p = UNIT == 1 ? b->s : take_floats(&at, (size_t)STRIP * TILE_N / UNIT);
  b->o = take_floats(&at, (size_t)TILE_M * (size_t)dims.value_width);
  b->row_sum = take_floats(&at, (size_t)TILE_M * VL);
  b->row_max = take_floats(&at, TILE_M);
  b->row_log2 = take_floats(&at, TILE_M);
  b->alpha = take_floats(&at, (size_t)round_up(STRIP, VL));
  b->peak = take_floats(&at, (size_t)round_up(STRIP, VL));
  b->stage = take_floats(&at, (size_t)VL * (size_t)dims.head_units);
  b->seen = (int32_t *)take_floats(&at, TILE_N);
  return (size_t)(at - (uint8_t *)base);
}

static size_t scratch_bytes(int32_t head_dim, int32_t head_dim_v) {
  _Alignas(64) uint8_t origin[1];
  block b;
  return lay_out(&b, dims_of(head_dim, head_dim_v), origin);
}

/* ---- loading and packing ------------------------------------------------------------- */

EA_INLINE void pack_query_row(const block *b, int32_t row, const uint8_t *from, ea_dtype dtype) {
  for (int32_t unit = 0; unit < b->dims.head_units; unit += VL) {
    query_store(b->q, &b->dims, row, unit, load_units(from, unit, b->dims.head_dim, dtype));
  }
}

static void load_queries(const block *b) {
  const ea_call *call = b->call;
  const int64_t row_first = b->item->row_first;
  memset(b->q, 0, (size_t)round_up(b->rows, ROW_STEP) * (size_t)b->dims.head_units * sizeof(float));
  for (int32_t r = 0; r < b->rows; ++r) {
    const int64_t token = (int64_t)call->qo_indptr[b->item->seq] + ea_row_query(row_first + r, call->group);
    const int64_t head = (int64_t)b->item->kv_head * call->group + (row_first + r) % call->group;
    const int64_t offset = token * call->q.token_stride + head * call->q.head_stride;
    const uint8_t *from = (const uint8_t *)call->q.data + offset * (int64_t)bytes_of(call->dtype);
    EA_WITH_DTYPE(call->dtype, pack_query_row, b, r, from);
  }
}

static const uint8_t zero_row[EA_MAX_HEAD_DIM * sizeof(float)];

/* Where the tile's keys and values are. */
static void find_rows(const block *b, tile *t) {
  const ea_call *call = b->call;
  const int64_t cache_bytes = (int64_t)bytes_of(call->cache_dtype);
  const int64_t bytes = (int64_t)bytes_of(call->dtype);
  const int64_t head = b->item->kv_head;
  const int64_t slots = (int64_t)call->kv_indptr[b->item->seq] + t->j0;
  const int64_t tokens = (int64_t)call->qo_indptr[b->item->seq] + t->j0 - b->item->view.prefix;
  for (int32_t n = 0; n < TILE_N; ++n) {
    t->keys[n] = zero_row;
    t->values[n] = zero_row;
  }
  for (int32_t n = t->first; n < ea_min_i32(t->split, t->end); ++n) {
    const int64_t slot = ea_load_index(call->kv_indices, call->index_dtype, slots + n);
    t->keys[n] = (const uint8_t *)call->k_cache.data +
                 ea_slot_offset(&call->k_cache, slot, call->page_size, (int32_t)head) * cache_bytes;
    t->values[n] = (const uint8_t *)call->v_cache.data +
                   ea_slot_offset(&call->v_cache, slot, call->page_size, (int32_t)head) * cache_bytes;
  }
  for (int32_t n = ea_max_i32(t->split, t->first); n < t->end; ++n) {
    t->keys[n] =
        (const uint8_t *)call->k.data + ((tokens + n) * call->k.token_stride + head * call->k.head_stride) * bytes;
    t->values[n] =
        (const uint8_t *)call->v.data + ((tokens + n) * call->v.token_stride + head * call->v.head_stride) * bytes;
  }
}

static ea_dtype dtype_at(const block *b, const tile *t, int32_t n) {
  return n < t->split ? b->call->cache_dtype : b->call->dtype;
}

/* VL keys from rows of one type into a panel, VL x VL units at a time. */
EA_INLINE void pack_key_panel(float *panel, const uint8_t *const *rows, int32_t units, int32_t dim, ea_dtype dtype) {
  const int32_t whole = dim / (VL * UNIT) * VL; /* units before the rows' last, partial vectors */
  vf x[VL];
  for (int32_t unit = 0; unit < whole; unit += VL) {
    const size_t at = (size_t)unit * UNIT * bytes_of(dtype);
#pragma GCC unroll 16
    for (int l = 0; l < VL; ++l) x[l] = units_load_as(rows[l] + at, dtype);
    vf_transpose(x);
#pragma GCC unroll 16
    for (int l = 0; l < VL; ++l) vf_store(panel + (size_t)(unit + l) * VL, x[l]);
  }
  if (whole == units) return;
  for (int l = 0; l < VL; ++l) x[l] = load_units(rows[l], whole, dim, dtype);
  vf_transpose(x);
  for (int l = 0; l < VL; ++l) vf_store(panel + (size_t)(whole + l) * VL, x[l]);
}

EA_INLINE void stage_row(float *to, const uint8_t *row, int32_t units, int32_t dim, ea_dtype dtype) {
  for (int32_t unit = 0; unit < units; unit += VL) vf_store(to + unit, load_units(row, unit, dim, dtype));
}

static void pack_keys(const block *b, const tile *t) {
  const int32_t units = b->dims.head_units;
  const int32_t end = round_up(t->end, KEY_STEP);
  for (int32_t n = t->first / KEY_STEP * KEY_STEP; n < end; n += VL) {
    float *panel = b->k + (size_t)(n / VL) * b->dims.key_panel;
    const uint8_t *const *rows = t->keys + n;
    const ea_dtype dtype = dtype_at(b, t, n);
    if (dtype_at(b, t, n + VL - 1) == dtype) {
      EA_WITH_DTYPE(dtype, pack_key_panel, panel, rows, units, b->dims.head_dim);
      continue;
    }
    const uint8_t *staged[VL];
    for (int l = 0; l < VL; ++l) {
      float *to = b->stage + (size_t)l * (size_t)units;
      EA_WITH_DTYPE(dtype_at(b, t, n + l), stage_row, to, rows[l], units, b->dims.head_dim);
      staged[l] = (const uint8_t *)to;
    }
    pack_key_panel(panel, staged, units, units * UNIT, UNIT_DTYPE);
  }
}

static void pack_values(const block *b, const tile *t) {
  const int32_t end = round_up(t->end, KEY_STEP);
  for (int32_t n = t->first / KEY_STEP * KEY_STEP; n < end; n += UNIT) {
    float *to = b->v + (size_t)(n / UNIT) * VL;
    values_pack(to, &b->dims, t->values + n, dtype_at(b, t, n), dtype_at(b, t, n + UNIT - 1));
  }
}

/* Zero times Inf is NaN, so a weight of zero does not keep a row that does not see a key from
 * its Inf or NaN. Takes such elements out of the packed values; add_bad_values brings them to
 * the rows that do see them. Returns whether there were any. */
static bool take_bad_values_out(const block *b, const tile *t) {
  const int32_t first = t->first / UNIT;
  const int32_t end = (t->end + UNIT - 1) / UNIT;
  const size_t count = (size_t)(end - first) * VL;
  bool found = false;
  for (int32_t c = 0; c < b->dims.value_width / VL; ++c) {
    float *units = b->v + (size_t)c * b->dims.value_panel + (size_t)first * VL;
    if (units_all_finite(units, count)) continue;
    units_keep_finite(units, count);
    found = true;
  }
  return found;
}

/* The tile at j0 of a block that sees `keys`: where its rows are. Nothing is read from them. */
static void aim_tile(const block *b, tile *t, ea_key_range keys, int32_t j0) {
  t->j0 = j0;
  t->first = ea_max_i32(keys.first - j0, 0);
  t->end = ea_min_i32(keys.end - j0, TILE_N);
  t->split = ea_max_i32(ea_min_i32(b->item->view.prefix - j0, TILE_N), 0);
  find_rows(b, t);
}

EA_INLINE void fetch_row(const uint8_t *row, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/* Asks for share `part` of `parts` of a tile's rows ahead of their use: in scattered slots, no
 * processor guesses them. (Inlined, since gcc takes a function that only prefetches for one
 * without effect and drops its calls.) */
EA_INLINE void fetch_share(const block *b, const tile *t, int32_t part, int32_t parts) {
  const int32_t count = t->end - t->first;
  const int32_t end = t->first + count * (part + 1) / parts;
  for (int32_t n = t->first + count * part / parts; n < end; ++n) {
    const size_t bytes = bytes_of(dtype_at(b, t, n));
    fetch_row(t->keys[n], (size_t)b->dims.head_dim * bytes);
    if (!b->call->shared_kv) fetch_row(t->values[n], (size_t)b->dims.head_dim_v * bytes);
  }
}

/* ---- scores to weights --------------------------------------------------------------- */

/* cap * tanh(s / cap), and just s where the cap is far away. */
EA_INLINE vf vf_capped(vf s, vf cap, vf inv_cap) {
  const vf y = vf_mul(s, inv_cap);
  const vf size = vf_abs(y);
  const vf square = vf_mul(y, y);
  const vf small = vf_fma(vf_mul(s, square), EA_TANH_POLY(square, vf_fma, vf_set1), s);
  /* from 10 on tanh is 1 in f32; in this order of operands NaN gets through */
  const vf bounded = vf_sub(vf_set1(0.0f), vf_max(vf_set1(-10.0f), vf_sub(vf_set1(0.0f), size)));
  const vf e = vf_exp2(vf_mul(bounded, vf_set1((float)(2.0 * EA_LOG2_E))));
  const vf large = vf_mul(cap, vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f)))));
  return vf_select(vm_gt(vf_set1(EA_TANH_SMALL), size), small, vf_copysign(large, y));
}

/* The keys [first, end) of a strip in a tile, counted from the tile's first key. */
typedef struct span {
  int32_t first;
  int32_t end;
} span;

static void scale_prefix(const block *b, const tile *t, float *s, span keys) {
  const vf scale = vf_set1((float)b->call->k_scale);
  for (int32_t n = keys.first; n < ea_min_i32(keys.end, t->split); n += VL) {
    const vf x = vf_load(s + n);
    vf_store(s + n, vf_select(vm_between(0, t->split - n), vf_mul(x, scale), x));
  }
}

static void cap_scores(const block *b, float *s, span keys) {
  const vf scale = vf_set1((float)b->call->softmax_scale);
  const vf cap = vf_set1((float)b->call->logit_cap);
  const vf inv_cap = vf_set1((float)(1.0 / b->call->logit_cap));
  for (int32_t n = keys.first; n < keys.end; n += VL) {
    vf_store(s + n, vf_capped(vf_mul(vf_load(s + n), scale), cap, inv_cap));
  }
}

/* Which of the keys that query i may see at all (`in`) its custom mask lets through. */
static void read_custom_mask(const block *b, const tile *t, int32_t i, span in) {
  const ea_view *view = &b->item->view;
  const int32_t masked = view->mask_skips_prefix ? ea_max_i32(in.first, ea_min_i32(t->split, in.end)) : in.first;
  const uint8_t *mask = view->mask + (int64_t)i * view->mask_stride + t->j0;
  for (int32_t n = in.first; n < masked; ++n) b->seen[n] = 1;
  for (int32_t n = masked; n < in.end; ++n) b->seen[n] = mask[n];
}

/* What the queries [i0, i1) can see of a tile; nothing when first >= end. */
static span seen_span(const block *b, const tile *t, int32_t i0, int32_t i1) {
  const ea_key_range range = ea_visible_keys(&b->item->view, i0, i1);
  const span in = {ea_max_i32(range.first - t->j0, 0), ea_min_i32(range.end - t->j0, TILE_N)};
  return in;
}

/* Scores of the keys that a row does not see become -Inf, whatever they are. */
static void mask_strip(const block *b, const tile *t, int32_t r0, int32_t rows, span keys) {
  const ea_view *view = &b->item->view;
  const vf hidden = vf_set1(-INFINITY);
  int32_t last = -1;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t i = ea_row_query(b->item->row_first + r0 + r, b->call->group);
    const span in = seen_span(b, t, i, i + 1);
    float *s = b->s + (size_t)r * TILE_N;
    if (view->mask && i != last) read_custom_mask(b, t, i, in);
    last = i;
    for (int32_t n = keys.first; n < keys.end; n += VL) {
      vf x = vf_load(s + n);
      if (view->mask) x = vf_select(vm_load(b->seen + n), x, hidden);
      vf_store(s + n, vf_select(vm_between(in.first - n, in.end - n), x, hidden));
    }
  }
}

static void adjust_strip(const block *b, const tile *t, int32_t rows, span keys) {
  const bool scaled = b->call->k_scale != 1.0 && t->split > 0;
  const bool capped = b->call->logit_cap > 0.0;
  if (!scaled && !capped) return;
  for (int32_t r = 0; r < rows; ++r) {
    float *s = b->s + (size_t)r * TILE_N;
    if (scaled) scale_prefix(b, t, s, keys);
    if (capped) cap_scores(b, s, keys);
  }
}

static void find_peaks(const block *b, int32_t rows, span keys) {
  for (int32_t r = 0; r < rows; ++r) {
    const float *s = b->s + (size_t)r * TILE_N;
    vf even = vf_set1(-INFINITY);
    vf odd = even;
    for (int32_t n = keys.first; n < keys.end; n += 2 * VL) {
      even = vf_max(even, vf_load(s + n));
      odd = vf_max(odd, vf_load(s + n + VL));
    }
    b->peak[r] = vf_hmax(vf_max(even, odd));
  }
}

/* By how much (as an exponent of 2) what was summed is relative to more than max * log2. */
EA_INLINE vf shift_error(vf max, vf log2) {
  const vf shift = vf_mul(max, log2);
  const vf error = vf_fma(vf_sub(vf_set1(0.0f), max), log2, shift);
  return vf_select(vm_gt(vf_set1(FUSED_LIMIT), vf_abs(shift)), error, vf_set1(0.0f));
}

/* Moves the maxima where a peak asks for it, and what was summed before along with them. Peaks
 * become the base that a row's exponents are taken from. */
static void move_maxima(const block *b, int32_t r0, int32_t rows) {
  const vf none = vf_set1(-INFINITY), zero = vf_set1(0.0f);
  for (int32_t r = 0; r < rows; r += VL) {
    const vf before = vf_load(b->row_max + r0 + r), peak = vf_load(b->peak + r), log2 = vf_load(b->row_log2 + r0 + r);
    const vm grown = vm_gt(vf_mul(vf_sub(peak, before), log2), vf_set1(EA_MAX_SLACK));
    const vf max = vf_select(grown, peak, before);
    const vf base = vf_select(vm_gt(max, none), max, zero); /* nothing seen so far */
    const vf error = vf_sub(shift_error(before, log2), shift_error(base, log2));
    const vf moved = vf_exp2(vf_fma(vf_sub(before, base), log2, error));
    vf_store(b->alpha + r, moved);
    vf_store(b->peak + r, base);
    vf_store(b->row_max + r0 + r, max);
  }
}

EA_INLINE vf weight(vf score, vf factor, vf base, bool fused) {
  return vf_exp2(fused ? vf_fma(score, factor, base) : vf_mul(vf_add(score, base), factor));
}

EA_INLINE void weigh_row_as(const block *b, const tile *t, int32_t r0, int32_t r, span keys, bool scaled, bool fused) {
  const float *s = b->s + (size_t)r * TILE_N;
  const vf factor = vf_set1(b->row_log2[r0 + r]);
  const vf base = vf_set1(fused ? -(b->peak[r] * b->row_log2[r0 + r]) : -b->peak[r]);
  const vf scale = vf_set1((float)b->call->v_scale);
  vf even = vf_set1(0.0f);
  vf odd = even;
  for (int32_t n = keys.first; n < keys.end; n += 2 * VL) {
    vf x = weight(vf_load(s + n), factor, base, fused);
    vf y = weight(vf_load(s + n + VL), factor, base, fused);
    even = vf_add(even, x);
    odd = vf_add(odd, y);
    if (scaled) {
      x = vf_select(vm_between(0, t->split - n), vf_mul(x, scale), x);
      y = vf_select(vm_between(0, t->split - n - VL), vf_mul(y, scale), y);
    }
    weights_store(b->p + (size_t)r * TILE_N / UNIT + n / UNIT, x, y);
  }
  float *sum = b->row_sum + (size_t)(r0 + r) * VL;
  vf_store(sum, vf_fma(vf_load(sum), vf_set1(b->alpha[r]), vf_add(even, odd)));
}

EA_INLINE void weigh_row(const block *b, const tile *t, int32_t r0, int32_t r, span keys, bool scaled) {
  const float shift = b->peak[r] * b->row_log2[r0 + r];
  if (shift < FUSED_LIMIT && -shift < FUSED_LIMIT) {
    weigh_row_as(b, t, r0, r, keys, scaled, true);
  } else {
    weigh_row_as(b, t, r0, r, keys, scaled, false);
  }
}

static void weigh_strip(const block *b, const tile *t, int32_t r0, int32_t rows, span keys) {
  find_peaks(b, rows, keys);
  move_maxima(b, r0, rows);
  if (b->call->v_scale != 1.0 && t->split > 0) {
    for (int32_t r = 0; r < rows; ++r) weigh_row(b, t, r0, r, keys, true);
  } else {
    for (int32_t r = 0; r < rows; ++r) weigh_row(b, t, r0, r, keys, false);
  }
}

/* ---- the loop ------------------------------------------------------------------------ */

/* Gives the elements that take_bad_values_out removed to the rows that see them. */
static void add_bad_values(const block *b, const tile *t, int32_t r0, int32_t rows) {
  const ea_view *view = &b->item->view;
  for (int32_t n = t->first; n < t->end; ++n) {
    const ea_dtype dtype = dtype_at(b, t, n);
    for (int32_t d = 0; d < b->dims.head_dim_v; ++d) {
      const float value = (float)ea_load_double(t->values[n], dtype, d);
      if (isfinite(value)) continue;
      for (int32_t r = 0; r < rows; ++r) {
        const int32_t i = ea_row_query(b->item->row_first + r0 + r, b->call->group);
        if (!ea_visible(view, i, t->j0 + n)) continue;
        b->o[(size_t)(r0 + r) * (size_t)b->dims.value_width + (size_t)d] += weight_at(b->p, r, n) * value;
      }
    }
  }
}

static void attend_strip(const block *b, const tile *t, int32_t r0, int32_t rows) {
  const ea_view *view = &b->item->view;
  const int32_t i0 = ea_row_query(b->item->row_first + r0, b->call->group);
  const int32_t i1 = ea_row_query(b->item->row_first + r0 + rows - 1, b->call->group) + 1;
  const bool masked = ea_tile_needs_mask(view, i0, i1, t->j0, t->j0 + TILE_N);
  span keys = {0, TILE_N};
  if (masked) {
    keys = seen_span(b, t, i0, i1);
    if (keys.first >= keys.end) return;
    keys.first = keys.first / KEY_STEP * KEY_STEP;
    keys.end = round_up(keys.end, KEY_STEP);
  }
  scores_product(b->s, b->q, b->k, &b->dims, r0, rows, keys.first, keys.end);
  adjust_strip(b, t, rows, keys);
  if (masked) mask_strip(b, t, r0, rows, keys);
  weigh_strip(b, t, r0, rows, keys);
  values_product(b->o, b->p, b->v, b->alpha, &b->dims, r0, rows, keys.first, keys.end);
  if (t->has_bad_values) add_bad_values(b, t, r0, rows);
}

static void start_rows(const block *b) {
  const ea_call *call = b->call;
  const bool warm = call->xai_temperature_len > 0;
  const float inv_log2_len = warm ? (float)(1.0 / log2((double)call->xai_temperature_len)) : 0.0f;
  const int32_t padded = round_up(b->rows, STRIP);
  memset(b->o, 0, (size_t)padded * (size_t)b->dims.value_width * sizeof(float));
  memset(b->row_sum, 0, (size_t)padded * VL * sizeof(float));
  memset(b->alpha, 0, (size_t)round_up(STRIP, VL) * sizeof(float));
  for (int32_t r = 0; r < padded; ++r) {
    const int32_t position = b->item->view.prefix + ea_row_query(b->item->row_first + r, call->group);
    const float t =
        warm ? ea_temperature(position, call->xai_temperature_len, log2f((float)position), inv_log2_len) : 1.0f;
    b->row_max[r] = -INFINITY;
    b->row_log2[r] = b->to_log2 * t;
  }
}

EA_INLINE void store_row(uint8_t *out, const float *o, float factor, int32_t dim, ea_dtype dtype) {
  for (int32_t d = 0; d < dim; d += VL) {
    /* + 0: a tile without a trace may still have turned a negative zero into a positive one */
    const vf x = vf_add(vf_mul(vf_load(o + d), vf_set1(factor)), vf_set1(0.0f));
    uint8_t *to = out + (size_t)d * bytes_of(dtype);
    if (d + VL <= dim) {
      vf_store_as(to, dtype, x);
    } else {
      uint8_t tail[VL * sizeof(float)];
      vf_store_as(tail, dtype, x);
      memcpy(to, tail, (size_t)(dim - d) * bytes_of(dtype));
    }
  }
}

/* Whether row r sees any key: what tells a row of nothing from one of scores that are all -Inf. */
static bool sees_any(const block *b, int32_t r) {
  const int32_t i = ea_row_query(b->item->row_first + r, b->call->group);
  const ea_key_range range = ea_visible_keys(&b->item->view, i, i + 1);
  for (int32_t j = range.first; j < range.end; ++j) {
    if (ea_visible(&b->item->view, i, j)) return true;
  }
  return false;
}

/* A row's denominator is sum * 2^max; what was summed onto o is to be multiplied by factor. */
typedef struct ending {
  float factor;
  float lse;
} ending;

/* A row's maximum as an exponent of 2, to more digits than a large one has in f32: it may be near a sink. */
static double exact_max(const block *b, int32_t r) {
  const float max = b->row_max[r], shift = max * b->row_log2[r];
  if (fabsf(shift) < FUSED_LIMIT) return (double)shift;
  const ea_call *call = b->call;
  const int32_t position = b->item->view.prefix + ea_row_query(b->item->row_first + r, call->group);
  const bool warm = call->xai_temperature_len > 0 && position > call->xai_temperature_len;
  const double temperature = warm ? log2((double)position) / log2((double)call->xai_temperature_len) : 1.0;
  return (double)max * (call->logit_cap > 0.0 ? 1.0 : call->softmax_scale) * temperature * EA_LOG2_E;
}

static ending end_row(const block *b, int32_t r, int64_t head) {
  double max = exact_max(b, r);
  double sum = (double)vf_hsum(vf_load(b->row_sum + (size_t)r * VL));
  double factor = 1.0;
  if (sum == 0.0 && !sees_any(b, r)) return (ending){1.0f, -INFINITY};
  if (b->call->sinks) {
    const double sink = ea_load_double(b->call->sinks, b->call->sinks_dtype, head) * EA_LOG2_E;
    if (sink > max) {
      factor = exp2(max - sink);
      sum *= factor;
      max = sink;
    }
    sum += exp2(sink - max);
  }
  const double lse = sum == 0.0 ? (double)NAN : (max + log2(sum)) * EA_LN_2; /* 0 / 0, as the definition has it */
  return (ending){(float)(factor / sum), (float)lse};
}

static void write_row(const block *b, int32_t r) {
  const ea_call *call = b->call;
  const int64_t row = b->item->row_first + r;
  const int64_t token = (int64_t)call->qo_indptr[b->item->seq] + ea_row_query(row, call->group);
  const int64_t head = (int64_t)b->item->kv_head * call->group + row % call->group;
  const ending end = end_row(b, r, head);
  const int64_t at = token * call->out_token_stride + head * call->out_head_stride;
  uint8_t *out = (uint8_t *)call->out + at * (int64_t)bytes_of(call->dtype);
  const float *o = b->o + (size_t)r * (size_t)b->dims.value_width;
  EA_WITH_DTYPE(call->dtype, store_row, out, o, end.factor, b->dims.head_dim_v);
  if (call->lse) call->lse[token * call->lse_token_stride + head * call->lse_head_stride] = end.lse;
}

static void run_block(const ea_call *call, const ea_cpu_item *item, void *scratch) {
  block b = {.call = call, .item = item, .rows = item->rows};
  (void)lay_out(&b, dims_of(call->head_dim, call->head_dim_v), scratch);
  b.to_log2 = (float)(call->logit_cap > 0.0 ? EA_LOG2_E : call->softmax_scale * EA_LOG2_E);
  load_queries(&b);
  start_rows(&b);
  const int32_t i0 = ea_row_query(item->row_first, call->group);
  const int32_t i1 = ea_row_query(item->row_first + item->rows - 1, call->group) + 1;
  ea_key_range keys = ea_visible_keys(&item->view, i0, i1);
  if (keys.first >= keys.end) keys.first = keys.end = 0;
  const int32_t strips = (b.rows + STRIP - 1) / STRIP;
  tile tiles[2]; /* this one and the next */
  int32_t j0 = keys.first / TILE_N * TILE_N;
  if (j0 < keys.end) aim_tile(&b, &tiles[0], keys, j0);
  for (int turn = 0; j0 < keys.end; j0 += TILE_N, turn ^= 1) {
    tile *t = &tiles[turn];
    tile *next = j0 + TILE_N < keys.end ? &tiles[turn ^ 1] : NULL;
    pack_keys(&b, t);
    pack_values(&b, t);
    t->has_bad_values = ea_tile_needs_mask(&item->view, i0, i1, j0, j0 + TILE_N) && take_bad_values_out(&b, t);
    if (next) aim_tile(&b, next, keys, j0 + TILE_N);
    for (int32_t strip = 0; strip < strips; ++strip) {
      if (next) fetch_share(&b, next, strip, strips);
      attend_strip(&b, t, strip * STRIP, ea_min_i32(STRIP, b.rows - strip * STRIP));
    }
  }
  for (int32_t r = 0; r < b.rows; ++r) write_row(&b, r);
}

#endif
