/* Names and sizes of the public enumerations, and the library's version. */
#include "extattn.h"

#define EA_TEXT(x) #x
#define EA_VERSION_TEXT(major, minor, patch) EA_TEXT(major) "." EA_TEXT(minor) "." EA_TEXT(patch)

const char *ea_version(void) {
  return EA_VERSION_TEXT(EA_VERSION_MAJOR, EA_VERSION_MINOR, EA_VERSION_PATCH);
}

size_t ea_dtype_size(ea_dtype dtype) {
  switch (dtype) {
  case EA_E4M3:
  case EA_E5M2:
    return 1;
  case EA_F16:
  case EA_BF16:
    return 2;
  case EA_F32:
  case EA_I32:
    return 4;
  case EA_I64:
    return 8;
  case EA_DTYPE_NONE:
    break;
  }
  return 0;
}

const char *ea_dtype_name(ea_dtype dtype) {
  switch (dtype) {
  case EA_F32:
    return "f32";
  case EA_F16:
    return "f16";
  case EA_BF16:
    return "bf16";
  case EA_E4M3:
    return "e4m3";
  case EA_E5M2:
    return "e5m2";
  case EA_I32:
    return "i32";
  case EA_I64:
    return "i64";
  case EA_DTYPE_NONE:
    break;
  }
  return "unknown";
}

const char *ea_isa_name(ea_isa isa) {
  switch (isa) {
  case EA_ISA_AUTO:
    return "auto";
  case EA_ISA_PORTABLE:
    return "portable";
  case EA_ISA_AVX2:
    return "avx2";
  case EA_ISA_AVX512:
    return "avx512";
  case EA_ISA_AVX512_BF16:
    return "avx512_bf16";
  case EA_ISA_AMX:
    return "amx";
  }
  return "unknown";
}

const char *ea_family_name(ea_family family) {
  switch (family) {
  case EA_FAMILY_AUTO:
    return "auto";
  case EA_FAMILY_REFERENCE:
    return "reference";
  case EA_FAMILY_CPU:
    return "cpu";
  case EA_FAMILY_PORTABLE:
    return "portable";
  case EA_FAMILY_HOPPER:
    return "hopper";
  }
  return "unknown";
}
