/* Checks that every public function needs; texts in the form that error.h gives. */
#include "common/check.h"

#include <stdint.h>
#include <string.h>

ea_status ea_check_struct(const char *name, const void *callers, size_t min_size) {
  const ea_status status = ea_check_pointer(name, callers, sizeof(size_t), "a pointer to the struct");
  if (status) return status;
  size_t size;
  memcpy(&size, callers, sizeof size);
  if (size < min_size || size > EA_MAX_STRUCT_SIZE) {
    return ea_fail(EA_ERR_INVALID, "%s.struct_size: found %zu, allowed %zu to %d (start from the struct's EA_..._INIT)",
                   name, size, min_size, EA_MAX_STRUCT_SIZE);
  }
  return EA_OK;
}

ea_status ea_check_struct_in(const char *name, const void *callers, size_t min_size, size_t known_size) {
  const ea_status status = ea_check_struct(name, callers, min_size);
  if (status) return status;
  size_t size;
  memcpy(&size, callers, sizeof size);
  const unsigned char *bytes = callers;
  for (size_t i = known_size; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return ea_fail(
        EA_ERR_INVALID,
        "%s.struct_size: found %zu and byte %zu not 0, allowed only 0 past the %zu bytes that extattn %s knows", name,
        size, i, known_size, ea_version());
  }
  return EA_OK;
}

ea_status ea_check_pointer(const char *name, const void *data, size_t alignment, const char *wanted) {
  if (!data) return ea_fail(EA_ERR_INVALID, "%s: found NULL, allowed %s", name, wanted);
  if ((uintptr_t)data % alignment != 0) {
    return ea_fail(EA_ERR_INVALID, "%s: found address %p, allowed multiples of %zu", name, data, alignment);
  }
  return EA_OK;
}

ea_status ea_check_bool(const char *name, const bool *value) {
  unsigned char byte;
  memcpy(&byte, value, sizeof byte);
  if (byte > 1) return ea_fail(EA_ERR_INVALID, "%s: found %d, allowed 0 (false) or 1 (true)", name, byte);
  return EA_OK;
}
