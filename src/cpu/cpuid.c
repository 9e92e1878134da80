/* What the processor offers and the operating system lets programs use: CPUID for the
 * instructions, XGETBV for the registers that the system saves, and on Linux the permission
 * that AMX's tile data needs. Leaves and bits: Intel SDM volume 2A, CPUID; volume 1, chapter
 * 13 (XCR0), and Linux Documentation/arch/x86/xstate.rst. */
#include <stdio.h>
#include <string.h>

#include "cpu/cpu.h"

#if defined(__x86_64__)

#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Bits of XCR0: which register states the operating system saves. */
#define XCR0_AVX UINT64_C(0x6)     /* XMM, upper halves of YMM */
#define XCR0_AVX512 UINT64_C(0xe6) /* and the mask registers, ZMM */
#define XCR0_AMX UINT64_C(0x600e6) /* and the tile configuration, the tiles */

typedef struct ea_cpuid {
  unsigned eax, ebx, ecx, edx;
} ea_cpuid;

/* All zero for a leaf that the processor does not have. */
static ea_cpuid cpuid(unsigned leaf, unsigned subleaf) {
  ea_cpuid r = {0, 0, 0, 0};
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) memset(&r, 0, sizeof r);
  return r;
}

static bool bit(unsigned word, int number) {
  return word >> number & 1;
}

/* XCR0, or 0 when the operating system does not use XSAVE (reading it would then fault). */
static uint64_t saved_states(void) {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0; /* OSXSAVE */
  unsigned low;
  unsigned high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static bool has_states(uint64_t wanted) {
  return (saved_states() & wanted) == wanted;
}

/* AVX2 as compilers mean it for 2013's processors and later: with FMA, F16C and the bit
 * manipulation instructions. */
static bool has_avx2(void) {
  const ea_cpuid basic = cpuid(1, 0);
  const ea_cpuid extended = cpuid(7, 0);
  const bool fma = bit(basic.ecx, 12);
  const bool avx = bit(basic.ecx, 28);
  const bool f16c = bit(basic.ecx, 29);
  const bool bmi1 = bit(extended.ebx, 3);
  const bool avx2 = bit(extended.ebx, 5);
  const bool bmi2 = bit(extended.ebx, 8);
  return fma && avx && f16c && bmi1 && avx2 && bmi2 && has_states(XCR0_AVX);
}

static bool has_avx512(void) {
  const ea_cpuid extended = cpuid(7, 0);
  const bool f = bit(extended.ebx, 16);
  const bool dq = bit(extended.ebx, 17);
  const bool bw = bit(extended.ebx, 30);
  const bool vl = bit(extended.ebx, 31);
  return has_avx2() && f && dq && bw && vl && has_states(XCR0_AVX512);
}

static bool has_avx512_bf16(void) {
  const bool has_subleaf = cpuid(7, 0).eax >= 1;
  return has_avx512() && has_subleaf && bit(cpuid(7, 1).eax, 5);
}

/* Linux gives the tile registers only to a process that asks; asking again is harmless, and
 * the answer holds for all threads, so nothing has to be remembered here. */
static bool may_use_tiles(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
  const long request_permission = 0x1023; /* ARCH_REQ_XCOMP_PERM */
  const long tile_data = 18;              /* XFEATURE_XTILEDATA */
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

static bool has_amx(void) {
  const ea_cpuid extended = cpuid(7, 0);
  const bool amx_bf16 = bit(extended.edx, 22);
  const bool amx_tile = bit(extended.edx, 24);
  return has_avx512_bf16() && amx_bf16 && amx_tile && has_states(XCR0_AMX) && may_use_tiles();
}

bool ea_cpu_has_isa(ea_isa isa) {
  switch (isa) {
  case EA_ISA_AUTO:
  case EA_ISA_PORTABLE:
    return true;
  case EA_ISA_AVX2:
    return has_avx2();
  case EA_ISA_AVX512:
    return has_avx512();
  case EA_ISA_AVX512_BF16:
    return has_avx512_bf16();
  case EA_ISA_AMX:
    return has_amx();
  }
  return false;
}

/* The brand string of leaves 0x80000002 to 0x80000004, without the blanks around it. */
static void processor_name(char text[49]) {
  memset(text, 0, 49);
  for (unsigned i = 0; i < 3; ++i) {
    const ea_cpuid part = cpuid(0x80000002U + i, 0);
    memcpy(text + 16 * i, &part, sizeof part);
  }
  size_t length = strlen(text);
  while (length > 0 && text[length - 1] == ' ') text[--length] = '\0';
  const size_t blanks = strspn(text, " ");
  memmove(text, text + blanks, length - blanks + 1);
}

void ea_cpu_name(char *name, size_t n) {
  char text[49];
  processor_name(text);
  (void)snprintf(name, n, "%s", text[0] ? text : "x86-64");
}

#else /* not x86-64 */

#include <sys/utsname.h>

bool ea_cpu_has_isa(ea_isa isa) {
  return isa == EA_ISA_AUTO || isa == EA_ISA_PORTABLE;
}

void ea_cpu_name(char *name, size_t n) {
  struct utsname system;
  (void)snprintf(name, n, "%s", uname(&system) == 0 ? system.machine : "unknown processor");
}

#endif

ea_isa ea_cpu_best_isa(void) {
  for (int isa = EA_ISA_AMX; isa > EA_ISA_PORTABLE; --isa) {
    if (ea_cpu_has_isa((ea_isa)isa)) return (ea_isa)isa;
  }
  return EA_ISA_PORTABLE;
}
