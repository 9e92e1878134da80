/* What a context is made of: for whoever works on its device. Read-only once created, capture excepted. */
#ifndef EA_COMMON_CONTEXT_H
#define EA_COMMON_CONTEXT_H

#include <stdatomic.h>

#include "extattn.h"

struct ea_context {
  atomic_int references; /* the caller's, and one a plan (api/api.h) */
  ea_device_type device;
  ea_isa isa;                  /* CPU: never EA_ISA_AUTO */
  int num_threads;             /* CPU */
  struct ea_cuda_device *cuda; /* CUDA, else NULL */
  struct ea_capture *capture;
};

#endif
