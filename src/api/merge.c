/* Merging two partial results: arguments checked as fully as a batch's. */
#include "api/api.h"
#include "common/check.h"
#include "common/grow.h"
#include "cpu/cpu.h"
#include "problem/footprint.h"
#include "problem/tensor.h"

static ea_status check_shape(const ea_merge_args *args) {
  if (args->dtype != EA_BF16 && args->dtype != EA_F16 && args->dtype != EA_F32) {
    return ea_fail(EA_ERR_INVALID, "dtype: found %s (%d), allowed bf16, f16, f32", ea_dtype_name(args->dtype),
                   (int)args->dtype);
  }
  if (args->num_tokens < 0 || args->num_tokens > INT32_MAX) {
    return ea_fail(EA_ERR_INVALID, "num_tokens: found %lld, allowed 0 to %d", (long long)args->num_tokens, INT32_MAX);
  }
  if (args->num_heads < 1) {
    return ea_fail(EA_ERR_INVALID, "num_heads: found %d, allowed 1 or more", args->num_heads);
  }
  if (args->head_dim_v < 1 || args->head_dim_v > EA_MAX_HEAD_DIM) {
    return ea_fail(EA_ERR_INVALID, "head_dim_v: found %d, allowed 1 to %d", args->head_dim_v, EA_MAX_HEAD_DIM);
  }
  return EA_OK;
}

static ea_status resolve_tensor(ea_tensor_names names, const ea_merge_args *args, ea_tensor *tensor, bool written) {
  const ea_tensor_rule rule = {names, args->num_tokens, args->num_heads, args->head_dim_v, args->dtype, true, written};
  return ea_tensor_resolve(&rule, tensor);
}

/* Packed: [T, H]. */
static ea_status check_lse(const char *name, const ea_merge_args *args, const float *lse, bool required) {
  if (!lse && !required) return EA_OK;
  const ea_tensor_names names = {name, name, name, name};
  const ea_tensor_rule rule = {names, args->num_tokens, args->num_heads, 1, EA_F32, true, false};
  ea_tensor tensor = {(void *)(uintptr_t)lse, 0, 0};
  return ea_tensor_resolve(&rule, &tensor);
}

static ea_footprint out_footprint(const char *name, const ea_merge_args *args, const ea_tensor *out) {
  const ea_strided strided = {out->data, out->token_stride, out->head_stride};
  return ea_tensor_footprint(name, strided, args->num_tokens, args->num_heads, args->head_dim_v, args->dtype);
}

static ea_footprint lse_footprint(const char *name, const ea_merge_args *args, const float *lse) {
  return ea_array_footprint(name, lse, (uint64_t)args->num_tokens * (uint64_t)args->num_heads, sizeof *lse);
}

/* may_be: a part's own memory, whole and in its order, serves as well as memory of its own. */
static ea_status check_pair(const ea_footprint *result, const ea_footprint *other, bool may_be) {
  if (ea_footprints_apart(result, other) || (may_be && ea_footprints_equal(result, other))) return EA_OK;
  if (!may_be) {
    return ea_fail(EA_ERR_INVALID, "%s: found memory that overlaps %s, allowed memory of its own", result->name,
                   other->name);
  }
  return ea_fail(EA_ERR_INVALID, "%s: found memory that overlaps %s, allowed %s itself or memory apart", result->name,
                 other->name, other->name);
}

/* out and lse may each be a part's own, row for row: the same memory seen with other strides, or from elsewhere in it,
 * would be overwritten before it is read. */
static ea_status check_apart(const ea_merge_args *args) {
  enum { OUT_A, OUT_B, LSE_A, LSE_B, NUM_PARTS };
  if (args->num_tokens == 0) return EA_OK; /* nothing is written */
  const ea_footprint out = out_footprint("out", args, &args->out);
  const ea_footprint lse = lse_footprint("lse", args, args->lse);
  const ea_footprint parts[NUM_PARTS] = {
      out_footprint("out_a", args, &args->out_a), out_footprint("out_b", args, &args->out_b),
      lse_footprint("lse_a", args, args->lse_a), lse_footprint("lse_b", args, args->lse_b)};
  ea_status status = EA_OK;
  for (int p = 0; p < NUM_PARTS && !status; ++p) {
    status = check_pair(&out, &parts[p], p <= OUT_B);
    if (!status) status = check_pair(&lse, &parts[p], p >= LSE_A);
  }
  return status ? status : check_pair(&lse, &out, false);
}

static ea_status resolve(ea_merge_args *args) {
  const ea_tensor_names out_a = EA_TENSOR_NAMES("out_a");
  const ea_tensor_names out_b = EA_TENSOR_NAMES("out_b");
  const ea_tensor_names out = EA_TENSOR_NAMES("out");
  ea_status status = check_shape(args);
  if (!status) status = resolve_tensor(out_a, args, &args->out_a, false);
  if (!status) status = resolve_tensor(out_b, args, &args->out_b, false);
  if (!status) status = resolve_tensor(out, args, &args->out, true);
  if (!status) status = check_lse("lse_a", args, args->lse_a, true);
  if (!status) status = check_lse("lse_b", args, args->lse_b, true);
  if (!status) status = check_lse("lse", args, args->lse, false);
  if (!status) status = check_apart(args);
  return status;
}

ea_status ea_merge(ea_context *context, const ea_merge_args *args, void *stream) {
  if (!context) return ea_fail(EA_ERR_INVALID, "context: found NULL, allowed a context");
  ea_status status = ea_check_struct_in("args", args, offsetof(ea_merge_args, lse), sizeof *args);
  if (status) return status;

  ea_merge_args full = EA_MERGE_ARGS_INIT;
  ea_struct_in(&full, sizeof full, args, args->struct_size);
  status = resolve(&full);
  if (!status) status = ea_check_stream(context, stream);
  if (status || full.num_tokens == 0) return status;
  if (context->cuda) return ea_cuda_merge(context->cuda, &full, stream);
  ea_cpu_merge(&full, context->num_threads);
  return EA_OK;
}
