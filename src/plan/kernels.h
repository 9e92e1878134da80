/* The registry: what is known of each attention kernel of the CUDA backend, for the planner, which chooses one, and the
 * launch, which runs the one that a plan points to. Made from plan/kernel_list.h. */
#ifndef EA_PLAN_KERNELS_H
#define EA_PLAN_KERNELS_H

#include "extattn.h"
#include "plan/hopper.h"
#include "plan/hopper_wide.h"
#include "plan/portable.h"

/* How it is launched (src/cuda): which arguments, grid and tensor maps. */
typedef enum ea_launch_kind { EA_LAUNCH_HOPPER, EA_LAUNCH_HOPPER_WIDE, EA_LAUNCH_PORTABLE } ea_launch_kind;

typedef struct ea_kernel ea_kernel;
struct ea_kernel {
  const char *name; /* "hopper_d64": its entry points are hopper_d64_bf16 and hopper_d64_f16 */
  ea_family family;
  ea_launch_kind launch;
  int32_t tile_m, tile_n; /* query rows of a work tile, keys of a tile */
  int32_t threads;        /* a block */

  /* What it accepts. Cache types do not matter: each kernel reads them all. */
  int32_t dim, dim_v; /* at most */
  ea_hopper_calls calls;
  int32_t window;    /* only windows up to this; 0: any and none */
  bool latent;       /* only values that are K's first columns */
  int32_t max_group; /* query heads a key/value head; INT32_MAX: larger groups are cut */

  int32_t max_stages;                                             /* of the ring, however much memory there is */
  int32_t blocks_per_sm;                                          /* which the registers allow */
  int32_t (*smem_bytes)(const ea_kernel *kernel, int32_t stages); /* dynamic shared memory; linear in stages */
  union {
    ea_hopper_shape hopper;
    ea_wide_shape hopper_wide;
    ea_portable_shape portable;
  } shape; /* the launch kind's: what its layout of shared memory follows from */
};

/* All of them; of a family, a problem takes the first that accepts it. */
const ea_kernel *ea_kernels(int32_t *count);

/* Whether its head dimensions, window, values and scales are what the kernel is for. */
bool ea_kernel_accepts(const ea_kernel *kernel, const ea_problem *resolved);

/* The deepest ring whose block fits into so many bytes; 0 when not even one stage does. */
int32_t ea_kernel_deepest(const ea_kernel *kernel, int64_t limit_bytes);

#endif
