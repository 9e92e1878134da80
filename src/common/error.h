/* The thread's last error: how every part of the library reports a failure.
 *
 *     return ea_fail(EA_ERR_INVALID, "head_dim: found %d, allowed 1 to %d", d, EA_MAX_HEAD_DIM);
 *
 * Form of a text: the argument's public name, a colon, what was found, what is allowed. */
#ifndef EA_COMMON_ERROR_H
#define EA_COMMON_ERROR_H

#include "extattn.h"

/* Keeps the text for ea_last_error(). */
void ea_set_last_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline ea_status ea_same_status(ea_status status) {
  return status;
}

/* Keeps the text for ea_last_error() and returns status. A macro, so that whoever reads a
 * caller (clang-tidy too) sees that a failure is not EA_OK. */
#define ea_fail(status, ...) (ea_set_last_error(__VA_ARGS__), ea_same_status(status))

#endif
