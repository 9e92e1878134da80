/* Tile shapes and pipeline depth for a GPU architecture: which kernel, how deep, and the
 * numbers that say why. */
#include "plan/planner.h"

#include <stdio.h>
#include <string.h>

#include "common/error.h"
#include "plan/hopper.h"
#include "plan/hopper_wide.h"
#include "plan/portable.h"

/* Opt-in shared memory of a block and shared memory of a multiprocessor: CUDA C++ Programming
 * Guide, "Technical Specifications per Compute Capability". */
static const ea_arch archs[] = {
    {"sm_80", 80, 166912, 167936}, {"sm_86", 86, 101376, 102400},   {"sm_89", 89, 101376, 102400},
    {"sm_90", 90, 232448, 233472}, {"sm_100", 100, 232448, 233472}, {"sm_120", 120, 101376, 102400},
};
#define ARCH_COUNT ((int32_t)(sizeof archs / sizeof archs[0]))

/* What the system keeps of each block's shared memory (same source). */
#define RESERVED_SMEM_BYTES 1024

/* Deeper rings were not faster on an H200: depths 1 to 3 are recorded in bench/results, and at D = 64
 * depth 4 lost the third block on the multiprocessor. */
#define DEEPEST_USEFUL 3

#define SHAPE_ENTRY(name, d, dv, m, n, qm, qn, pm, pn, blocks) {#name, d, dv, m, n, qm, qn, pm, pn, blocks},
static const ea_portable_shape shapes[] = {EA_PORTABLE_SHAPES(SHAPE_ENTRY)};
#define SHAPE_COUNT ((int32_t)(sizeof shapes / sizeof shapes[0]))

const ea_arch *ea_known_archs(int32_t *count) {
  *count = ARCH_COUNT;
  return archs;
}

const ea_arch *ea_arch_find(const char *name) {
  for (int32_t i = 0; i < ARCH_COUNT; i++) {
    if (strcmp(archs[i].name, name) == 0) return &archs[i];
  }
  return NULL;
}

/* The deepest pipeline whose block fits into limit bytes; 0 when not even one stage does. */
static int32_t deepest_that_fits(const ea_portable_shape *shape, int64_t limit) {
  const ea_portable_smem none = ea_portable_smem_layout(*shape, 0);
  if (none.total > limit) return 0;
  const int64_t fit = (limit - none.total) / none.stage_bytes;
  return fit < EA_PORTABLE_MAX_STAGES ? (int32_t)fit : EA_PORTABLE_MAX_STAGES;
}

/* The first shape in the list's order that holds the head dimensions with at least min_stages. */
static const ea_portable_shape *find_shape(const ea_problem *problem, int64_t limit, int32_t min_stages) {
  for (int32_t i = 0; i < SHAPE_COUNT; i++) {
    if (shapes[i].dim < problem->head_dim || shapes[i].dim_v < problem->head_dim_v) continue;
    if (deepest_that_fits(&shapes[i], limit) >= min_stages) return &shapes[i];
  }
  return NULL;
}

/* As deep as helps without costing a block that could share the multiprocessor. */
static int32_t automatic_depth(const ea_portable_shape *shape, const ea_arch *arch, int32_t max_stages) {
  const int64_t share = arch->smem_per_sm_bytes / shape->blocks_per_sm - RESERVED_SMEM_BYTES;
  const int32_t sharing = deepest_that_fits(shape, share);
  int32_t stages = sharing >= 2 ? sharing : max_stages;
  if (stages > max_stages) stages = max_stages;
  return stages < DEEPEST_USEFUL ? stages : DEEPEST_USEFUL;
}

/* The depth that was asked for, or the automatic one, and the shared memory it takes. */
static ea_status set_depth(const ea_arch *arch, int32_t asked, int32_t automatic, int32_t max_stages,
                           int64_t fixed_bytes, int64_t stage_bytes, ea_plan_info *info) {
  info->stages = asked > 0 ? asked : automatic;
  info->max_stages = max_stages;
  info->smem_bytes = fixed_bytes + info->stages * stage_bytes;
  info->smem_limit_bytes = arch->smem_limit_bytes;
  if (info->stages <= max_stages) return EA_OK;
  return ea_fail(EA_ERR_DOES_NOT_FIT,
                 "stages: found %d, which needs %lld bytes of shared memory; %s allows a block %lld, so at most %d",
                 asked, (long long)info->smem_bytes, arch->name, (long long)arch->smem_limit_bytes, max_stages);
}

