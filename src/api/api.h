/* What a context and a plan are made of. Both are read-only once created, capture excepted. */
#ifndef EA_API_API_H
#define EA_API_API_H

#include <stdatomic.h>

#include "capture/capture.h"
#include "cuda/cuda.h"
#include "extattn.h"

/* Plans keep their context alive, so destroying it before them is harmless. */
struct ea_context {
  atomic_int references;
  ea_device_type device;
  ea_isa isa;           /* CPU: never EA_ISA_AUTO */
  int num_threads;      /* CPU */
  ea_cuda_device *cuda; /* CUDA, else NULL */
  ea_capture capture;
};

struct ea_plan {
  ea_context *context;
  ea_problem problem;           /* resolved */
  ea_plan_info info;            /* complete */
  const ea_cuda_kernel *kernel; /* CUDA, else NULL; the device's */
};

void ea_context_retain(ea_context *context);

/* A stream means nothing on a CPU: a given one is a mistake. */
ea_status ea_check_stream(const ea_context *context, const void *stream);

#endif
