/* See place.h. */
#include "place.h"

#include "cuda/memory.h"

/* The CPU reads the mapped file in place. */
static ea_status place_inputs(const ea_case *c, ea_placed *placed) {
  ea_device_info device = EA_DEVICE_INFO_INIT;
  ea_status status = ea_context_info(placed->context, &device);
  placed->batch = c->batch;
  if (status != EA_OK || device.device != EA_DEVICE_CUDA) return status;
  for (size_t i = 0; i < c->num_storages; i++) {
    const ea_storage *storage = &c->storages[i];
    status = ea_mem_alloc(placed->context, storage->bytes, &placed->inputs[i]);
    if (!status) status = ea_mem_upload(placed->context, placed->inputs[i], storage->data, storage->bytes, NULL);
    if (status) return status;
  }
  placed->batch = ea_case_rebase(c, placed->inputs);
  return EA_OK;
}

static ea_status place_outputs(const ea_plan *plan, const ea_problem *problem, ea_placed *placed) {
  const size_t rows = (size_t)placed->batch.num_tokens * (size_t)problem->num_q_heads;
  placed->out_bytes = rows * (size_t)problem->head_dim_v * ea_dtype_size(problem->dtype);
  placed->lse_bytes = rows * sizeof(float);
  ea_status status = ea_mem_alloc(placed->context, placed->out_bytes, &placed->out);
  if (!status) status = ea_mem_alloc(placed->context, placed->lse_bytes, &placed->lse);
  if (!status) status = ea_workspace_size(plan, &placed->batch, &placed->workspace_bytes);
  if (!status) status = ea_mem_alloc(placed->context, placed->workspace_bytes, &placed->workspace);
  placed->batch.out.data = placed->out;
  placed->batch.lse = placed->lse;
  return status;
}

ea_status ea_place(ea_context *context, const ea_plan *plan, const ea_case *c, ea_placed *placed) {
  *placed = (ea_placed){.context = context};
  const ea_status status = place_inputs(c, placed);
  return status ? status : place_outputs(plan, &c->problem, placed);
}

void ea_placed_free(ea_placed *placed) {
  if (!placed->context) return;
  ea_mem_free(placed->context, placed->workspace);
  ea_mem_free(placed->context, placed->lse);
  ea_mem_free(placed->context, placed->out);
  for (size_t i = 0; i < EA_CASE_MAX_STORAGES; i++) ea_mem_free(placed->context, placed->inputs[i]);
}
