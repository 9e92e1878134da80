/* Fuzz target: a whole case file, read, run on the CPU and written again. Damaged files must
 * be refused with one line; what is accepted must run inside of its memory, give every row its
 * lse, and survive being written and read. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/case.h"

#define MAX_FILE_BYTES (1 << 16)
#define MAX_WORK 200000 /* multiply-adds of a case that is run; larger ones are only read */

// NOLINTNEXTLINE(readability-non-const-parameter): libFuzzer's type
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

/* The processor's best instruction set, and none in particular. */
static ea_context *best, *portable;

static void check(int holds) {
  if (!holds) abort();
}

// NOLINTNEXTLINE(readability-non-const-parameter): libFuzzer's type
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  options.num_threads = 1;
  check(ea_context_create(&options, &best) == EA_OK);
  options.isa = EA_ISA_PORTABLE;
  check(ea_context_create(&options, &portable) == EA_OK);
  return 0;
}

static void check_refused(ea_status status) {
  check(status == EA_ERR_INVALID);
  check(ea_last_error()[0] && !strchr(ea_last_error(), '\n'));
}

static bool is_small(const ea_case *c) {
  const ea_problem *problem = &c->problem;
  const double keys = (double)c->batch.num_kv_indices + (double)c->batch.num_tokens;
  const double rows = (double)c->batch.num_tokens * problem->num_q_heads;
  return keys * rows * (problem->head_dim + problem->head_dim_v) <= MAX_WORK && rows * problem->head_dim_v <= MAX_WORK;
}

/* A copy of the bytes and nothing around them, so that an access beside them shows. */
static void *exact_copy(const void *data, size_t bytes) {
  void *copy = malloc(bytes ? bytes : 1);
  check(copy != NULL);
  if (bytes) memcpy(copy, data, bytes);
  return copy;
}

/* Runs a case by one family; out and lse are the batch's. */
static ea_status run(ea_context *context, const ea_case *c, ea_family family, const ea_batch *batch) {
  ea_plan_options options = EA_PLAN_OPTIONS_INIT;
  options.family = family;
  ea_plan *plan = NULL;
  ea_status status = ea_plan_create(context, &c->problem, &options, &plan);
  size_t bytes = 0;
  void *workspace = NULL;
  if (!status) status = ea_workspace_size(plan, batch, &bytes);
  if (!status && bytes > 0) check(posix_memalign(&workspace, 256, bytes) == 0);
  if (!status) status = ea_run(plan, batch, workspace, bytes, NULL);
  free(workspace);
  ea_plan_destroy(plan);
  return status;
}

/* A signalling NaN, which no arithmetic makes: a row of lse that holds it was not written. */
static const uint32_t pattern = 0xff95a5a5;

static void run_and_check(ea_context *context, const ea_case *c, ea_family family, const ea_batch *batch, size_t rows) {
  for (size_t i = 0; i < rows; ++i) memcpy(&batch->lse[i], &pattern, sizeof pattern);
  const ea_status status = run(context, c, family, batch);
  if (status) check_refused(status);
  for (size_t i = 0; i < rows; ++i) {
    uint32_t found;
    memcpy(&found, &batch->lse[i], sizeof found);
    check((found == pattern) == (status != EA_OK));
  }
}

static void run_exactly(const ea_case *c) {
  void *bases[EA_CASE_MAX_STORAGES];
  for (size_t i = 0; i < c->num_storages; ++i) bases[i] = exact_copy(c->storages[i].data, c->storages[i].bytes);
  ea_batch batch = ea_case_rebase(c, bases);
  const size_t rows = (size_t)c->batch.num_tokens * (size_t)c->problem.num_q_heads;
  const size_t out_bytes = rows * (size_t)c->problem.head_dim_v * ea_dtype_size(c->problem.dtype);
  batch.out.data = malloc(out_bytes ? out_bytes : 1);
  batch.lse = malloc(rows ? rows * sizeof(float) : 1);
  check(batch.out.data && batch.lse);
  run_and_check(best, c, EA_FAMILY_REFERENCE, &batch, rows);
  run_and_check(best, c, EA_FAMILY_CPU, &batch, rows);
  run_and_check(portable, c, EA_FAMILY_CPU, &batch, rows);
  free(batch.out.data);
  free(batch.lse);
  for (size_t i = 0; i < c->num_storages; ++i) free(bases[i]);
}

static ea_status read_case(const uint8_t *bytes, size_t size, ea_case *c) {
  const int fd = memfd_create("case", MFD_CLOEXEC);
  check(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ea_status status = ea_case_read(path, c);
  close(fd);
  return status;
}

/* The bytes of a case file. */
static uint8_t *written(const ea_case *c, size_t *size) {
  char path[64];
  snprintf(path, sizeof path, "%s/extattn-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  const int name = mkstemp(path);
  check(name >= 0 && ea_case_write(path, c) == EA_OK);
  close(name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  unlink(path);
  const off_t end = lseek(fd, 0, SEEK_END);
  check(fd >= 0 && end > 0);
  uint8_t *bytes = malloc((size_t)end);
  check(bytes && pread(fd, bytes, (size_t)end, 0) == end);
  close(fd);
  *size = (size_t)end;
  return bytes;
}

/* What was written, read and written again is the same. */
static void write_and_read(const ea_case *c) {
  size_t first_size, second_size;
  uint8_t *first = written(c, &first_size);
  ea_case again;
  check(read_case(first, first_size, &again) == EA_OK);
  uint8_t *second = written(&again, &second_size);
  check(first_size == second_size && memcmp(first, second, first_size) == 0);
  ea_case_free(&again);
  free(first);
  free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
  if (size > MAX_FILE_BYTES) return 0;
  ea_case c;
  const ea_status status = read_case(input, size, &c);
  if (status) {
    check_refused(status);
    check(c.num_storages == 0 && !c.map);
    return 0;
  }
  if (is_small(&c)) {
    run_exactly(&c);
    if (ea_case_find_shared_kv(&c)) run_exactly(&c);
    write_and_read(&c);
  }
  ea_case_free(&c);
  return 0;
}
