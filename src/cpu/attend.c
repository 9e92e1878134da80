/* The fast CPU backend's entry: chooses a kernel and lets threads take blocks of query rows,
 * longest first. */
#include <omp.h>

#include "cpu/cpu.h"
#include "cpu/kernels/kernel.h"
#include "cpu/region.h"
#include "cpu/schedule.h"

static const ea_cpu_kernel *kernel_of(ea_dtype dtype, ea_isa isa) {
#ifdef EA_CPU_X86
  if (isa == EA_ISA_AUTO) isa = ea_cpu_best_isa();
  switch (isa) {
  case EA_ISA_AMX:
    return dtype == EA_BF16 ? &ea_cpu_amx_bf16 : &ea_cpu_avx512_f32;
  case EA_ISA_AVX512_BF16:
    return dtype == EA_BF16 ? &ea_cpu_avx512_bf16 : &ea_cpu_avx512_f32;
  case EA_ISA_AVX512:
    return &ea_cpu_avx512_f32;
  case EA_ISA_AVX2:
    return &ea_cpu_avx2_f32;
  default:
    break;
  }
#else
  (void)dtype, (void)isa;
#endif
  return &ea_cpu_portable_f32;
}

ea_cpu_shape ea_cpu_shape_of(const ea_problem *resolved, ea_isa isa) {
  const ea_cpu_kernel *kernel = kernel_of(resolved->dtype, isa);
  return (ea_cpu_shape){kernel->tile_m, kernel->tile_n, kernel->name};
}

size_t ea_cpu_workspace_bytes(const ea_problem *resolved, ea_isa isa, int num_threads) {
  const ea_cpu_kernel *kernel = kernel_of(resolved->dtype, isa);
  return (size_t)num_threads * kernel->scratch_bytes(resolved->head_dim, resolved->head_dim_v);
}

/* What the threads of a run share. */
typedef struct shared_run {
  ea_cpu_schedule schedule;
  const ea_cpu_kernel *kernel;
  int64_t next; /* item that nobody has taken */
  uint8_t *workspace;
  size_t scratch_bytes; /* of it for a thread */
} shared_run;

static void take_items(shared_run *run, void *scratch) {
  _Alignas(64) uint8_t state[EA_CPU_STATE_BYTES];
  const ea_cpu_kernel *kernel = run->kernel;
  ea_cpu_cursor cursor = {.schedule = &run->schedule};
  ea_cpu_item item;
  if (kernel->enter) kernel->enter(state);
  for (;;) {
    int64_t number;
#pragma omp atomic capture
    number = run->next++;
    if (!ea_cpu_cursor_seek(&cursor, number, &item)) break;
    kernel->run(run->schedule.call, &item, scratch);
  }
  if (kernel->leave) kernel->leave(state);
}

static void run_items(void *argument, int num_threads) {
  shared_run *run = argument;
#pragma omp parallel num_threads(num_threads)
  take_items(run, run->workspace + (size_t)omp_get_thread_num() * run->scratch_bytes);
}

void ea_cpu_run(const ea_call *call, ea_isa isa, int num_threads, void *workspace) {
  const ea_cpu_kernel *kernel = kernel_of(call->dtype, isa);
  shared_run run = {
      .schedule = ea_cpu_schedule_make(call, kernel->tile_m, kernel->row_step, num_threads),
      .kernel = kernel,
      .workspace = workspace,
      .scratch_bytes = kernel->scratch_bytes(call->head_dim, call->head_dim_v),
  };
  ea_cpu_run_region(run_items, &run, num_threads);
}