static ea_status plan_portable(const ea_arch *arch, const ea_problem *problem, int32_t asked, ea_plan_info *info) {
  if (problem->dtype != EA_BF16 && problem->dtype != EA_F16) {
    return ea_fail(EA_ERR_UNSUPPORTED, "dtype: found %s, allowed bf16 or f16 on a GPU (the CPU takes f32)",
                   ea_dtype_name(problem->dtype));
  }
  if (arch->capability < 80) {
    return ea_fail(EA_ERR_UNSUPPORTED, "architecture: found %s, allowed sm_80 and later", arch->name);
  }
  /* A smaller tile that can be pipelined is worth more than a larger one that cannot. */
  const int64_t limit = arch->smem_limit_bytes;
  const ea_portable_shape *shape = find_shape(problem, limit, 2);
  if (!shape) shape = find_shape(problem, limit, 1);
  if (!shape) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "head_dim: found %d with head_dim_v %d, whose smallest tiles do not fit into the "
                   "%lld bytes of shared memory of a block on %s",
                   problem->head_dim, problem->head_dim_v, (long long)limit, arch->name);
  }
  const int32_t max_stages = deepest_that_fits(shape, limit);
  const ea_portable_smem none = ea_portable_smem_layout(*shape, 0);
  const ea_status status =
      set_depth(arch, asked, automatic_depth(shape, arch, max_stages), max_stages, none.total, none.stage_bytes, info);
  if (status) return status;
  info->family = EA_FAMILY_PORTABLE;
  snprintf(info->kernel, sizeof info->kernel, "portable_%s_%s", shape->name, ea_dtype_name(problem->dtype));
  info->tile_m = shape->tile_m;
  info->tile_n = shape->tile_n;
  info->threads = shape->qk_warps_m * shape->qk_warps_n * 32;
  info->registers = 0;
  const int32_t fixed_bytes = none.total, stages = info->stages;
  const int64_t blocks = arch->smem_per_sm_bytes / (info->smem_bytes + RESERVED_SMEM_BYTES);
  const char *why = asked > 0                  ? "as asked"
                    : stages == max_stages     ? "the deepest that fits"
                    : stages == DEEPEST_USEFUL ? "deeper was not faster"
                                               : "deeper would cost a block on the multiprocessor";
  snprintf(info->reason, sizeof info->reason,
           "Q and bookkeeping take %d bytes and a stage (%d keys, dims %d + %d) %d; %d stage%s: %s; %lld block%s on a "
           "multiprocessor",
           fixed_bytes, shape->tile_n, shape->dim, shape->dim_v, none.stage_bytes, stages, stages == 1 ? "" : "s", why,
           (long long)blocks, blocks == 1 ? "" : "s");
  return EA_OK;
}

#define HOPPER_ENTRY(name, d, dv, wg, n, consumer_registers, producer_registers, window, calls)                        \
  {#name, d, dv, wg, n, window, calls},
static const ea_hopper_shape hopper_shapes[] = {EA_HOPPER_SHAPES(HOPPER_ENTRY)};
#define HOPPER_COUNT ((int32_t)(sizeof hopper_shapes / sizeof hopper_shapes[0]))

const ea_hopper_shape *ea_hopper_find_shape(const ea_problem *problem) {
  const bool scaled =
      problem->logit_cap > 0 || problem->xai_temperature_len > 0 || problem->k_scale != 1 || problem->v_scale != 1;
  const ea_hopper_calls calls = scaled ? EA_CALLS_SCALED : EA_CALLS_PLAIN;
  for (int32_t i = 0; i < HOPPER_COUNT; i++) {
    const ea_hopper_shape *shape = &hopper_shapes[i];
    const bool dims_fit = shape->dim >= problem->head_dim && shape->dim_v >= problem->head_dim_v;
    const bool window_fits = shape->window == 0 || (problem->window_left > 0 && problem->window_left <= shape->window);
    if (dims_fit && window_fits && (shape->calls == EA_CALLS_ANY || shape->calls == calls)) return shape;
  }
  return NULL;
}

/* What keeps a problem from the Hopper family. max_group: query heads a key/value head; 0 where it has no shape. */
static ea_status check_hopper(const ea_arch *arch, const ea_problem *problem, int32_t max_group) {
  if (arch->capability != 90) {
    return ea_fail(EA_ERR_UNSUPPORTED, "family: found hopper on %s, allowed on sm_90 only", arch->name);
  }
  if (problem->dtype != EA_BF16 && problem->dtype != EA_F16) {
    return ea_fail(EA_ERR_UNSUPPORTED, "dtype: found %s, allowed bf16 or f16 on a GPU (the CPU takes f32)",
                   ea_dtype_name(problem->dtype));
  }
  if (max_group == 0) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "head_dim: found %d with head_dim_v %d and family hopper, allowed up to 512, or "
                   "576 with values of up to 512 inside the keys",
                   problem->head_dim, problem->head_dim_v);
  }
  const int32_t group = problem->num_q_heads / problem->num_kv_heads;
  if (group > max_group) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "num_q_heads: found %d a key/value head with family hopper, allowed %d at this head_dim", group,
                   max_group);
  }
  return EA_OK;
}

