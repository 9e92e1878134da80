/* From a spec to a case: where everything lies in memory, and what it holds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/extremes.h"
#include "check/generate.h"
#include "check/layout.h"
#include "check/random.h"
#include "common/error.h"
#include "common/numeric.h"

/* Streams of contents, by tensor. */
enum { TOKEN_Q = 1, TOKEN_K, TOKEN_V, TOKEN_PEAK, SINKS };

typedef struct builder {
  const ea_spec *spec;
  ea_case *c;
  ea_rng rng; /* of the layout */
  int32_t head_dim_v;
  ea_dtype cache_dtype;
  int64_t num_tokens, num_prefix; /* of all sequences */
  bool *seen[EA_SPEC_MAX_SEQS];   /* hostile: [P+E], whether any row sees the key */
  int64_t *slots;                 /* [num_prefix] */
  int64_t num_pages;
  double *numbers; /* of one token */
} builder;

static ea_status out_of_memory(void) {
  return ea_fail(EA_ERR_OUT_OF_MEMORY, "case: found no memory to build it");
}

/* ------------------------------------------------------------------------------------
 * Views into buffers
 * ---------------------------------------------------------------------------------- */

typedef struct view {
  char *data; /* NULL: not there */
  ea_strides by;
  ea_dtype dtype;
} view;

/* What must never reach a result: NaN and, where the type has it, Inf. */
static double hostile_number(ea_dtype dtype, uint64_t i) {
  if (dtype == EA_E4M3 || i % 3 == 0) return (double)NAN;
  return i % 3 == 1 ? (double)INFINITY : -(double)INFINITY;
}

/* A buffer for a view of this shape, exactly as long as the view needs. */
static ea_status make_view(builder *b, ea_shape s, ea_layout layout, ea_dtype dtype, view *out) {
  const int64_t late = b->spec->misalign;
  out->dtype = dtype;
  out->by = ea_lay_out(layout, &b->rng, s);
  const int64_t elements = late + ea_extent(s, out->by);
  void *data;
  const ea_status status = ea_case_alloc(b->c, (size_t)elements * ea_dtype_size(dtype), &data);
  if (status) return status;
  for (int64_t i = 0; i < elements && b->spec->hostile; i++) {
    ea_store_double(data, dtype, i, hostile_number(dtype, (uint64_t)i));
  }
  out->data = (char *)data + (size_t)late * ea_dtype_size(dtype);
  return EA_OK;
}

/* A view of the same rows that begins some elements into each. */
static view view_at(const view *v, int64_t elements) {
  view inner = *v;
  inner.data += (size_t)elements * ea_dtype_size(v->dtype);
  return inner;
}

/* K and V of the new tokens or of the pool: apart, side by side, or one inside the other. */
static ea_status make_kv_views(builder *b, int64_t pages, int64_t rows, ea_layout layout, ea_dtype dtype, view *k,
                               view *v) {
  const ea_problem *problem = &b->spec->problem;
  ea_shape s = {pages, rows, problem->num_kv_heads, problem->head_dim};
  const bool together = layout == EA_LAYOUT_INTERLEAVED && !problem->shared_kv;
  const bool inside = together && b->spec->v_from_k;
  if (together && !inside) s.width += b->head_dim_v;
  ea_status status = make_view(b, s, layout, dtype, k);
  if (status || problem->shared_kv) return status;
  if (together) {
    *v = view_at(k, inside ? 0 : problem->head_dim);
    return EA_OK;
  }
  s.width = b->head_dim_v;
  return make_view(b, s, layout, dtype, v);
}

static ea_cache as_cache(const view *v, ea_layout layout) {
  ea_cache cache = {v->data, v->by.page, v->by.row, v->by.head};
  return layout == EA_LAYOUT_PACKED ? (ea_cache){.data = v->data} : cache;
}

/* ------------------------------------------------------------------------------------
 * What tokens hold
 * ---------------------------------------------------------------------------------- */

