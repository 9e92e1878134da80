/* Runs a case on any context, distrustfully: outputs and workspace hold a pattern before
 * the run and have guards around them, the workspace is exactly as large as asked for, and
 * afterwards guards, gaps between output rows and all inputs must be as they were.
 *
 *     ea_runner *runner;
 *     ea_runner_create(context, &plan_options, &c, EA_OUT_PACKED, &runner);
 *     ea_runner_run(runner, NULL, &result);        as often as wanted
 *     ea_runner_destroy(runner); */
#ifndef EA_CHECK_RUNNER_H
#define EA_CHECK_RUNNER_H

#include <stdint.h>

#include "check/generate.h"
#include "extattn.h"
#include "io/case.h"

/* How the outputs lie; gaps come from layout_seed. */
typedef struct ea_out_layout {
  ea_layout out, lse;
  int32_t misalign; /* elements by which they start late */
  uint64_t layout_seed;
  bool without_lse;
} ea_out_layout;

#define EA_OUT_PACKED                                                                                                  \
  (ea_out_layout) {                                                                                                    \
    EA_LAYOUT_PACKED, EA_LAYOUT_PACKED, 0, 0, false                                                                    \
  }

/* As a spec says. */
ea_out_layout ea_out_layout_of(const ea_spec *spec);

/* What a run gave, packed: out [tokens, heads, dim] and lse [tokens, heads]. */
typedef struct ea_result {
  ea_dtype dtype;
  int64_t tokens;
  int32_t heads, dim;
  void *out;
  float *lse; /* NULL: not asked for */
} ea_result;

void ea_result_free(ea_result *result);

/* Row (token, head) of out and its bytes. */
const void *ea_result_row(const ea_result *result, int64_t token, int32_t head);
size_t ea_result_row_bytes(const ea_result *result);

typedef struct ea_runner ea_runner;

/* Makes the plan and, on a GPU, copies the case there. The case must outlive the runner.
 * Fails as the library's calls do. */
ea_status ea_runner_create(ea_context *context, const ea_plan_options *options, const ea_case *c, ea_out_layout layout,
                           ea_runner **runner);
void ea_runner_destroy(ea_runner *runner);

/* One run on a stream (NULL on a CPU). A failure of the library's is handed on, after a look
 * that it wrote nothing; EA_ERR_INTERNAL when the library broke its word: a row not written,
 * something else written. result is empty then. */
ea_status ea_runner_run(ea_runner *runner, void *stream, ea_result *result);

/* The three steps of ea_runner_run, for runs that are captured or overlap: fill outputs and
 * workspace with the pattern; call; look and collect. */
ea_status ea_runner_reset(ea_runner *runner, void *stream);
ea_status ea_runner_enqueue(ea_runner *runner, void *stream);
ea_status ea_runner_collect(ea_runner *runner, void *stream, ea_result *result);

const ea_plan *ea_runner_plan(const ea_runner *runner);

/* What ea_runner_enqueue hands to ea_run; a test of bad input may spoil it. */
typedef struct ea_runner_args {
  ea_batch batch;
  void *workspace;
  size_t workspace_bytes;
} ea_runner_args;
ea_runner_args *ea_runner_arguments(ea_runner *runner);

/* EA_ERR_INTERNAL unless outputs, workspace guards and inputs are untouched since the reset. */
ea_status ea_runner_untouched(ea_runner *runner, void *stream);

/* All in one: create, run once, destroy. */
ea_status ea_check_run(ea_context *context, const ea_plan_options *options, const ea_case *c, ea_out_layout layout,
                       ea_result *result);

#endif
