/* The emulator's own CUtensorMap: what cuTensorMapEncodeTiled was told. */
#ifndef EA_EMULATOR_TENSOR_MAP_H
#define EA_EMULATOR_TENSOR_MAP_H

#include <stdint.h>

#define EMU_TENSOR_MAP_MARK 0x746d6170u

typedef struct emu_tensor_map {
  uint32_t mark;
  uint8_t rank, element_bytes, swizzle_128;
  const void *address;
  uint64_t dims[5];
  uint64_t strides[4]; /* bytes, of dimensions 1 and up */
  uint16_t box[5];
} emu_tensor_map;
static_assert(sizeof(emu_tensor_map) <= 128, "fits a CUtensorMap");

#endif
