/* EA_HD marks the inline functions that host (C11) and device (CUDA C) compile alike:
 * the rules on which both must agree. */
#ifndef EA_COMMON_HD_H
#define EA_COMMON_HD_H

#ifdef __CUDACC__
#define EA_HD static __host__ __device__ __forceinline__
#else
#define EA_HD static inline
#endif

#endif
