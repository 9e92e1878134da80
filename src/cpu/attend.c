/* The fast CPU backend's entry: chooses a kernel and lets threads take blocks of query rows,
 * longest first. */
#include <omp.h>

#include "cpu/cpu.h"
#include "cpu/kernels/kernel.h"
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

static void take_items(const ea_cpu_schedule *schedule, const ea_cpu_kernel *kernel, int64_t *next, void *scratch) {
  _Alignas(64) uint8_t state[EA_CPU_STATE_BYTES];
  ea_cpu_cursor cursor = {.schedule = schedule};
  ea_cpu_item item;
  if (kernel->enter) kernel->enter(state);
  for (;;) {
    int64_t number;
#pragma omp atomic capture
    number = (*next)++;
    if (!ea_cpu_cursor_seek(&cursor, number, &item)) break;
    kernel->run(schedule->call, &item, scratch);
  }
  if (kernel->leave) kernel->leave(state);
}

void ea_cpu_run(const ea_call *call, ea_isa isa, int num_threads, void *workspace) {
  const ea_cpu_kernel *kernel = kernel_of(call->dtype, isa);
  const size_t scratch_bytes = kernel->scratch_bytes(call->head_dim, call->head_dim_v);
  const ea_cpu_schedule schedule = ea_cpu_schedule_make(call, kernel->tile_m, kernel->row_step, num_threads);
  int64_t next = 0;
#pragma omp parallel num_threads(num_threads)
  {
    uint8_t *scratch = (uint8_t *)workspace + (size_t)omp_get_thread_num() * scratch_bytes;
    take_items(&schedule, kernel, &next, scratch);
  }
}
