/* The way into OpenMP's parallel regions that works in a child of fork() too. */
#ifndef EA_CPU_REGION_H
#define EA_CPU_REGION_H

/* A function with a parallel region of num_threads threads. */
typedef void ea_cpu_region(void *argument, int num_threads);

/* Calls region and returns when it has. In a child of fork() the region may be begun by another thread than the
 * caller's, or, without memory for one, have a single thread: no result depends on either. */
void ea_cpu_run_region(ea_cpu_region *region, void *argument, int num_threads);

#endif
