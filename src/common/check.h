/* Checks that every public function needs: a struct's size, a pointer, bytes that must be a bool. */
#ifndef EA_COMMON_CHECK_H
#define EA_COMMON_CHECK_H

#include <stddef.h>

#include "common/error.h"
#include "extattn.h"

/* A struct_size past this was never set: no version of a struct comes near it. */
#define EA_MAX_STRUCT_SIZE 65536

/* callers points to a public struct (its first member is struct_size) or is NULL. min_size:
 * up to the last field that has no default. */
ea_status ea_check_struct(const char *name, const void *callers, size_t min_size);

/* The same for a struct that the caller fills. known_size: what this library knows of it; behind that, in a struct of a
 * later version, everything must be zero, as an option that is not known cannot be heeded. */
ea_status ea_check_struct_in(const char *name, const void *callers, size_t min_size, size_t known_size);

/* data is there and a multiple of alignment. wanted says what belongs there. */
ea_status ea_check_pointer(const char *name, const void *data, size_t alignment, const char *wanted);

/* Reading any other byte than 0 or 1 as a bool is undefined, so it is looked at as a byte first. */
ea_status ea_check_bool(const char *name, const bool *value);

#endif
