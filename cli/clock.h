/* Wall time of the host, for what is shown and for runs on the CPU. */
#ifndef EA_CLI_CLOCK_H
#define EA_CLI_CLOCK_H

#include <time.h>

/* Milliseconds since some point in the past; never goes back. */
static inline double ea_clock_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

#endif
