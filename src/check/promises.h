/* The promises of docs/testing.md as functions: each takes a spec and says whether a device
 * keeps its word on it. What `extattn check`, the tests and the GPU tests run. */
#ifndef EA_CHECK_PROMISES_H
#define EA_CHECK_PROMISES_H

#include "check/generate.h"
#include "extattn.h"

/* Who is tested: one device with one choice of kernel family and depth. */
typedef struct ea_subject {
  ea_device_info info;
  ea_plan_options plan;
  ea_context *context;
  ea_context *reference;        /* a CPU, for the float64 reference */
  ea_context *other_threads[2]; /* CPU: the same with other thread counts; NULL on a GPU */
} ea_subject;

ea_status ea_subject_open(const ea_context_options *context, const ea_plan_options *plan, ea_subject *subject);
void ea_subject_close(ea_subject *subject);

typedef enum ea_outcome {
  EA_KEPT,
  EA_SKIPPED, /* the device says that it cannot do this case, or the promise says nothing about it */
  EA_BROKEN
} ea_outcome;

typedef struct ea_verdict {
  ea_outcome outcome;
  char text[768]; /* why skipped, or what is broken: which variant, row, numbers */
} ea_verdict;

typedef struct ea_promise {
  const char *name;    /* "bits" */
  int number;          /* in docs/testing.md; 0: a rule of extattn.h that none of them covers */
  const char *summary; /* one line */
  /* Turns what is left open in the options towards cases on which the promise says something. */
  void (*aim)(ea_gen_options *options);
  void (*check)(const ea_subject *subject, const ea_spec *spec, ea_verdict *verdict);
} ea_promise;

extern const ea_promise ea_promises[];
extern const int ea_num_promises;

/* By name or number ("bits", "3"); NULL: there is none. */
const ea_promise *ea_promise_find(const char *name);

/* The case that a promise is checked on for some options: aimed, then drawn. */
void ea_promise_draw(const ea_promise *promise, const ea_gen_options *options, ea_spec *spec);

/*
 * Makes a spec on which a promise is broken smaller, by everything that leaves it broken: fewer
 * and shorter sequences, fewer heads, features off, plain layout. On return verdict is that
 * of the smaller spec. Tries at most max_tries specs; returns how many it tried.
 */
int ea_promise_shrink(const ea_promise *promise, const ea_subject *subject, int max_tries, ea_spec *spec,
                      ea_verdict *verdict);

#endif
