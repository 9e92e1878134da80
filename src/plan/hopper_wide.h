/* The shapes of the Hopper kernels for head dimensions above 256 (rows of plan/kernel_list.h) and their shared memory,
 * for the planner, the launch, the kernel and the tests. What is common with the narrower ones is in plan/hopper.h.
 *
 * A block has 64 query rows, one producer warpgroup and two consumer warpgroups, which own half of the
 * output's columns each. Keys go in pairs of tiles of 64, one for the scores of each consumer. A consumer
 * has a ring of units of its own. A unit has the bytes of one or two slices of 64 x 64: of K 64 keys x 64 columns,
 * of V 16 keys x 256 columns, or two of them. */
#ifndef EA_PLAN_HOPPER_WIDE_H
#define EA_PLAN_HOPPER_WIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/hd.h"
#include "plan/hopper.h"

/* EA_WIDE_d512_UNIT and so on: constants for the kernel, which is compiled once a shape. */
#define EA_WIDE_CONSTANTS(name, source, archs, d, dv, latent, unit, consumer_registers, producer_registers)            \
  enum {                                                                                                               \
    EA_WIDE_##name##_DIM = (d),                                                                                        \
    EA_WIDE_##name##_DIM_V = (dv),                                                                                     \
    EA_WIDE_##name##_LATENT = (latent),                                                                                \
    EA_WIDE_##name##_UNIT = (unit),                                                                                    \
    EA_WIDE_##name##_CONSUMER_REGISTERS = (consumer_registers),                                                        \
    EA_WIDE_##name##_PRODUCER_REGISTERS = (producer_registers)                                                         \
  };
EA_KERNELS(EA_NO_ROW, EA_WIDE_CONSTANTS, EA_NO_ROW, EA_NO_ROW)

typedef struct ea_wide_shape {
  const char *name;
  int32_t dim, dim_v;
  int32_t latent; /* V is K's first columns */
  int32_t unit;   /* slices */
} ea_wide_shape;

#define EA_WIDE_M 64
#define EA_WIDE_N 64   /* keys a tile */
#define EA_WIDE_PAIR 2 /* tiles */
#define EA_WIDE_THREADS 384

#define EA_WIDE_V_COLUMNS 256
#define EA_WIDE_STAGE_SLOTS                                                                                            \
  2 /* of each consumer's ring; with one, a unit could not be released after the next is read */
#define EA_WIDE_MAX_STAGES 8
#define EA_WIDE_MAX_SLOTS (EA_WIDE_MAX_STAGES * EA_WIDE_STAGE_SLOTS)
#define EA_WIDE_P_BYTES (EA_WIDE_M * EA_WIDE_N * 2)

EA_HD int32_t ea_wide_unit_bytes(ea_wide_shape shape) {
  return shape.unit * EA_WIDE_N * EA_HOPPER_SLICE_BYTES;
}

/* Keys of a unit of V, x 256 columns. */
EA_HD int32_t ea_wide_v_keys(ea_wide_shape shape) {
  return shape.unit * 16;
}

/* Units of a consumer's ring. Latent: one tile, of which all but the last slice are also values; that one's
 * place takes the probabilities when the scores are done. */
EA_HD int32_t ea_wide_slots(ea_wide_shape shape, int32_t stages) {
  return stages * (shape.latent ? ea_hopper_slices(shape.dim) : EA_WIDE_STAGE_SLOTS);
}

/* Offsets in bytes from the start of a block's dynamic shared memory (1024-byte aligned). */
typedef struct ea_wide_smem {
  int32_t q; /* 64 x D */
  int32_t p; /* probabilities on their way to the other consumer: two of each consumer's (latent: none) */
  int32_t
      barriers; /* pairs (full, empty) of Q and of the rings' units, then four of consumers and four of work tiles */
  int32_t marks;
  int32_t maxima; /* f32, two rounds of each consumer's 64 rows */
  int32_t items;  /* the work tiles in flight */
  int32_t ring;   /* the two consumers' rings */
  int32_t total;
} ea_wide_smem;

EA_HD ea_wide_smem ea_wide_smem_layout(ea_wide_shape shape, int32_t stages) {
  ea_wide_smem s;
  s.q = 0;
  s.p = EA_WIDE_M * ea_hopper_slices(shape.dim) * EA_HOPPER_SLICE_BYTES;
  s.barriers = s.p + (shape.latent ? 0 : 2 * 2 * EA_WIDE_P_BYTES);
  s.marks = s.barriers + (5 + 2 * EA_WIDE_MAX_SLOTS) * 16;
  s.maxima = (s.marks + EA_HOPPER_MARKS_BYTES + 127) / 128 * 128;
  s.items = s.maxima + 2 * 2 * EA_WIDE_M * 4;
  s.ring = (s.items + EA_HOPPER_ITEMS * EA_HOPPER_ITEM_BYTES + 1023) / 1024 * 1024;
  s.total = s.ring + 2 * ea_wide_slots(shape, stages) * ea_wide_unit_bytes(shape);
  return s;
}

#endif