static ea_status plan_wide(const ea_arch *arch, const ea_problem *problem, int32_t asked, ea_plan_info *info) {
  const ea_wide_shape shape = ea_wide_find_shape(problem->head_dim, problem->head_dim_v, problem->shared_kv);
  ea_status status = check_hopper(arch, problem, shape.name ? INT32_MAX : 0); /* groups are cut */
  if (status) return status;
  const int64_t limit = arch->smem_limit_bytes;
  const int32_t fixed_bytes = ea_wide_smem_layout(shape, 0).total;
  const int32_t stage_bytes = ea_wide_smem_layout(shape, 1).total - fixed_bytes;
  int32_t max_stages = (int32_t)((limit - fixed_bytes) / stage_bytes);
  if (max_stages > EA_WIDE_MAX_STAGES) max_stages = EA_WIDE_MAX_STAGES;
  if (shape.latent) max_stages = 1; /* the schedule is made for one tile of each consumer */
  status = set_depth(arch, asked, max_stages, max_stages, fixed_bytes, stage_bytes, info);
  if (status) return status;
  info->family = EA_FAMILY_HOPPER;
  snprintf(info->kernel, sizeof info->kernel, "hopper_%s_%s", shape.name, ea_dtype_name(problem->dtype));
  info->tile_m = EA_WIDE_M;
  info->tile_n = EA_WIDE_N;
  info->threads = EA_WIDE_THREADS;
  info->registers = 0;
  snprintf(info->reason, sizeof info->reason,
           "Q and bookkeeping take %d bytes and a stage (%d units of %d bytes for each of two consumers) %d; %d "
           "stage%s: %s; one block fills a multiprocessor",
           fixed_bytes, ea_wide_slots(shape, 1), ea_wide_unit_bytes(shape), stage_bytes, info->stages,
           info->stages == 1 ? "" : "s", asked > 0 ? "as asked" : "the deepest that fits");
  return EA_OK;
}

static ea_status plan_hopper(const ea_arch *arch, const ea_problem *problem, int32_t asked, ea_plan_info *info) {
  const ea_hopper_shape *shape = ea_hopper_find_shape(problem);
  if (!shape) return plan_wide(arch, problem, asked, info);
  ea_status status = check_hopper(arch, problem, shape->consumers * 64);
  if (status) return status;
  const int64_t limit = arch->smem_limit_bytes;
  const int32_t fixed_bytes = ea_hopper_smem_layout(*shape, 0).total;
  const int32_t stage_bytes = ea_hopper_smem_layout(*shape, 1).total - fixed_bytes;
  int32_t max_stages = (int32_t)((limit - fixed_bytes) / stage_bytes);
  if (max_stages > EA_HOPPER_MAX_STAGES) max_stages = EA_HOPPER_MAX_STAGES;
  const int32_t automatic = max_stages < DEEPEST_USEFUL ? max_stages : DEEPEST_USEFUL;
  status = set_depth(arch, asked, automatic, max_stages, fixed_bytes, stage_bytes, info);
  if (status) return status;
  const int32_t stages = info->stages;
  info->family = EA_FAMILY_HOPPER;
  snprintf(info->kernel, sizeof info->kernel, "hopper_%s_%s", shape->name, ea_dtype_name(problem->dtype));
  info->tile_m = shape->consumers * 64;
  info->tile_n = shape->tile_n;
  info->threads = (shape->consumers + 1) * 128;
  info->registers = 0;
  snprintf(info->reason, sizeof info->reason,
           "Q and bookkeeping take %d bytes and a stage (%d keys, dims %d + %d) %d; %d stage%s: %s; one block fills a "
           "multiprocessor",
           fixed_bytes, shape->tile_n, shape->dim, shape->dim_v, stage_bytes, stages, stages == 1 ? "" : "s",
           asked > 0              ? "as asked"
           : stages == max_stages ? "the deepest that fits"
                                  : "deeper is not expected to help");
  return EA_OK;
}

/* What the Hopper kernels are the faster ones for: rows that TMA and 16-byte copies can read. */
static bool hopper_is_faster(const ea_arch *arch, const ea_problem *problem) {
  if (arch->capability != 90 || (problem->dtype != EA_BF16 && problem->dtype != EA_F16)) return false;
  if (problem->cache_dtype != problem->dtype) return false;
  if (problem->head_dim % 8 != 0 || problem->head_dim_v % 8 != 0) return false;
  const ea_hopper_shape *shape = ea_hopper_find_shape(problem);
  if (shape) return problem->num_q_heads / problem->num_kv_heads <= shape->consumers * 64;
  return ea_wide_find_shape(problem->head_dim, problem->head_dim_v, problem->shared_kv).name != NULL;
}

ea_status ea_plan_gpu(const ea_arch *arch, const ea_problem *resolved, const ea_plan_options *options,
                      ea_plan_info *info) {
  ea_plan_options asked = EA_PLAN_OPTIONS_INIT;
  if (options) asked = *options;
  if (asked.stages < 0) {
    return ea_fail(EA_ERR_INVALID, "stages: found %d, allowed 0 (automatic) or more", asked.stages);
  }
  switch (asked.family) {
  case EA_FAMILY_AUTO:
    return (hopper_is_faster(arch, resolved) ? plan_hopper : plan_portable)(arch, resolved, asked.stages, info);
  case EA_FAMILY_PORTABLE:
    return plan_portable(arch, resolved, asked.stages, info);
  case EA_FAMILY_HOPPER:
    return plan_hopper(arch, resolved, asked.stages, info);
  default:
    return ea_fail(EA_ERR_UNSUPPORTED, "family: found %s, allowed auto, portable or hopper on a GPU",
                   ea_family_name(asked.family));
  }
}
