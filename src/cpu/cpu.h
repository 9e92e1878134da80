/* The CPU: a float64 reference and a vectorised backend. Both take a call that
 * problem/ has checked in full and cannot fail on it. */
#ifndef EA_CPU_CPU_H
#define EA_CPU_CPU_H

#include <stddef.h>

#include "extattn.h"
#include "problem/call.h"

/* What this processor and operating system offer, best first choice for EA_ISA_AUTO. */
ea_isa ea_cpu_best_isa(void);
/* Whether an instruction set can be used here. */
bool ea_cpu_has_isa(ea_isa isa);
/* The processor's own name, e.g. "AMD EPYC 7763"; n bytes with the final zero. */
void ea_cpu_name(char *name, size_t n);

/* semantics in double, one query and head at a time; sums in key order. For tests. */
void ea_reference_run(const ea_call *call, int num_threads);

/* What the fast backend will use for a call of this problem. */
typedef struct ea_cpu_shape {
  int32_t tile_m;     /* query rows a block */
  int32_t tile_n;     /* keys a tile */
  const char *kernel; /* "amx_bf16" ... */
} ea_cpu_shape;
ea_cpu_shape ea_cpu_shape_of(const ea_problem *resolved, ea_isa isa);

/* Scratch memory of one run with num_threads threads, 64-byte aligned. */
size_t ea_cpu_workspace_bytes(const ea_problem *resolved, ea_isa isa, int num_threads);
/* Bit for bit the same for any num_threads. Each row's result depends on its own query, the
 * keys it sees and their positions only (promises 2 and 3). */
void ea_cpu_run(const ea_call *call, ea_isa isa, int num_threads, void *workspace);

/* lse merge, host memory. args is checked. */
void ea_cpu_merge(const ea_merge_args *args, int num_threads);

#endif
