/* What a plan is made of (a context: common/context.h). Read-only once created. */
#ifndef EA_API_API_H
#define EA_API_API_H

#include "capture/capture.h"
#include "common/context.h"
#include "cuda/cuda.h"
#include "extattn.h"

struct ea_plan {
  ea_context *context;
  ea_problem problem; /* resolved */
  ea_plan_info info;  /* complete */
  ea_cuda_plan cuda;  /* CUDA, else zeros */
};

/* Plans keep their context alive, so destroying it before them is harmless. */
void ea_context_retain(ea_context *context);

/* A stream means nothing on a CPU: a given one is a mistake. */
ea_status ea_check_stream(const ea_context *context, const void *stream);

#endif
