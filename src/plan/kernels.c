/* See kernels.h: the rows, and the questions that one asks of them. */
#include "plan/kernels.h"

static int32_t hopper_bytes(const ea_kernel *kernel, int32_t stages) {
  return ea_hopper_smem_layout(kernel->shape.hopper, stages).total;
}

static int32_t hopper_wide_bytes(const ea_kernel *kernel, int32_t stages) {
  return ea_wide_smem_layout(kernel->shape.hopper_wide, stages).total;
}

static int32_t portable_bytes(const ea_kernel *kernel, int32_t stages) {
  return ea_portable_smem_layout(kernel->shape.portable, stages).total;
}

#define HOPPER_ROW(row, source, archs, d, dv, wg, n, consumer_registers, producer_registers, longest_window, of_calls) \
  {                                                                                                                    \
      .name = "hopper_" #row,                                                                                          \
      .family = EA_FAMILY_HOPPER,                                                                                      \
      .launch = EA_LAUNCH_HOPPER,                                                                                      \
      .tile_m = (wg)*64,                                                                                               \
      .tile_n = (n),                                                                                                   \
      .threads = ((wg) + 1) * 128,                                                                                     \
      .dim = (d),                                                                                                      \
      .dim_v = (dv),                                                                                                   \
      .calls = (of_calls),                                                                                             \
      .window = (longest_window),                                                                                      \
      .max_group = (wg)*64,                                                                                            \
      .max_stages = EA_HOPPER_MAX_STAGES,                                                                              \
      .blocks_per_sm = 1,                                                                                              \
      .smem_bytes = hopper_bytes,                                                                                      \
      .shape.hopper = {#row, d, dv, wg, n, longest_window, of_calls},                                                  \
  },

/* With latent values the schedule is made for one stage: a tile of each consumer. */
#define HOPPER_WIDE_ROW(row, source, archs, d, dv, is_latent, unit, consumer_registers, producer_registers)            \
  {                                                                                                                    \
      .name = "hopper_" #row,                                                                                          \
      .family = EA_FAMILY_HOPPER,                                                                                      \
      .launch = EA_LAUNCH_HOPPER_WIDE,                                                                                 \
      .tile_m = EA_WIDE_M,                                                                                             \
      .tile_n = EA_WIDE_N,                                                                                             \
      .threads = EA_WIDE_THREADS,                                                                                      \
      .dim = (d),                                                                                                      \
      .dim_v = (dv),                                                                                                   \
      .calls = EA_CALLS_ANY,                                                                                           \
      .latent = (is_latent) != 0,                                                                                      \
      .max_group = INT32_MAX,                                                                                          \
      .max_stages = (is_latent) ? 1 : EA_WIDE_MAX_STAGES,                                                              \
      .blocks_per_sm = 1,                                                                                              \
      .smem_bytes = hopper_wide_bytes,                                                                                 \
      .shape.hopper_wide = {#row, d, dv, is_latent, unit},                                                             \
  },

#define PORTABLE_ROW(row, source, archs, d, dv, m, n, qm, qn, pm, pn, blocks)                                          \
  {                                                                                                                    \
      .name = "portable_" #row,                                                                                        \
      .family = EA_FAMILY_PORTABLE,                                                                                    \
      .launch = EA_LAUNCH_PORTABLE,                                                                                    \
      .tile_m = (m),                                                                                                   \
      .tile_n = (n),                                                                                                   \
      .threads = (qm) * (qn)*32,                                                                                       \
      .dim = (d),                                                                                                      \
      .dim_v = (dv),                                                                                                   \
      .calls = EA_CALLS_ANY,                                                                                           \
      .max_group = INT32_MAX,                                                                                          \
      .max_stages = EA_PORTABLE_MAX_STAGES,                                                                            \
      .blocks_per_sm = (blocks),                                                                                       \
      .smem_bytes = portable_bytes,                                                                                    \
      .shape.portable = {#row, d, dv, m, n, qm, qn, pm, pn, blocks},                                                   \
  },

static const ea_kernel kernels[] = {EA_KERNELS(HOPPER_ROW, HOPPER_WIDE_ROW, PORTABLE_ROW, EA_NO_ROW)};

const ea_kernel *ea_kernels(int32_t *count) {
  *count = (int32_t)(sizeof kernels / sizeof kernels[0]);
  return kernels;
}

static bool is_scaled(const ea_problem *p) {
  return p->logit_cap > 0 || p->xai_temperature_len > 0 || p->k_scale != 1 || p->v_scale != 1;
}

bool ea_kernel_accepts(const ea_kernel *kernel, const ea_problem *resolved) {
  const int32_t window = resolved->window_left;
  if (kernel->dim < resolved->head_dim || kernel->dim_v < resolved->head_dim_v) return false;
  if (kernel->latent && !resolved->shared_kv) return false;
  if (kernel->window > 0 && (window <= 0 || window > kernel->window)) return false;
  return kernel->calls == EA_CALLS_ANY || (kernel->calls == EA_CALLS_SCALED) == is_scaled(resolved);
}

int32_t ea_kernel_deepest(const ea_kernel *kernel, int64_t limit_bytes) {
  const int64_t fixed_bytes = kernel->smem_bytes(kernel, 0);
  if (fixed_bytes > limit_bytes) return 0;
  const int64_t fit = (limit_bytes - fixed_bytes) / (kernel->smem_bytes(kernel, 1) - fixed_bytes);
  return fit < kernel->max_stages ? (int32_t)fit : kernel->max_stages;
}