/* To the nearest number of a type; e4m3, which has no Inf, takes its largest for all beyond. */
static double rounded(double x, ea_dtype dtype) {
  uint32_t bits;
  if (dtype == EA_F32) return (double)(float)x;
  if (dtype == EA_E4M3) x = fmax(-448.0, fmin(448.0, x));
  ea_store_double(&bits, dtype, 0, x);
  return ea_load_double(&bits, dtype, 0);
}

static void poison(const ea_spec *spec, ea_poison_part part, uint64_t id, int32_t position, int32_t width,
                   double *numbers) {
  for (int32_t p = 0; p < spec->num_poisons; p++) {
    const ea_poison *poisoned = &spec->poisons[p];
    if (poisoned->part != part || poisoned->id != id || poisoned->position != position) continue;
    for (int32_t d = 0; d < width; d++) numbers[(int64_t)poisoned->head * width + d] = poisoned->value;
  }
}

/* One kind of numbers that tokens hold. */
typedef struct kind {
  int stream;
  ea_poison_part part;
  int32_t heads, width;
  ea_dtype round_to;
  double gain; /* of a cache, see ea_spec_cache_gain */
  bool cached;
} kind;

static void token_numbers(const ea_spec *spec, kind of, uint64_t id, int32_t position, double *numbers) {
  const int32_t n = of.heads * of.width;
  ea_rng rng = ea_rng_of(ea_mix3(spec->seed ^ ea_mix((uint64_t)of.stream), id, (uint64_t)position));
  if (spec->extreme && of.stream != TOKEN_V) {
    ea_extremes_numbers(spec, of.stream == TOKEN_Q, of.cached, &rng, numbers);
    of.gain = 1.0;
  } else {
    ea_rng_normal(&rng, numbers, n);
  }
  const uint64_t chance = ea_mix3(spec->seed ^ ea_mix(TOKEN_PEAK), id, (uint64_t)position);
  const double factor = of.stream == TOKEN_K && chance % 16 == 0 && !spec->extreme ? of.gain * spec->peak : of.gain;
  for (int32_t i = 0; i < n; i++) numbers[i] = rounded(numbers[i] * factor, of.round_to);
  poison(spec, of.part, id, position, of.width, numbers);
}

/* One token's row of a view. */
static void store_token(const view *v, int64_t page, int64_t row, int32_t heads, int32_t width, int32_t stored_width,
                        const double *numbers) {
  for (int32_t h = 0; h < heads; h++) {
    const int64_t at = ea_element(v->by, page, row, h);
    for (int32_t d = 0; d < stored_width; d++) {
      ea_store_double(v->data, v->dtype, at + d, numbers[(int64_t)h * width + d]);
    }
  }
}

static void fill_hostile(ea_dtype dtype, int64_t n, double *numbers) {
  for (int64_t i = 0; i < n; i++) numbers[i] = hostile_number(dtype, (uint64_t)i);
}

/* Key j of sequence b, into row `row` of page `page`. */
static void write_key(builder *b, int32_t seq, int32_t j, const view *k, const view *v, int64_t page, int64_t row) {
  const ea_spec *spec = b->spec;
  const ea_problem *problem = &spec->problem;
  const uint64_t id = ea_spec_token_id(&spec->seqs[seq], j);
  const bool cached = j < spec->seqs[seq].prefix, unseen = spec->hostile && !b->seen[seq][j];
  const ea_dtype round_to = cached ? spec->cache_round_to : spec->round_to;
  kind keys = {TOKEN_K, EA_POISON_K, problem->num_kv_heads, problem->head_dim, round_to, 1.0, cached};
  kind values = {TOKEN_V, EA_POISON_V, problem->num_kv_heads, b->head_dim_v, round_to, 1.0, cached};
  if (cached) {
    keys.gain = ea_spec_cache_gain(spec, problem->k_scale);
    values.gain = ea_spec_cache_gain(spec, problem->v_scale);
  }
  token_numbers(spec, keys, id, j, b->numbers);
  if (unseen) fill_hostile(k->dtype, (int64_t)keys.heads * keys.width, b->numbers);
  store_token(k, page, row, keys.heads, keys.width, keys.width, b->numbers);
  if (!v->data) return;
  if (spec->v_from_k) {
    store_token(v, page, row, keys.heads, keys.width, values.width, b->numbers);
    return;
  }
  token_numbers(spec, values, id, j, b->numbers);
  if (unseen) fill_hostile(v->dtype, (int64_t)values.heads * values.width, b->numbers);
  store_token(v, page, row, values.heads, values.width, values.width, b->numbers);
}

