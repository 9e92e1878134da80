/* What the GPU tests share: the card, random tensors in its memory, and refusing to go on
 * after a failure of the library's. */
#ifndef EA_TESTS_GPU_SUPPORT_H
#define EA_TESTS_GPU_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "check/promises.h"
#include "check/runner.h"
#include "cuda/memory.h"
#include "extattn.h"

/* Opened once for all tests. */
extern ea_subject gpu;
/* Few and small cases: for compute-sanitizer, under which everything takes a hundred times longer. */
extern bool small;

/* Fails the test with the library's own words. */
#define assert_ok(call) assert_ok_at((call), #call, __FILE__, __LINE__)
void assert_ok_at(ea_status status, const char *call, const char *file, int line);
/* The call fails with this status and a text that holds each of the words (NULL ends them). */
void assert_refused(ea_status found, ea_status expected, const char *const *words);

/* Device memory of normal random numbers; the same seed gives the same numbers. */
void *random_tensor(ea_dtype dtype, int64_t elements, uint64_t seed);
void *device_alloc(size_t bytes);
/* Device memory with a copy of host memory. */
void *device_copy(const void *host, size_t bytes);
void device_free(void *ptr);
/* A host copy, to be freed with free. */
void *host_copy(const void *device, size_t bytes);

/* One call with a plan and a workspace of its own, waited for. */
void run_once(const ea_problem *problem, int32_t stages, const ea_batch *batch);
/* The deepest pipeline for a problem. */
int32_t max_stages_of(const ea_problem *problem);

int test_promises(void);
int test_depths(void);
int test_large(void);
int test_calls(void);
int test_staging(void);

#endif
