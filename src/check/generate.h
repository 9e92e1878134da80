/* Random cases for tests. A spec describes a case in full, but for its bytes; building it
 * gives an ea_case. What a token holds is a function of the seed, of the sequence's id and
 * of the token's position alone, so the same tokens can be laid out anew: alone or in
 * another order, cut elsewhere into prefix and new tokens, in other slots, pages and
 * strides, or with NaN in chosen places.
 *
 *     ea_gen_options options = EA_GEN_OPTIONS_INIT;    everything random but what is set
 *     options.seed = 7;
 *     ea_spec spec;
 *     ea_spec_random(&options, &spec);
 *     ea_spec_build(&spec, &c); */
#ifndef EA_CHECK_GENERATE_H
#define EA_CHECK_GENERATE_H

#include <stdbool.h>
#include <stdint.h>

#include "extattn.h"
#include "io/case.h"

#define EA_SPEC_MAX_SEQS 256
#define EA_SPEC_MAX_POISONS 8

typedef enum ea_choice { EA_ANY = 0, EA_NO = 1, EA_YES = 2 } ea_choice;

/* What is to be random and what is fixed. Every field left as EA_GEN_OPTIONS_INIT has it is
 * drawn from the seed; setting one leaves what is drawn for the others as it was, as far as
 * it is still allowed. Values are not checked here: a wrong one gives a case that the library
 * refuses. */
typedef struct ea_gen_options {
  uint64_t seed;
  int64_t max_work;      /* drawn lengths shrink until the case takes about this many multiply-adds */
  ea_dtype dtype;        /* EA_DTYPE_NONE: any */
  ea_dtype cache_dtype;  /* EA_DTYPE_NONE: any */
  ea_dtype index_dtype;  /* EA_DTYPE_NONE: any */
  int32_t num_q_heads;   /* 0: any */
  int32_t num_kv_heads;  /* 0: any */
  int32_t head_dim;      /* 0: any */
  int32_t head_dim_v;    /* 0: any */
  int32_t page_size;     /* 0: any */
  int32_t num_seqs;      /* -1: any; at most EA_SPEC_MAX_SEQS */
  const int32_t *prefix; /* [num_seqs], or NULL: any */
  const int32_t *extend;
  int32_t window_left;         /* 0: any; -1: none */
  int64_t xai_temperature_len; /* 0: any; -1: none */
  double logit_cap;            /* 0: any; -1: none */
  double softmax_scale;        /* 0: any; -1: the default, 1/sqrt(D) */
  double k_scale, v_scale;     /* 0: any */
  ea_choice causal, sinks, custom_mask, window_kv_offsets, skip_prefix_custom_mask, skip_prefix, skip_extend, shared_kv;
  ea_choice hostile; /* NaN and Inf wherever no row may look */
  ea_choice strided; /* views with gaps, other orders of dimensions, odd addresses */
  ea_choice normal;  /* yes: q, k and v are standard normal; no: a few keys outweigh the others */
  ea_choice extreme; /* logits of any size (check/extremes.h); values standard normal, and not those of the keys */
} ea_gen_options;

#define EA_GEN_MAX_WORK 16000000

#define EA_GEN_OPTIONS_INIT                                                                                            \
  { .max_work = EA_GEN_MAX_WORK, .num_seqs = -1 }

/* One sequence of a batch. Its tokens are named (id, position), but the first `shared` of
 * them (prefix_id, position): sequences with one prefix_id have these tokens, and the slots
 * that hold them, in common. */
typedef struct ea_spec_seq {
  uint64_t id;
  uint64_t prefix_id;
  int32_t shared;
  int32_t prefix;      /* P */
  int32_t extend;      /* E */
  int32_t mask_offset; /* window_kv_offsets */
} ea_spec_seq;

/* How a tensor or pool lies in memory. */
typedef enum ea_layout {
  EA_LAYOUT_PACKED,      /* strides 0: the default */
  EA_LAYOUT_EXPLICIT,    /* the same, in numbers */
  EA_LAYOUT_PADDED,      /* gaps after every head, row and page */
  EA_LAYOUT_HEAD_MAJOR,  /* the heads outside of the rows (of a page) */
  EA_LAYOUT_INTERLEAVED, /* K and V of a head side by side in one buffer; q, out: as padded */
  EA_NUM_LAYOUTS
} ea_layout;

