/* The format's types. Apart from the reader, so that the library can write case files
 * (src/capture) without a JSON parser. */
#include "io/safetensors.h"

static const struct {
  const char *name;
  size_t size;
} dtypes[EA_ST_NUM_DTYPES] = {
    [EA_ST_BOOL] = {"BOOL", 1},       [EA_ST_U8] = {"U8", 1},           [EA_ST_I8] = {"I8", 1},
    [EA_ST_F8_E4M3] = {"F8_E4M3", 1}, [EA_ST_F8_E5M2] = {"F8_E5M2", 1}, [EA_ST_I16] = {"I16", 2},
    [EA_ST_U16] = {"U16", 2},         [EA_ST_F16] = {"F16", 2},         [EA_ST_BF16] = {"BF16", 2},
    [EA_ST_I32] = {"I32", 4},         [EA_ST_U32] = {"U32", 4},         [EA_ST_F32] = {"F32", 4},
    [EA_ST_I64] = {"I64", 8},         [EA_ST_U64] = {"U64", 8},         [EA_ST_F64] = {"F64", 8},
};

const char *ea_st_dtype_name(ea_st_dtype dtype) {
  return dtypes[dtype].name;
}

size_t ea_st_dtype_size(ea_st_dtype dtype) {
  return dtypes[dtype].size;
}
