/* What a kernel of the CPU backend gives to the driver. A kernel is one file that is compiled
 * for one instruction set: a vector header (vec_*.h), a products header (products_*.h) and the
 * loop that all of them share (block.h). */
#ifndef EA_CPU_KERNELS_KERNEL_H
#define EA_CPU_KERNELS_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include "problem/call.h"

/* Rows [row_first, row_first + rows) of sequence seq, as plan/walk.h counts them. */
typedef struct ea_cpu_item {
  int64_t seq;
  int64_t row_first;
  int32_t rows;
  int32_t kv_head;
  ea_view view; /* of the sequence */
} ea_cpu_item;

typedef struct ea_cpu_kernel {
  const char *name;
  int32_t tile_m;   /* most query rows a block */
  int32_t tile_n;   /* keys a tile */
  int32_t row_step; /* smaller blocks are multiples of this */
  /* Scratch memory of one thread, 64-byte aligned; a multiple of 64 bytes. */
  size_t (*scratch_bytes)(int32_t head_dim, int32_t head_dim_v);
  /* Around all the items that a thread takes: processor state that the kernel needs. */
  void (*enter)(void *state);
  void (*leave)(void *state);
  void (*run)(const ea_call *call, const ea_cpu_item *item, void *scratch);
} ea_cpu_kernel;

/* Room for what enter() keeps for leave(). */
enum { EA_CPU_STATE_BYTES = 64 };

/* Sizes of a block's packed data; see block.h for units and panels. */
typedef struct block_dims {
  int32_t head_dim;
  int32_t head_dim_v;
  int32_t head_units;  /* of a query or key, padded to whole vectors */
  int32_t value_width; /* head_dim_v, padded likewise */
  size_t key_panel;    /* floats from one panel to the next */
  size_t value_panel;
} block_dims;

extern const ea_cpu_kernel ea_cpu_portable_f32;
extern const ea_cpu_kernel ea_cpu_avx2_f32;
extern const ea_cpu_kernel ea_cpu_avx512_f32;
extern const ea_cpu_kernel ea_cpu_avx512_bf16;
extern const ea_cpu_kernel ea_cpu_amx_bf16;

#endif