typedef enum ea_slot_order {
  EA_SLOTS_ORDERED,  /* one after another */
  EA_SLOTS_PAGES,    /* whole pages in random order, as a paged allocator hands them out */
  EA_SLOTS_SHUFFLED, /* every slot anywhere */
  EA_NUM_SLOT_ORDERS
} ea_slot_order;

/* A special value in place of one token's numbers. */
typedef enum ea_poison_part { EA_POISON_Q, EA_POISON_K, EA_POISON_V } ea_poison_part;
typedef struct ea_poison {
  uint64_t id;      /* the token: sequence id ... */
  int32_t position; /* ... and position */
  int32_t head;     /* K/V head for K and V, query head for Q */
  ea_poison_part part;
  double value; /* NaN, Inf, ... */
} ea_poison;

typedef struct ea_spec {
  uint64_t seed;        /* what the tokens hold */
  uint64_t layout_seed; /* where they lie */
  ea_problem problem;
  ea_dtype round_to;       /* numbers are rounded to these types before they are stored as the ... */
  ea_dtype cache_round_to; /* ... problem's, so that a case can be repeated in f32 exactly */
  int32_t num_seqs;
  ea_spec_seq seqs[EA_SPEC_MAX_SEQS];
  bool v_from_k;          /* v is the first Dv columns of k (always so with shared_kv) */
  bool window_kv_offsets; /* given */
  bool hostile;
  bool slots_apart; /* shared tokens have slots of their own in every sequence */
  bool empty_pool;  /* no cache at all when no sequence has a prefix */
  double peak;      /* one key in sixteen is larger by this factor; 1: all are standard normal */
  bool extreme;     /* q and k as in check/extremes.h, with these exponents */
  int32_t q_exponent, k_exponent;
  double mask_density; /* share of ones in most rows of the custom mask */
  ea_layout q_layout, kv_layout, cache_layout, out_layout, lse_layout;
  ea_slot_order slot_order;
  int32_t misalign; /* elements by which every buffer starts late */
  int32_t num_poisons;
  ea_poison poisons[EA_SPEC_MAX_POISONS];
} ea_spec;

/* Draws a spec. The same options give the same spec. */
void ea_spec_random(const ea_gen_options *options, ea_spec *spec);

/* Makes the case. c is empty after a failure. EA_ERR_OUT_OF_MEMORY. */
ea_status ea_spec_build(const ea_spec *spec, ea_case *c);

/* New tokens of all sequences. */
int64_t ea_spec_tokens(const ea_spec *spec);

/* Multiply-adds of the reference, about. */
int64_t ea_spec_work(const ea_spec *spec);

/* By what the numbers of a cache are larger than those of the new tokens: an 8-bit cache with a
 * small scale (k_scale or v_scale) is filled so that the scale brings them back, as those who
 * quantise do. */
double ea_spec_cache_gain(const ea_spec *spec, double scale);

static inline bool ea_is_8_bit(ea_dtype dtype) {
  return dtype == EA_E4M3 || dtype == EA_E5M2;
}

/* Whether query i of sequence b sees key j, read off the rules in extattn.h without the library's help. */
bool ea_spec_sees(const ea_spec *spec, int32_t b, int32_t i, int32_t j);

/* The byte of the custom mask for the query at a position of sequence b and its key j. */
uint8_t ea_spec_mask_byte(const ea_spec *spec, int32_t b, int32_t position, int32_t j);

/* The id under which the token at a position of a sequence is known. */
static inline uint64_t ea_spec_token_id(const ea_spec_seq *seq, int32_t position) {
  return position < seq->shared ? seq->prefix_id : seq->id;
}

/* One line with all that matters: "bf16, cache e4m3, heads 8/2, ...". text has n bytes. */
void ea_spec_describe(const ea_spec *spec, char *text, size_t n);

#endif
