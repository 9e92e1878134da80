/* The thread's last error: how every part of the library reports a failure.
 *
 *     return ea_fail(EA_ERR_INVALID, "head_dim: found %d, allowed 1 to %d", d, EA_MAX_HEAD_DIM);
 *
 * Form of a text: the argument's public name, a colon, what was found, what is allowed. */
#ifndef EA_COMMON_ERROR_H
#define EA_COMMON_ERROR_H

#include "extattn.h"

/* Keeps the text for ea_last_error() and returns status. */
ea_status ea_fail(ea_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