static bool row_sees_something(const ea_spec *spec, int32_t seq, int32_t i) {
  const int32_t total = spec->seqs[seq].prefix + spec->seqs[seq].extend;
  for (int32_t j = 0; j < total; j++) {
    if (ea_spec_sees(spec, seq, i, j)) return true;
  }
  return false;
}

static void write_query(builder *b, int32_t seq, int32_t i, const view *q, int64_t row) {
  const ea_problem *problem = &b->spec->problem;
  const int32_t position = b->spec->seqs[seq].prefix + i;
  const uint64_t id = ea_spec_token_id(&b->spec->seqs[seq], position);
  const kind queries = {TOKEN_Q, EA_POISON_Q, problem->num_q_heads, problem->head_dim, b->spec->round_to, 1.0, false};
  token_numbers(b->spec, queries, id, position, b->numbers);
  if (b->spec->hostile && !row_sees_something(b->spec, seq, i)) {
    fill_hostile(q->dtype, (int64_t)problem->num_q_heads * problem->head_dim, b->numbers);
  }
  store_token(q, 0, row, problem->num_q_heads, problem->head_dim, problem->head_dim, b->numbers);
}

/* Which keys some row sees; a token that two sequences share is seen where either sees it. */
static ea_status find_seen(builder *b) {
  const ea_spec *spec = b->spec;
  for (int32_t n = 0; n < spec->num_seqs; n++) {
    const ea_spec_seq *seq = &spec->seqs[n];
    const int32_t total = seq->prefix + seq->extend;
    b->seen[n] = calloc((size_t)total + 1, sizeof(bool));
    if (!b->seen[n]) return out_of_memory();
    for (int32_t j = 0; j < total; j++) {
      for (int32_t i = 0; i < seq->extend && !b->seen[n][j]; i++) b->seen[n][j] = ea_spec_sees(spec, n, i, j);
    }
  }
  for (int32_t n = 0; n < spec->num_seqs; n++) {
    for (int32_t m = 0; m < spec->num_seqs; m++) {
      if (spec->seqs[m].prefix_id != spec->seqs[n].prefix_id) continue;
      for (int32_t j = 0; j < spec->seqs[n].shared && j < spec->seqs[m].shared; j++) {
        b->seen[n][j] = b->seen[m][j] = b->seen[n][j] || b->seen[m][j];
      }
    }
  }
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Slots
 * ---------------------------------------------------------------------------------- */

/* An earlier sequence that keeps a token of this one's prefix already, or -1. */
static int32_t owner_of(const ea_spec *spec, int32_t b, int32_t position) {
  const ea_spec_seq *seq = &spec->seqs[b];
  for (int32_t a = 0; a < b && position < seq->shared && !spec->slots_apart; a++) {
    const ea_spec_seq *other = &spec->seqs[a];
    if (other->prefix_id == seq->prefix_id && position < other->shared && position < other->prefix) return a;
  }
  return -1;
}

/* 0 .. n-1, in random order where asked for. */
static int64_t *numbers_below(ea_rng *rng, int64_t n, bool shuffled) {
  int64_t *order = malloc((size_t)(n + 1) * sizeof *order);
  if (!order) return NULL;
  for (int64_t i = 0; i < n; i++) order[i] = i;
  for (int64_t i = n - 1; i > 0 && shuffled; i--) {
    const int64_t j = (int64_t)ea_rng_below(rng, (uint32_t)i + 1), swapped = order[i];
    order[i] = order[j];
    order[j] = swapped;
  }
  return order;
}

/* Gives every prefix token a slot: numbers them, then spreads the numbers over the pool. */
static ea_status assign_slots(builder *b) {
  const ea_spec *spec = b->spec;
  const int64_t page_size = spec->problem.page_size;
  b->slots = malloc((size_t)(b->num_prefix + 1) * sizeof *b->slots);
  if (!b->slots) return out_of_memory();

  int64_t starts[EA_SPEC_MAX_SEQS], next = 0, n = 0;
  for (int32_t seq = 0; seq < spec->num_seqs; seq++) {
    const bool own_page = spec->slot_order == EA_SLOTS_PAGES;
    if (own_page) next = (next + page_size - 1) / page_size * page_size;
    starts[seq] = n;
    for (int32_t j = 0; j < spec->seqs[seq].prefix; j++) {
      const int32_t owner = owner_of(spec, seq, j);
      b->slots[n++] = owner >= 0 ? b->slots[starts[owner] + j] : next++;
    }
  }

  const int64_t spare =
      ea_rng_range(&b->rng, 0, 3) + (int64_t)ea_rng_below(&b->rng, (uint32_t)(next / 4 + 1)) / page_size;
  b->num_pages = (next + page_size - 1) / page_size + spare;
  if (b->num_prefix == 0 && spec->empty_pool) b->num_pages = 0;
  const int64_t first = spec->slot_order == EA_SLOTS_ORDERED && b->num_pages ? spare * page_size / 2 : 0;
  const int64_t units = spec->slot_order == EA_SLOTS_PAGES ? b->num_pages : b->num_pages * page_size;
  int64_t *order = numbers_below(&b->rng, units, spec->slot_order != EA_SLOTS_ORDERED);
  if (!order) return out_of_memory();
  for (int64_t i = 0; i < n; i++) {
    const int64_t number = first + b->slots[i];
    b->slots[i] =
        spec->slot_order == EA_SLOTS_PAGES ? order[number / page_size] * page_size + number % page_size : order[number];
  }
  free(order);
  return EA_OK;
}

/* ------------------------------------------------------------------------------------
 * Pieces of a batch
 * ---------------------------------------------------------------------------------- */

static void store_index(void *data, ea_dtype dtype, int64_t i, int64_t value) {
  if (dtype == EA_I64) {
    ((int64_t *)data)[i] = value;
  } else {
    ((int32_t *)data)[i] = (int32_t)value;
  }
}

static ea_status make_indices(builder *b) {
  const ea_spec *spec = b->spec;
  ea_batch *batch = &b->c->batch;
  void *qo_indptr, *kv_indptr, *kv_indices;
  const size_t indptr_bytes = ((size_t)spec->num_seqs + 1) * sizeof(int32_t);
  const int64_t rest = spec->hostile ? ea_rng_range(&b->rng, 0, 3) : 0; /* entries that nobody may look at */
  const ea_dtype dtype = spec->problem.index_dtype;
  ea_status status = ea_case_alloc(b->c, indptr_bytes, &qo_indptr);
  if (!status) status = ea_case_alloc(b->c, indptr_bytes, &kv_indptr);
  if (!status) status = ea_case_alloc(b->c, (size_t)(b->num_prefix + rest) * ea_dtype_size(dtype), &kv_indices);
  if (status) return status;

  for (int32_t n = 0; n < spec->num_seqs; n++) {
    ((int32_t *)qo_indptr)[n + 1] = ((int32_t *)qo_indptr)[n] + spec->seqs[n].extend;
    ((int32_t *)kv_indptr)[n + 1] = ((int32_t *)kv_indptr)[n] + spec->seqs[n].prefix;
  }
  for (int64_t i = 0; i < b->num_prefix; i++) store_index(kv_indices, dtype, i, b->slots[i]);
  for (int64_t i = 0; i < rest; i++) store_index(kv_indices, dtype, b->num_prefix + i, i % 2 ? INT32_MAX : -1);
  batch->qo_indptr = qo_indptr;
  batch->kv_indptr = kv_indptr;
  batch->kv_indices = kv_indices;
  batch->num_kv_indices = b->num_prefix + rest;
  return EA_OK;
}

static ea_status make_new_tokens(builder *b) {
  const ea_spec *spec = b->spec;
  const ea_problem *problem = &spec->problem;
  ea_batch *batch = &b->c->batch;
  view q, k, v = {0};
  ea_status status = make_view(b, (ea_shape){1, b->num_tokens, problem->num_q_heads, problem->head_dim}, spec->q_layout,
                               problem->dtype, &q);
  if (!status) status = make_kv_views(b, 1, b->num_tokens, spec->kv_layout, problem->dtype, &k, &v);
  if (status) return status;

  for (int32_t n = 0; n < spec->num_seqs; n++) {
    for (int32_t i = 0; i < spec->seqs[n].extend; i++) {
      const int64_t row = batch->qo_indptr[n] + i;
      write_query(b, n, i, &q, row);
      write_key(b, n, spec->seqs[n].prefix + i, &k, &v, 0, row);
    }
  }
  batch->q = ea_tensor_of(spec->q_layout, q.data, q.by);
  batch->k = ea_tensor_of(spec->kv_layout, k.data, k.by);
  if (v.data) batch->v = ea_tensor_of(spec->kv_layout, v.data, v.by);
  return EA_OK;
}

static ea_status make_pool(builder *b) {
  const ea_spec *spec = b->spec;
  ea_batch *batch = &b->c->batch;
  batch->num_pages = b->num_pages;
  if (b->num_pages == 0) return EA_OK;
  const int64_t page_size = spec->problem.page_size;
  view k, v = {0};
  const ea_status status = make_kv_views(b, b->num_pages, page_size, spec->cache_layout, b->cache_dtype, &k, &v);
  if (status) return status;
  for (int32_t n = 0; n < spec->num_seqs; n++) {
    for (int32_t j = 0; j < spec->seqs[n].prefix; j++) {
      const int64_t slot = b->slots[batch->kv_indptr[n] + j];
      write_key(b, n, j, &k, &v, slot / page_size, slot % page_size);
    }
  }
  batch->k_cache = as_cache(&k, spec->cache_layout);
  if (v.data) batch->v_cache = as_cache(&v, spec->cache_layout);
  return EA_OK;
}

/* A byte that no row may look at: anything where hostile, else 0. */
static uint8_t unused_mask_byte(builder *b) {
  return b->spec->hostile ? (uint8_t)ea_rng_below(&b->rng, 256) : 0;
}

static void write_mask(builder *b, int32_t n, int32_t offset, uint8_t *mask) {
  const ea_spec *spec = b->spec;
  const ea_spec_seq *seq = &spec->seqs[n];
  const int32_t total = seq->prefix + seq->extend;
  for (int32_t i = 0; i < seq->extend; i++) {
    for (int32_t j = 0; j < offset; j++) *mask++ = unused_mask_byte(b);
    for (int32_t j = 0; j < total; j++) {
      const bool unused = spec->problem.skip_prefix_custom_mask && j < seq->prefix;
      *mask++ = unused ? unused_mask_byte(b) : ea_spec_mask_byte(spec, n, seq->prefix + i, j);
    }
  }
}

/* Masks in random order of sequences, with gaps between them. */
static ea_status make_masks(builder *b) {
  const ea_spec *spec = b->spec;
  if (!spec->problem.has_custom_mask) return EA_OK;
  ea_batch *batch = &b->c->batch;
  void *mask_indptr, *offsets = NULL, *mask;
  const size_t num_seqs = (size_t)spec->num_seqs;
  const ea_dtype indptr_dtype = spec->problem.mask_indptr_dtype;
  ea_status status = ea_case_alloc(b->c, num_seqs * ea_dtype_size(indptr_dtype), &mask_indptr);
  if (!status && spec->window_kv_offsets) status = ea_case_alloc(b->c, num_seqs * sizeof(int32_t), &offsets);
  if (status) return status;

  int32_t used_offset[EA_SPEC_MAX_SEQS];
  int64_t start[EA_SPEC_MAX_SEQS], bytes = 0;
  int64_t *order = numbers_below(&b->rng, spec->num_seqs, true);
  if (!order) return out_of_memory();
  for (int32_t o = 0; o < spec->num_seqs; o++) {
    const int32_t n = (int32_t)order[o];
    const ea_spec_seq *seq = &spec->seqs[n];
    const bool has_offset = offsets && spec->problem.window_left > 0;
    used_offset[n] = has_offset ? seq->mask_offset : 0;
    bytes += spec->hostile ? ea_rng_range(&b->rng, 0, 5) : 0;
    start[n] = bytes;
    bytes += (int64_t)seq->extend * ((int64_t)used_offset[n] + seq->prefix + seq->extend);
    store_index(mask_indptr, indptr_dtype, n, start[n]);
    if (offsets) ((int32_t *)offsets)[n] = seq->mask_offset;
  }
  free(order);
  status = ea_case_alloc(b->c, (size_t)bytes, &mask);
  if (status) return status;
  for (int64_t i = 0; i < bytes; i++) ((uint8_t *)mask)[i] = unused_mask_byte(b);
  for (int32_t n = 0; n < spec->num_seqs; n++) write_mask(b, n, used_offset[n], (uint8_t *)mask + start[n]);
  batch->custom_mask = mask;
  batch->custom_mask_bytes = bytes;
  batch->mask_indptr = mask_indptr;
  batch->window_kv_offsets = offsets;
  return EA_OK;
}

static ea_status make_sinks(builder *b) {
  const ea_problem *problem = &b->spec->problem;
  if (!problem->has_sinks) return EA_OK;
  const ea_dtype dtype = problem->sinks_dtype ? problem->sinks_dtype : problem->dtype;
  void *sinks;
  const ea_status status = ea_case_alloc(b->c, (size_t)problem->num_q_heads * ea_dtype_size(dtype), &sinks);
  if (status) return status;
  ea_rng rng = ea_rng_of(ea_mix3(b->spec->seed, SINKS, 0));
  for (int32_t h = 0; h < problem->num_q_heads; h++) {
    double sink;
    ea_rng_normal(&rng, &sink, 1);
    if (ea_rng_percent(&rng, 12)) sink *= 200.0; /* takes the whole row, or nothing of it */
    ea_store_double(sinks, dtype, h, rounded(2.0 * sink, problem->sinks_dtype ? EA_F32 : b->spec->round_to));
  }
  b->c->batch.sinks = sinks;
  return EA_OK;
}

static ea_status build(builder *b) {
  const ea_problem *problem = &b->spec->problem;
  ea_case *c = b->c;
  c->problem = *problem;
  c->batch.num_seqs = b->spec->num_seqs;
  c->batch.num_tokens = b->num_tokens;
  const size_t most = (size_t)problem->num_q_heads * (size_t)(problem->head_dim + b->head_dim_v) + 1;
  b->numbers = malloc(most * sizeof *b->numbers);
  if (!b->numbers) return out_of_memory();
  ea_status status = b->spec->hostile ? find_seen(b) : EA_OK;
  if (!status) status = assign_slots(b);
  if (!status) status = make_indices(b);
  if (!status) status = make_new_tokens(b);
  if (!status) status = make_pool(b);
  if (!status) status = make_masks(b);
  if (!status) status = make_sinks(b);
  return status;
}

ea_status ea_spec_build(const ea_spec *spec, ea_case *c) {
  ea_case_init(c);
  builder b = {.spec = spec, .c = c, .rng = ea_rng_of(spec->layout_seed)};
  b.head_dim_v = spec->problem.head_dim_v ? spec->problem.head_dim_v : spec->problem.head_dim;
  b.cache_dtype = spec->problem.cache_dtype ? spec->problem.cache_dtype : spec->problem.dtype;
  for (int32_t n = 0; n < spec->num_seqs; n++) {
    b.num_tokens += spec->seqs[n].extend;
    b.num_prefix += spec->seqs[n].prefix;
  }
  const ea_status status = build(&b);
  for (int32_t n = 0; n < spec->num_seqs; n++) free(b.seen[n]);
  free(b.slots);
  free(b.numbers);
  if (status) ea_case_free(c);
  return status;
}
