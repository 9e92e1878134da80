/* Public structs begin with struct_size, so that a caller compiled against an older,
 * shorter struct keeps working: what it did not know keeps its default. */
#ifndef EA_COMMON_GROW_H
#define EA_COMMON_GROW_H

#include <stddef.h>
#include <string.h>

/* In: full (size bytes, already holding the defaults) takes over what the caller's struct covers. */
static inline void ea_struct_in(void *full, size_t size, const void *callers, size_t callers_size) {
  memcpy(full, callers, callers_size < size ? callers_size : size);
  memcpy(full, &size, sizeof size);
}

/* Out: the caller's struct takes as much of full as it has room for; its struct_size stays. */
static inline void ea_struct_out(void *callers, const void *full, size_t size) {
  size_t callers_size;
  memcpy(&callers_size, callers, sizeof callers_size);
  const size_t n = callers_size < size ? callers_size : size;
  if (n > sizeof callers_size) {
    memcpy((char *)callers + sizeof callers_size, (const char *)full + sizeof callers_size, n - sizeof callers_size);
  }
}

#endif
