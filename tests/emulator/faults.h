/* A small pipeline for the emulator's own test: out = A (B_0 + B_1 + ...)^T, with every faculty that the
 * Hopper kernels use. FAULT_NONE is right at any order of events; every other leaves out one thing, and
 * the emulator has to notice. */
#ifndef EA_EMULATOR_FAULTS_H
#define EA_EMULATOR_FAULTS_H

#include "cuda/kernels/tensor_map.h"

enum { FAULTS_ROWS = 64, FAULTS_COLS = 64, FAULTS_TILES = 7, FAULTS_THREADS = 256, FAULTS_SMEM_BYTES = 32 * 1024 };

#define EA_FAULTS(X)                                                                                                   \
  X(NONE)                                                                                                              \
  X(NO_WAIT_FOR_TILE)                                                                                                  \
  X(RELEASED_BEFORE_THE_PRODUCT)                                                                                       \
  X(NEVER_RELEASED)                                                                                                    \
  X(WRONG_PARITY)                                                                                                      \
  X(NO_FENCE_AFTER_CP_ASYNC)                                                                                           \
  X(NO_FENCE_AFTER_ARRIVAL)                                                                                            \
  X(NO_ARRIVAL_OF_COPIES)                                                                                              \
  X(NO_WAIT_FOR_CP_ASYNC)                                                                                              \
  X(NO_FENCE_AFTER_STORES)                                                                                             \
  X(NO_WGMMA_FENCE)                                                                                                    \
  X(NO_WAIT_FOR_THE_PRODUCT)                                                                                           \
  X(ACCUMULATOR_WRITTEN_IN_FLIGHT)                                                                                     \
  X(ONE_ARRIVAL_TOO_MANY)                                                                                              \
  X(TOO_FEW_BYTES_EXPECTED)                                                                                            \
  X(TOO_MANY_BYTES_EXPECTED)                                                                                           \
  X(SHARED_OUT_OF_RANGE)                                                                                               \
  X(DEVICE_OUT_OF_RANGE)                                                                                               \
  X(A_LANE_STRAYS)                                                                                                     \
  X(A_LANE_STAYS_AWAY)                                                                                                 \
  X(OTHER_DESCRIPTOR)                                                                                                  \
  X(UNLIKE_BAR_COUNTS)                                                                                                 \
  X(COPY_LEFT_BEHIND)                                                                                                  \
  X(BARRIER_OVERWRITTEN)                                                                                               \
  X(NO_SYNC_BEFORE_LDMATRIX)

#define EA_FAULT_NUMBER(name) FAULT_##name,
typedef enum ea_fault { EA_FAULTS(EA_FAULT_NUMBER) NUM_FAULTS } ea_fault;

typedef struct ea_faults_args {
  ea_tensor_map map; /* of b */
  const uint16_t *a; /* bf16 [64][64] */
  const uint16_t *b; /* bf16 [tiles * 64][64] */
  float *out;        /* [64][64] */
  int fault;
} ea_faults_args;

#endif
