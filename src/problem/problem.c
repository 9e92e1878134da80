/* The static half of a call: every field of ea_problem checked, every default resolved.
 * Resolving a resolved problem changes nothing. */
#include "problem/problem.h"

#include <float.h>
#include <math.h>

#include "common/check.h"
#include "common/grow.h"

static bool is_one_of(ea_dtype dtype, const ea_dtype *allowed, int count) {
  for (int i = 0; i < count; ++i) {
    if (dtype == allowed[i]) return true;
  }
  return false;
}

static ea_status check_dtype(const char *name, ea_dtype found, const ea_dtype *allowed, int count,
                             const char *allowed_text) {
  if (is_one_of(found, allowed, count)) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found %s (%d), allowed %s", name, ea_dtype_name(found), (int)found, allowed_text);
}

static ea_status check_dtypes(const ea_problem *p) {
  const ea_dtype floats[] = {EA_BF16, EA_F16, EA_F32};
  const ea_dtype indices[] = {EA_I32, EA_I64};
  const ea_dtype caches[] = {EA_DTYPE_NONE, p->dtype, EA_E4M3, EA_E5M2};
  const ea_dtype sinks[] = {EA_DTYPE_NONE, p->dtype, EA_F32};

  ea_status status = check_dtype("dtype", p->dtype, floats, 3, "bf16, f16, f32");
  if (!status) status = check_dtype("cache_dtype", p->cache_dtype, caches, 4, "none (as q), q's own, e4m3, e5m2");
  if (!status) status = check_dtype("index_dtype", p->index_dtype, indices, 2, "i32, i64");
  if (!status) status = check_dtype("mask_indptr_dtype", p->mask_indptr_dtype, indices, 2, "i64, i32");
  if (!status) status = check_dtype("sinks_dtype", p->sinks_dtype, sinks, 3, "f32, none (as q), q's own");
  return status;
}

static ea_status check_bools(const ea_problem *callers) {
  ea_status status = ea_check_bool("shared_kv", &callers->shared_kv);
  if (!status) status = ea_check_bool("causal", &callers->causal);
  if (!status) status = ea_check_bool("has_sinks", &callers->has_sinks);
  if (!status) status = ea_check_bool("has_custom_mask", &callers->has_custom_mask);
  if (!status) status = ea_check_bool("skip_prefix_custom_mask", &callers->skip_prefix_custom_mask);
  if (!status) status = ea_check_bool("skip_prefix", &callers->skip_prefix);
  if (!status) status = ea_check_bool("skip_extend", &callers->skip_extend);
  return status;
}

static ea_status check_at_least_one(const char *name, int32_t found) {
  if (found >= 1) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found %d, allowed 1 or more", name, found);
}

static ea_status check_shape(const ea_problem *p) {
  ea_status status = check_at_least_one("num_q_heads", p->num_q_heads);
  if (!status) status = check_at_least_one("num_kv_heads", p->num_kv_heads);
  if (!status) status = check_at_least_one("page_size", p->page_size);
  if (status) return status;
  if (p->num_q_heads % p->num_kv_heads != 0) {
    return ea_fail(EA_ERR_INVALID, "num_q_heads: found %d, allowed multiples of num_kv_heads (%d)", p->num_q_heads,
                   p->num_kv_heads);
  }
  if (p->head_dim < 1 || p->head_dim > EA_MAX_HEAD_DIM) {
    return ea_fail(EA_ERR_INVALID, "head_dim: found %d, allowed 1 to %d", p->head_dim, EA_MAX_HEAD_DIM);
  }
  if (p->head_dim_v < 0 || p->head_dim_v > EA_MAX_HEAD_DIM) {
    return ea_fail(EA_ERR_INVALID, "head_dim_v: found %d, allowed 1 to %d, or 0 (as head_dim)", p->head_dim_v,
                   EA_MAX_HEAD_DIM);
  }
  if (p->shared_kv && p->head_dim_v > p->head_dim) {
    return ea_fail(EA_ERR_INVALID, "head_dim_v: found %d, allowed 1 to head_dim (%d) with shared_kv", p->head_dim_v,
                   p->head_dim);
  }
  return EA_OK;
}

static ea_status check_window(const ea_problem *p) {
  if (p->window_left < -1) {
    return ea_fail(EA_ERR_INVALID, "window_left: found %d, allowed 1 or more, or 0 or -1 (none)", p->window_left);
  }
  if (p->xai_temperature_len < -1 || p->xai_temperature_len == 1) {
    return ea_fail(EA_ERR_INVALID, "xai_temperature_len: found %lld, allowed 2 or more, or 0 or -1 (none)",
                   (long long)p->xai_temperature_len);
  }
  return EA_OK;
}

/* The fast paths compute in float: a factor has to be an ordinary number there too. */
static ea_status check_factor(const char *name, double found, bool zero_is_default) {
  if (found >= (double)FLT_MIN && found <= (double)FLT_MAX) return EA_OK;
  if (zero_is_default && found == 0.0) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "%s: found %g, allowed %g to %g%s", name, found, (double)FLT_MIN, (double)FLT_MAX,
                 zero_is_default ? ", or 0 (default)" : "");
}

static ea_status check_factors(const ea_problem *p) {
  ea_status status = check_factor("softmax_scale", p->softmax_scale, true);
  if (!status) status = check_factor("logit_cap", p->logit_cap, true);
  if (!status) status = check_factor("k_scale", p->k_scale, false);
  if (!status) status = check_factor("v_scale", p->v_scale, false);
  return status;
}

ea_status ea_problem_resolve(const ea_problem *callers, ea_problem *out) {
  ea_status status = ea_check_struct_in("problem", callers, offsetof(ea_problem, head_dim_v), sizeof *callers);
  if (status) return status;

  ea_problem problem = EA_PROBLEM_INIT;
  ea_struct_in(&problem, sizeof problem, callers, callers->struct_size);
  status = check_bools(&problem);
  if (!status) status = check_dtypes(&problem);
  if (!status) status = check_shape(&problem);
  if (!status) status = check_window(&problem);
  if (!status) status = check_factors(&problem);
  if (status) return status;

  if (problem.cache_dtype == EA_DTYPE_NONE) problem.cache_dtype = problem.dtype;
  if (problem.sinks_dtype == EA_DTYPE_NONE) problem.sinks_dtype = problem.dtype;
  if (problem.head_dim_v == 0) problem.head_dim_v = problem.head_dim;
  if (problem.window_left < 0) problem.window_left = 0;
  if (problem.xai_temperature_len < 0) problem.xai_temperature_len = 0;
  if (problem.softmax_scale == 0.0) problem.softmax_scale = 1.0 / sqrt((double)problem.head_dim);
  *out = problem;
  return EA_OK;
}
