/* The work items of a call for the CPU: blocks of query rows of one K/V head of one sequence.
 * They are handed out longest first, enumerated on the fly: a list would need memory that
 * grows with the batch, which a workspace of fixed size cannot hold. */
#ifndef EA_CPU_SCHEDULE_H
#define EA_CPU_SCHEDULE_H

#include "cpu/kernels/kernel.h"

typedef struct ea_cpu_schedule {
  const ea_call *call;
  int32_t block_rows;
  int64_t max_cost; /* of any block, in (row, key) pairs */
} ea_cpu_schedule;

/* block_rows: at most max_rows, less (but a multiple of row_step) where that is needed to
 * give every thread some items. No result depends on it. */
ea_cpu_schedule ea_cpu_schedule_make(const ea_call *call, int32_t max_rows, int32_t row_step, int num_threads);

/* One thread's place in the enumeration. Zero-initialised but for schedule. */
typedef struct ea_cpu_cursor {
  const ea_cpu_schedule *schedule;
  int64_t first_item; /* number of the current block's first item */
  int64_t seq;
  int64_t block; /* counts down: the last blocks of a sequence see most */
  int pass;
  bool started;
} ea_cpu_cursor;

/* Moves on to item number `number`, which must not be less than at the last call; false when
 * there are fewer. */
bool ea_cpu_cursor_seek(ea_cpu_cursor *cursor, int64_t number, ea_cpu_item *item);

#endif
