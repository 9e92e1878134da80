/* The portable kernel's shapes (rows of plan/kernel_list.h) and its shared memory, for the planner, the launch, the
 * kernel and the tests: one list, one formula.
 *
 * A shape serves every head dimension up to its own; what is missing is zero in shared
 * memory. Warps are laid out twice over a block: QM x QN over (rows, keys) for the scores,
 * PM x PN over (rows, value columns) for the output. With QN = 1 both are the same and the
 * probabilities stay in registers; otherwise they cross between warps through shared memory. */
#ifndef EA_PLAN_PORTABLE_H
#define EA_PLAN_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/hd.h"
#include "plan/kernel_list.h"

typedef struct ea_portable_shape {
  const char *name;
  int32_t dim, dim_v;
  int32_t tile_m, tile_n;
  int32_t qk_warps_m, qk_warps_n, pv_warps_m, pv_warps_n;
  int32_t blocks_per_sm;
} ea_portable_shape;

#define EA_PORTABLE_ELEMENT_BYTES 2 /* bf16, f16: 8-bit caches are widened on their way in */
#define EA_PORTABLE_BLOCK_BYTES 128
#define EA_PORTABLE_MAX_STAGES 16
#define EA_PORTABLE_BARRIER_BYTES (2 * EA_PORTABLE_MAX_STAGES * (int32_t)sizeof(uint64_t)) /* full and empty */
/* Of one tile: the addresses of its K rows and V rows, and how they can be copied. */
#define EA_PORTABLE_TABLE_BYTES(tile_n) (2 * (tile_n) * (int32_t)sizeof(uint64_t) + 16)

/* Whether scores and output leave no registers for the running maxima and sums (of a thread:
 * two for each 16-row fragment), so that these wait in shared memory. */
EA_HD bool ea_portable_state_in_shared(ea_portable_shape s) {
  const int32_t score_fragments = s.tile_m / s.qk_warps_m / 16 * (s.tile_n / s.qk_warps_n / 8);
  const int32_t output_fragments = s.tile_m / s.pv_warps_m / 16 * (s.dim_v / s.pv_warps_n / 8);
  return s.qk_warps_n == 1 && (score_fragments + output_fragments >= 48 || s.blocks_per_sm > 2);
}

/* Offsets in bytes from the start of a block's dynamic shared memory (128-byte aligned). */
typedef struct ea_portable_smem {
  int32_t q;        /* M x D; the output tile leaves through the same place */
  int32_t p;        /* M x N probabilities, where they cross between warps */
  int32_t stats;    /* f32: QN > 1: maxima or sums of the QN warps, and rescale factors; else the state above */
  int32_t rows;     /* addresses of the K and V rows of two tiles, 64-bit */
  int32_t barriers; /* mbarriers of the ring */
  int32_t block;    /* what the block works on: its sequence, queries, keys */
  int32_t ring;     /* stages x (K tile N x D, V tile N x Dv) */
  int32_t stage_bytes;
  int32_t total;
} ea_portable_smem;

EA_HD ea_portable_smem ea_portable_smem_layout(ea_portable_shape shape, int32_t stages) {
  ea_portable_smem s;
  const bool crossing = shape.qk_warps_n > 1;
  int32_t stats_floats = 0;
  if (crossing) stats_floats = (shape.qk_warps_n + 1) * shape.tile_m;
  if (ea_portable_state_in_shared(shape)) stats_floats = 8 * shape.tile_m;
  s.q = 0;
  s.p = shape.tile_m * shape.dim * EA_PORTABLE_ELEMENT_BYTES;
  s.stats = s.p + (crossing ? shape.tile_m * shape.tile_n * EA_PORTABLE_ELEMENT_BYTES : 0);
  s.rows = s.stats + stats_floats * (int32_t)sizeof(float);
  s.barriers = s.rows + 2 * EA_PORTABLE_TABLE_BYTES(shape.tile_n);
  s.block = s.barriers + EA_PORTABLE_BARRIER_BYTES;
  s.ring = (s.block + EA_PORTABLE_BLOCK_BYTES + 127) / 128 * 128; /* last: only its length depends on the depth */
  s.stage_bytes = shape.tile_n * (shape.dim + shape.dim_v) * EA_PORTABLE_ELEMENT_BYTES;
  s.total = s.ring + stages * s.stage_bytes;
  return s;
}

/* Row blocks of the grid: sequence b's begin at qo_indptr[b] * group / tile_m + b, which
 * leaves each sequence as many as it can need and needs no table. */
EA_HD int64_t ea_portable_first_block(int64_t qo_start, int64_t b, int32_t group, int32_t tile_m) {
  return qo_start * group / tile_m + b;
}

/* The kernel's second parameter; the first is the ea_call. What follows from the call alone is
 * worked out once on the host. */
typedef struct ea_portable_launch {
  int32_t stages;
  int32_t q_aligned;     /* rows can be read 16 bytes at a time */
  int32_t kv_aligned;    /* likewise K and V of the new tokens */
  int32_t cache_aligned; /* and of the pool (8 bytes at a time for 8-bit types) */
  int32_t out_aligned;
  int32_t transformed; /* scores pass through a cap or a temperature, in natural units */
  float scale;         /* from a score to a logit: softmax_scale; 1 where scores are transformed */
  float scale_log2;    /* the same to exp2's units: times log2(e) */
  float softmax_scale;
  float logit_cap; /* 0: none */
  float inv_logit_cap;
  float inv_log2_len; /* of the temperature */
  float k_scale, v_scale;
  float sum_limit;          /* a thread's sum of a tile's exponentials of one row up to which their reference will do */
  float rescale_slack_log2; /* how far a row's maximum may outgrow the exponentials' reference */
  uint64_t page_magic;      /* ceil(2^64 / page_size); not looked at for page_size 1 */
} ea_portable_launch;

#endif
