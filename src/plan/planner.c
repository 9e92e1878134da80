/* Tile shapes and pipeline depth for a GPU architecture: which kernel, how deep, and the
 * numbers that say why. */
#include "plan/planner.h"

#include <stdio.h>
#include <string.h>

#include "common/error.h"

/* Opt-in shared memory of a block and shared memory of a multiprocessor: CUDA C++ Programming
 * Guide, "Technical Specifications per Compute Capability". */
static const ea_arch archs[] = {
    {"sm_80", 80, 166912, 167936}, {"sm_86", 86, 101376, 102400},   {"sm_89", 89, 101376, 102400},
    {"sm_90", 90, 232448, 233472}, {"sm_100", 100, 232448, 233472}, {"sm_120", 120, 101376, 102400},
};
#define ARCH_COUNT ((int32_t)(sizeof archs / sizeof archs[0]))

/* What the system keeps of each block's shared memory (same source). */
#define RESERVED_SMEM_BYTES 1024

/* Deeper rings were not faster on an H200 (docs/plans.md, with records), and at D = 64 the portable kernel's
 * depth 4 lost the third block on the multiprocessor. */
#define DEEPEST_USEFUL 3

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

/* ---- which kernel ---- */

/* What keeps a family from an architecture or a type. */
static ea_status check_family(const ea_arch *arch, const ea_problem *problem, ea_family family) {
  if (family == EA_FAMILY_HOPPER && arch->capability != 90) {
    return ea_fail(EA_ERR_UNSUPPORTED, "family: found hopper on %s, allowed on sm_90 only", arch->name);
  }
  if (problem->dtype != EA_BF16 && problem->dtype != EA_F16) {
    return ea_fail(EA_ERR_UNSUPPORTED, "dtype: found %s, allowed bf16 or f16 on a GPU (the CPU takes f32)",
                   ea_dtype_name(problem->dtype));
  }
  if (arch->capability < 80) {
    return ea_fail(EA_ERR_UNSUPPORTED, "architecture: found %s, allowed sm_80 and later", arch->name);
  }
  return EA_OK;
}

/* The family's first kernel that accepts the problem and has room for so many stages; NULL: none. */
static const ea_kernel *first_kernel(const ea_arch *arch, const ea_problem *problem, ea_family family,
                                     int32_t min_stages) {
  int32_t count;
  const ea_kernel *kernels = ea_kernels(&count);
  for (int32_t i = 0; i < count; i++) {
    if (kernels[i].family != family || !ea_kernel_accepts(&kernels[i], problem)) continue;
    if (ea_kernel_deepest(&kernels[i], arch->smem_limit_bytes) >= min_stages) return &kernels[i];
  }
  return NULL;
}

/* A smaller tile that can be pipelined is worth more than a larger one that cannot. */
static const ea_kernel *find_kernel(const ea_arch *arch, const ea_problem *problem, ea_family family) {
  const ea_kernel *kernel = first_kernel(arch, problem, family, 2);
  return kernel ? kernel : first_kernel(arch, problem, family, 1);
}

static ea_status fail_no_kernel(const ea_arch *arch, const ea_problem *problem, ea_family family) {
  if (family == EA_FAMILY_HOPPER) {
    return ea_fail(EA_ERR_UNSUPPORTED,
                   "head_dim: found %d with head_dim_v %d and family hopper, allowed up to 512, or "
                   "576 with values of up to 512 inside the keys",
                   problem->head_dim, problem->head_dim_v);
  }
  return ea_fail(EA_ERR_UNSUPPORTED,
                 "head_dim: found %d with head_dim_v %d, whose smallest tiles do not fit into the "
                 "%lld bytes of shared memory of a block on %s",
                 problem->head_dim, problem->head_dim_v, (long long)arch->smem_limit_bytes, arch->name);
}

static int32_t group_of(const ea_problem *problem) {
  return problem->num_q_heads / problem->num_kv_heads;
}

static ea_status choose_kernel(const ea_arch *arch, const ea_problem *problem, ea_family family,
                               const ea_kernel **kernel) {
  const ea_status status = check_family(arch, problem, family);
  if (status) return status;
  *kernel = find_kernel(arch, problem, family);
  if (!*kernel) return fail_no_kernel(arch, problem, family);
  if (group_of(problem) <= (*kernel)->max_group) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED,
                 "num_q_heads: found %d a key/value head with family %s, allowed %d at this head_dim",
                 group_of(problem), ea_family_name(family), (*kernel)->max_group);
}

/* What the Hopper kernels are the faster ones for: rows that TMA and 16-byte copies can read. */
static ea_family faster_family(const ea_arch *arch, const ea_problem *problem) {
  if (arch->capability != 90 || (problem->dtype != EA_BF16 && problem->dtype != EA_F16)) return EA_FAMILY_PORTABLE;
  if (problem->cache_dtype != problem->dtype) return EA_FAMILY_PORTABLE;
  if (problem->head_dim % 8 != 0 || problem->head_dim_v % 8 != 0) return EA_FAMILY_PORTABLE;
  const ea_kernel *kernel = find_kernel(arch, problem, EA_FAMILY_HOPPER);
  return kernel && group_of(problem) <= kernel->max_group ? EA_FAMILY_HOPPER : EA_FAMILY_PORTABLE;
}

