/* One call: checked whole, then run or enqueued. Nothing is allocated but a CPU's workspace that the caller left out.
 */
#include <stdlib.h>

#include "api/api.h"
#include "common/check.h"
#include "common/grow.h"
#include "cpu/cpu.h"
#include "problem/problem.h"

/* What makes a call fastest; with num_kv_indices 0, what it cannot do without. */
static size_t workspace_bytes_of(const ea_plan *plan, int64_t num_seqs, int64_t num_tokens, int64_t num_kv_indices) {
  const ea_context *context = plan->context;
  if (context->cuda) {
    const ea_batch_size size = {num_seqs, num_tokens, num_kv_indices};
    return ea_cuda_workspace_bytes(context->cuda, &plan->cuda, size);
  }
  if (plan->info.family == EA_FAMILY_REFERENCE) return 0;
  return ea_cpu_workspace_bytes(&plan->problem, context->isa, context->num_threads);
}

ea_status ea_workspace_size(const ea_plan *plan, const ea_batch *batch, size_t *bytes) {
  if (!plan) return ea_fail(EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  if (!bytes) return ea_fail(EA_ERR_INVALID, "bytes: found NULL, allowed where to put the size");
  ea_status status = ea_check_struct_in("batch", batch, offsetof(ea_batch, num_kv_indices), sizeof *batch);
  if (!status) status = ea_check_batch_size(batch->num_seqs, batch->num_tokens);
  if (status) return status;
  const bool told = batch->struct_size >= offsetof(ea_batch, num_pages) && batch->num_kv_indices > 0;
  const int64_t num_kv_indices = told ? batch->num_kv_indices : 0;
  *bytes = workspace_bytes_of(plan, batch->num_seqs, batch->num_tokens, num_kv_indices);
  return EA_OK;
}

static bool is_usable(const void *workspace) {
  return workspace && (uintptr_t)workspace % EA_WORKSPACE_ALIGNMENT == 0;
}

static ea_status check_workspace(const ea_plan *plan, const ea_call *call, const void *workspace, size_t bytes) {
  const size_t needed = workspace_bytes_of(plan, call->num_seqs, call->num_tokens, 0);
  if (needed == 0) return EA_OK;
  if (!plan->context->cuda && !workspace && bytes == 0) return EA_OK; /* the run takes its own */
  if (bytes < needed) {
    return ea_fail(EA_ERR_INVALID,
                   "workspace_bytes: found %zu, allowed %zu or more for this batch, as ea_workspace_size says", bytes,
                   needed);
  }
  return ea_check_pointer("workspace", workspace, EA_WORKSPACE_ALIGNMENT, "memory of ea_workspace_size bytes");
}

/* After what the arrays hold is checked, as far as it can be: a count that they contradict is better named than an
 * overlap that follows from it. */
static ea_status check_apart(const ea_plan *plan, const ea_call *call, const void *workspace, size_t bytes) {
  const bool takes_any = !plan->context->cuda && workspace_bytes_of(plan, call->num_seqs, call->num_tokens, 0) == 0;
  return ea_check_apart(call, takes_any || !is_usable(workspace) ? NULL : workspace, bytes);
}

/* Everything that can be said about a call without touching device memory. */
static ea_status check_call(const ea_plan *plan, const ea_batch *batch, const void *workspace, size_t workspace_bytes,
                            const void *stream, ea_call *call) {
  if (!plan) return ea_fail(EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  ea_status status = ea_check_stream(plan->context, stream);
  if (!status) status = ea_call_make(&plan->problem, batch, call);
  if (!status) status = check_workspace(plan, call, workspace, workspace_bytes);
  if (!status && !plan->context->cuda) status = ea_check_host_arrays(call);
  return status;
}

static ea_status run_cpu(const ea_plan *plan, const ea_call *call, void *workspace, size_t workspace_bytes) {
  const ea_context *context = plan->context;
  const ea_status status = check_apart(plan, call, workspace, workspace_bytes);
  if (status || call->num_tokens == 0) return status;
  if (plan->info.family == EA_FAMILY_REFERENCE) {
    ea_reference_run(call, context->num_threads);
    return EA_OK;
  }
  void *own = NULL;
  if (!workspace) {
    const size_t needed = workspace_bytes_of(plan, call->num_seqs, call->num_tokens, 0);
    const size_t rounded = (needed + EA_WORKSPACE_ALIGNMENT - 1) / EA_WORKSPACE_ALIGNMENT * EA_WORKSPACE_ALIGNMENT;
    own = aligned_alloc(EA_WORKSPACE_ALIGNMENT, rounded);
    if (!own) return ea_fail(EA_ERR_OUT_OF_MEMORY, "workspace: no memory for %zu bytes", rounded);
  }
  ea_cpu_run(call, context->isa, context->num_threads, own ? own : workspace);
  free(own);
  return EA_OK;
}

static ea_status run_cuda(const ea_plan *plan, const ea_call *call, const ea_batch *callers, void *workspace,
                          size_t workspace_bytes, void *stream) {
  ea_batch batch = EA_BATCH_INIT; /* the caller's may be a shorter, older one */
  ea_struct_in(&batch, sizeof batch, callers, callers->struct_size);
  ea_status status = EA_OK;
  if (batch.qo_indptr_host && batch.kv_indptr_host) {
    status = ea_check_indptr(call, batch.qo_indptr_host, batch.kv_indptr_host);
  }
  if (!status) status = check_apart(plan, call, workspace, workspace_bytes);
  if (status || call->num_tokens == 0) return status;
  if (!is_usable(workspace)) workspace_bytes = 0; /* a call that needs none takes any */
  return ea_cuda_run(plan->context->cuda, &plan->cuda, call, workspace, workspace_bytes, stream);
}

static ea_status run(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t workspace_bytes,
                     void *stream) {
  ea_call call;
  const ea_status status = check_call(plan, batch, workspace, workspace_bytes, stream, &call);
  if (status) return status;
  if (plan->context->cuda) return run_cuda(plan, &call, batch, workspace, workspace_bytes, stream);
  return run_cpu(plan, &call, workspace, workspace_bytes);
}

ea_status ea_run(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t workspace_bytes, void *stream) {
  if (!plan || !ea_capture_is_active(plan->context->capture)) {
    return run(plan, batch, workspace, workspace_bytes, stream);
  }
  ea_capture_call captured;
  ea_capture_begin(plan->context, stream, &captured);
  const ea_status status = run(plan, batch, workspace, workspace_bytes, stream);
  ea_capture_end(plan->context, &plan->problem, batch, stream, status, &captured);
  return status;
}

ea_status ea_validate(const ea_plan *plan, const ea_batch *batch, void *workspace, size_t workspace_bytes,
                      void *stream) {
  ea_call call;
  ea_status status = check_call(plan, batch, workspace, workspace_bytes, stream, &call);
  if (status) return status;
  const ea_status apart = check_apart(plan, &call, workspace, workspace_bytes);
  if (!plan->context->cuda) return apart;
  const bool usable = is_usable(workspace) && workspace_bytes >= EA_CUDA_VALIDATE_BYTES && !apart;
  status = ea_cuda_validate(plan->context->cuda, &call, usable ? workspace : NULL, stream);
  return status ? status : apart;
}
