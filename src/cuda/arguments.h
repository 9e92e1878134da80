/* Inside the CUDA backend: the arguments that all attention kernels take beside the call. */
#ifndef EA_CUDA_ARGUMENTS_H
#define EA_CUDA_ARGUMENTS_H

#include "plan/portable.h"
#include "problem/call.h"

/* Scales, what can be read 16 bytes at a time, and what else follows from the call alone. */
ea_portable_launch ea_score_arguments(const ea_call *call, int32_t stages);

#endif
