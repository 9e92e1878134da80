/* The thread's last error, and the names of statuses. The text lives in a fixed buffer, so
 * reporting a failure cannot fail itself (out of memory included). */
#include "common/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define EA_ERROR_TEXT_BYTES 512

static _Thread_local char last_error[EA_ERROR_TEXT_BYTES];

void ea_set_last_error(const char *format, ...) {
  char text[EA_ERROR_TEXT_BYTES]; /* apart: an argument may be the last error itself */
  va_list args;
  va_start(args, format);
  const int written = vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (written < 0) text[0] = '\0';

  /* Texts are one line; a quoted name from outside may hold anything. */
  for (char *c = text; *c; ++c) {
    if ((unsigned char)*c < ' ' || *c == 0x7f) *c = '?';
  }
  memcpy(last_error, text, sizeof text);
}

const char *ea_last_error(void) {
  return last_error;
}

const char *ea_status_name(ea_status status) {
  switch (status) {
  case EA_OK:
    return "EA_OK";
  case EA_ERR_INVALID:
    return "EA_ERR_INVALID";
  case EA_ERR_UNSUPPORTED:
    return "EA_ERR_UNSUPPORTED";
  case EA_ERR_NO_DEVICE:
    return "EA_ERR_NO_DEVICE";
  case EA_ERR_OUT_OF_MEMORY:
    return "EA_ERR_OUT_OF_MEMORY";
  case EA_ERR_DOES_NOT_FIT:
    return "EA_ERR_DOES_NOT_FIT";
  case EA_ERR_DEVICE:
    return "EA_ERR_DEVICE";
  case EA_ERR_INTERNAL:
    return "EA_ERR_INTERNAL";
  }
  return "unknown status";
}
