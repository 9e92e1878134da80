/* Captured calls: runs of a context that are written as case files, to be replayed elsewhere.
 * Which calls is the caller's or the environment's choice (extattn.h, ea_context_capture). */
#ifndef EA_CAPTURE_CAPTURE_H
#define EA_CAPTURE_CAPTURE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "extattn.h"
#include "io/case.h"

/* A part of a context. */
typedef struct ea_capture {
  atomic_bool active;
  pthread_mutex_t lock; /* of the rest */
  char *directory;
  int64_t call;
  double slower_ms;
  bool failing;
  int32_t files_left;
  int64_t num_calls; /* since it began */
} ea_capture;

void ea_capture_init(ea_capture *capture);
void ea_capture_free(ea_capture *capture);
ea_status ea_capture_set(ea_capture *capture, const ea_capture_options *options);
/* Begins when EXTATTN_CAPTURE says so; EA_ERR_INVALID names the variable that is wrong. */
ea_status ea_capture_from_environment(ea_capture *capture);

static inline bool ea_capture_is_active(const ea_capture *capture) {
  return atomic_load_explicit(&capture->active, memory_order_relaxed);
}

/* What is known of a call before it runs. */
typedef struct ea_capture_call {
  int64_t number;
  bool timed;
  double start_ms;
} ea_capture_call;

/* Around a run. end writes the call if a condition holds, and keeps the thread's last error. */
void ea_capture_begin(ea_context *context, void *stream, ea_capture_call *call);
void ea_capture_end(ea_context *context, const ea_problem *resolved, const ea_batch *batch, void *stream,
                    ea_status status, const ea_capture_call *call);

/* Copies a call into c, from the context's device: packed, and of the pool only the pages that
 * kv_indices names, renumbered in their order (results do not depend on slots). Slots outside the
 * pool stay outside. ran: the call was fine, so that rows past the last sequence, which a padded
 * GPU batch may have, are left out. */
ea_status ea_capture_gather(ea_context *context, const ea_problem *resolved, const ea_batch *batch, void *stream,
                            bool ran, ea_case *c);

#endif
