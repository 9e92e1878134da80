/* What the validation kernel and its caller agree on: a 32-bit flag, 0 before the launch,
 * that becomes 1 when any entry is bad. */
#ifndef EA_CUDA_KERNELS_VALIDATE_H
#define EA_CUDA_KERNELS_VALIDATE_H

#define EA_VALIDATE_THREADS 256

#endif
