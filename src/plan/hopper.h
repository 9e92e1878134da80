/* The shapes of the Hopper kernels for head dimensions up to 256 (rows of plan/kernel_list.h) and their shared memory,
 * for the planner, the launch, the kernel and the tests: one list, one formula.
 *
 * A block is one producer warpgroup and WG consumer warpgroups of 64 query rows each. Tiles lie
 * in shared memory as slices of 64 columns (128 bytes, the swizzle's and the copies' unit), so a
 * head dimension is padded there to a multiple of 64; the products stop at D and Dv. */
#ifndef EA_PLAN_HOPPER_H
#define EA_PLAN_HOPPER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/hd.h"
#include "plan/kernel_list.h"
#include "plan/walk.h"

/* EA_HOPPER_d64_N and so on: constants for the kernel, which is compiled once a shape. */
#define EA_HOPPER_CONSTANTS(name, source, archs, d, dv, wg, n, consumer_registers, producer_registers, window, calls)  \
  enum {                                                                                                               \
    EA_HOPPER_##name##_DIM = (d),                                                                                      \
    EA_HOPPER_##name##_DIM_V = (dv),                                                                                   \
    EA_HOPPER_##name##_WG = (wg),                                                                                      \
    EA_HOPPER_##name##_N = (n),                                                                                        \
    EA_HOPPER_##name##_CONSUMER_REGISTERS = (consumer_registers),                                                      \
    EA_HOPPER_##name##_PRODUCER_REGISTERS = (producer_registers),                                                      \
    EA_HOPPER_##name##_CALLS = (calls)                                                                                 \
  };
EA_KERNELS(EA_HOPPER_CONSTANTS, EA_NO_ROW, EA_NO_ROW, EA_NO_ROW)

typedef struct ea_hopper_shape {
  const char *name;
  int32_t dim, dim_v;
  int32_t consumers; /* warpgroups */
  int32_t tile_n;
  int32_t window; /* only for windows up to this; 0: with any and without */
  ea_hopper_calls calls;
} ea_hopper_shape;

#define EA_HOPPER_SLICE 64 /* columns */
#define EA_HOPPER_SLICE_BYTES 128
#define EA_HOPPER_MAX_STAGES 8
#define EA_HOPPER_ITEMS 4 /* work tiles in flight: the one in hand and those ahead */
#define EA_HOPPER_ITEM_BYTES 128
#define EA_HOPPER_MARKS_BYTES 16 /* for a build that records times (cuda/kernels/timeline.h) */

EA_HD int32_t ea_hopper_slices(int32_t dim) {
  return (dim + EA_HOPPER_SLICE - 1) / EA_HOPPER_SLICE;
}

/* Offsets in bytes from the start of a block's dynamic shared memory (1024-byte aligned). What does not
 * depend on the depth comes first: constants for the kernel. A barrier pair (full, empty) takes 16 bytes. */
typedef struct ea_hopper_smem {
  int32_t q;        /* M x D */
  int32_t barriers; /* of Q, then of K's stages, then of V's, then four of work tiles */
  int32_t items;    /* the work tiles in flight */
  int32_t marks;
  int32_t k, v; /* of the first stage: N x D and N x Dv, one behind the other */
  int32_t k_bytes, v_bytes;
  int32_t total;
} ea_hopper_smem;

EA_HD ea_hopper_smem ea_hopper_smem_layout(ea_hopper_shape shape, int32_t stages) {
  ea_hopper_smem s;
  s.k_bytes = shape.tile_n * ea_hopper_slices(shape.dim) * EA_HOPPER_SLICE_BYTES;
  s.v_bytes = shape.tile_n * ea_hopper_slices(shape.dim_v) * EA_HOPPER_SLICE_BYTES;
  s.q = 0;
  s.barriers = shape.consumers * 64 * ea_hopper_slices(shape.dim) * EA_HOPPER_SLICE_BYTES;
  s.items = s.barriers + (3 + 2 * EA_HOPPER_MAX_STAGES) * 16;
  s.marks = s.items + EA_HOPPER_ITEMS * EA_HOPPER_ITEM_BYTES;
  s.k = (s.marks + EA_HOPPER_MARKS_BYTES + 1023) / 1024 * 1024;
  s.v = s.k + s.k_bytes;
  s.total = s.k + stages * (s.k_bytes + s.v_bytes);
  return s;
}

/* Equal parts that a GQA group is cut into, so that each has no more heads than a block has rows. */
EA_HD int32_t ea_hopper_group_parts(int32_t tile_m, int32_t group) {
  int32_t parts = (group + tile_m - 1) / tile_m;
  while (group % parts != 0) parts++;
  return parts;
}

/* Tokens of a block: whole ones, all heads of their group. The group is at most M. */
EA_HD int32_t ea_hopper_block_tokens(int32_t tile_m, int32_t group) {
  return tile_m / group;
}

/* Row blocks: sequence b's begin at qo_indptr[b] / tokens + b, which leaves each sequence as many as
 * it can need and needs no table. */
EA_HD int32_t ea_hopper_first_block(int32_t qo_start, int32_t b, int32_t block_tokens) {
  return qo_start / block_tokens + b;
}

typedef struct ea_row_block {
  int32_t seq, i0; /* its sequence and first query */
} ea_row_block;

/* Row block `block` of them all: a spare one, which no sequence needs, begins behind its sequence's end. qo_indptr has
 * one entry more than num_seqs. */
EA_HD ea_row_block ea_hopper_find_row_block(const int32_t *qo_indptr, int32_t num_seqs, int32_t block,
                                            int32_t block_tokens) {
  int32_t low = 0, high = num_seqs; /* low's first block is never behind: it is 0 for sequence 0 */
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    if (ea_hopper_first_block(qo_indptr[middle], middle, block_tokens) <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int32_t first = low == 0 ? 0 : ea_hopper_first_block(qo_indptr[low], low, block_tokens);
  const ea_row_block found = {low, (block - first) * block_tokens};
  return found;
}

#endif
