/* Limits that the library checks and the command names in its help and messages. */
#ifndef EA_COMMON_LIMITS_H
#define EA_COMMON_LIMITS_H

/* More threads than any machine has: a larger number is a mistake that OpenMP would die of. */
#define EA_MAX_THREADS 1024

#endif
