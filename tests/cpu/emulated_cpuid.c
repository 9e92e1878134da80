/* Takes the place of the library's CPUID in a test whose AVX-512 and AMX kernels are emulated:
 * every instruction set is there. Linked ahead of the static library, it is found first. */
#include <stdio.h>

#include "cpu/cpu.h"

bool ea_cpu_has_isa(ea_isa isa) {
  return isa >= EA_ISA_AUTO && isa <= EA_ISA_AMX;
}

ea_isa ea_cpu_best_isa(void) {
  return EA_ISA_AMX;
}

void ea_cpu_name(char *name, size_t n) {
  (void)snprintf(name, n, "emulated");
}
