/* The choice of tile shapes and pipeline depth for a GPU architecture, away from the
 * kernels. Pure host C; needs no device. */
#ifndef EA_PLAN_PLANNER_H
#define EA_PLAN_PLANNER_H

#include "extattn.h"
#include "plan/kernels.h"

typedef struct ea_arch {
  const char *name;          /* "sm_90" */
  int32_t capability;        /* 90: major * 10 + minor */
  int64_t smem_limit_bytes;  /* opt-in shared memory of one block */
  int64_t smem_per_sm_bytes; /* of a multiprocessor, for how many blocks share one */
} ea_arch;

/* All that the planner knows by name, oldest first, and how many. */
const ea_arch *ea_known_archs(int32_t *count);
/* NULL when the name is not known. */
const ea_arch *ea_arch_find(const char *name);

/* The plan for a resolved problem on an architecture (a real device passes its own
 * answers in arch), and the registry's row of its kernel. EA_ERR_UNSUPPORTED,
 * EA_ERR_DOES_NOT_FIT (with bytes needed, allowed and the deepest that fits) as
 * ea_plan_create says. */
ea_status ea_plan_gpu(const ea_arch *arch, const ea_problem *resolved, const ea_plan_options *options,
                      ea_plan_info *info, const ea_kernel **kernel);

#endif