/* ---- how deep ---- */

/* As deep as helps without costing a block that could share the multiprocessor. */
static int32_t automatic_depth(const ea_kernel *kernel, const ea_arch *arch, int32_t max_stages) {
  const int64_t share = arch->smem_per_sm_bytes / kernel->blocks_per_sm - RESERVED_SMEM_BYTES;
  const int32_t sharing = ea_kernel_deepest(kernel, share);
  int32_t stages = sharing >= 2 ? sharing : max_stages;
  if (stages > max_stages) stages = max_stages;
  return stages < DEEPEST_USEFUL ? stages : DEEPEST_USEFUL;
}

/* The depth that was asked for, or the automatic one, and the shared memory it takes. */
static ea_status set_depth(const ea_arch *arch, const ea_kernel *kernel, int32_t asked, ea_plan_info *info) {
  info->max_stages = ea_kernel_deepest(kernel, arch->smem_limit_bytes);
  info->stages = asked > 0 ? asked : automatic_depth(kernel, arch, info->max_stages);
  const int64_t fixed_bytes = kernel->smem_bytes(kernel, 0);
  info->smem_bytes = fixed_bytes + info->stages * (kernel->smem_bytes(kernel, 1) - fixed_bytes);
  info->smem_limit_bytes = arch->smem_limit_bytes;
  if (info->stages <= info->max_stages) return EA_OK;
  return ea_fail(EA_ERR_DOES_NOT_FIT,
                 "stages: found %d, which needs %lld bytes of shared memory; %s allows a block %lld, so at most %d",
                 asked, (long long)info->smem_bytes, arch->name, (long long)arch->smem_limit_bytes, info->max_stages);
}

/* ---- why ---- */

/* What one stage holds. */
static void describe_stage(const ea_kernel *kernel, char *text, size_t size) {
  if (kernel->launch == EA_LAUNCH_HOPPER_WIDE) {
    const ea_wide_shape shape = kernel->shape.hopper_wide;
    snprintf(text, size, "%d units of %d bytes for each of two consumers", ea_wide_slots(shape, 1),
             ea_wide_unit_bytes(shape));
  } else {
    snprintf(text, size, "K and V tiles of %d keys, dims %d + %d", kernel->tile_n, kernel->dim, kernel->dim_v);
  }
}

/* How many blocks a multiprocessor holds. */
static void describe_blocks(const ea_kernel *kernel, const ea_arch *arch, int64_t smem_bytes, char *text, size_t size) {
  if (kernel->family == EA_FAMILY_HOPPER) {
    snprintf(text, size, "persistent, one block a multiprocessor");
  } else {
    const int64_t blocks = arch->smem_per_sm_bytes / (smem_bytes + RESERVED_SMEM_BYTES);
    snprintf(text, size, "%lld block%s on a multiprocessor", (long long)blocks, blocks == 1 ? "" : "s");
  }
}

static void explain(const ea_kernel *kernel, const ea_arch *arch, int32_t asked, ea_plan_info *info) {
  char stage[96], blocks[64];
  describe_stage(kernel, stage, sizeof stage);
  describe_blocks(kernel, arch, info->smem_bytes, blocks, sizeof blocks);
  const int32_t fixed_bytes = kernel->smem_bytes(kernel, 0), stages = info->stages;
  const int32_t stage_bytes = kernel->smem_bytes(kernel, 1) - fixed_bytes;
  const char *why = asked > 0                    ? "as asked"
                    : stages == info->max_stages ? "the deepest that fits"
                    : stages == DEEPEST_USEFUL   ? "deeper was not faster"
                                                 : "deeper would cost a block on the multiprocessor";
  snprintf(info->reason, sizeof info->reason, "Q and bookkeeping take %d bytes and a stage (%s) %d; %d stage%s: %s; %s",
           fixed_bytes, stage, stage_bytes, stages, stages == 1 ? "" : "s", why, blocks);
}

ea_status ea_plan_gpu(const ea_arch *arch, const ea_problem *resolved, const ea_plan_options *options,
                      ea_plan_info *info, const ea_kernel **kernel) {
  ea_family family = options->family;
  if (family == EA_FAMILY_AUTO) family = faster_family(arch, resolved);
  const ea_kernel *chosen;
  ea_status status = choose_kernel(arch, resolved, family, &chosen);
  if (!status) status = set_depth(arch, chosen, options->stages, info);
  if (status) return status;
  info->family = family;
  snprintf(info->kernel, sizeof info->kernel, "%s_%s", chosen->name, ea_dtype_name(resolved->dtype));
  info->tile_m = chosen->tile_m;
  info->tile_n = chosen->tile_n;
  info->threads = chosen->threads;
  explain(chosen, arch, options->stages, info);
  *kernel = chosen;
  return EA_OK;
}
