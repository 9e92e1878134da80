/* The merge kernels' launch shape. They take an ea_merge_args whose strides are explicit. */
#ifndef EA_CUDA_KERNELS_MERGE_H
#define EA_CUDA_KERNELS_MERGE_H

#define EA_MERGE_THREADS 128
#define EA_MERGE_ROWS (EA_MERGE_THREADS / 32) /* a block's rows at a time, one a warp */

#endif
