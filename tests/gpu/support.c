/* See support.h. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/random.h"
#include "common/numeric.h"

ea_subject gpu;
bool small;

void assert_ok_at(ea_status status, const char *call, const char *file, int line) {
  if (status == EA_OK) return;
  print_error("%s: %s: %s\n", call, ea_status_name(status), ea_last_error());
  _fail(file, line);
}

void assert_refused(ea_status found, ea_status expected, const char *const *words) {
  const char *text = found == EA_OK ? "" : ea_last_error();
  assert_string_equal(ea_status_name(found), ea_status_name(expected));
  for (; *words; words++) {
    if (!strstr(text, *words)) fail_msg("\"%s\" does not say \"%s\"", text, *words);
  }
}

void *device_alloc(size_t bytes) {
  void *ptr = NULL;
  assert_ok(ea_mem_alloc(gpu.context, bytes, &ptr));
  return ptr;
}

void *device_copy(const void *host, size_t bytes) {
  void *ptr = device_alloc(bytes);
  assert_ok(ea_mem_upload(gpu.context, ptr, host, bytes, NULL));
  return ptr;
}

void device_free(void *ptr) {
  ea_mem_free(gpu.context, ptr);
}

void *host_copy(const void *device, size_t bytes) {
  void *host = malloc(bytes ? bytes : 1);
  assert_non_null(host);
  assert_ok(ea_mem_download(gpu.context, host, device, bytes, NULL));
  return host;
}

/* Drawing hundreds of millions of numbers would take longer than the tests: large tensors
 * repeat a table whose length no row divides. */
enum { TABLE_ELEMENTS = 1000003 };

void *random_tensor(ea_dtype dtype, int64_t elements, uint64_t seed) {
  const size_t element = ea_dtype_size(dtype);
  const int64_t count = elements < TABLE_ELEMENTS ? elements : TABLE_ELEMENTS;
  char *table = malloc((size_t)(count + 1) * element);
  assert_non_null(table);
  ea_rng rng = ea_rng_of(seed);
  for (int64_t i = 0; i < count; i += 2) {
    double normal[2];
    ea_rng_normal(&rng, normal, 2);
    ea_store_double(table, dtype, i, normal[0]);
    ea_store_double(table, dtype, i + 1, normal[1]); /* the last may be one past count: the table has room */
  }
  char *tensor = device_alloc((size_t)elements * element);
  assert_ok(ea_mem_upload(gpu.context, tensor, table, (size_t)count * element, NULL));
  free(table);
  for (int64_t done = count; done < elements; done += count) {
    const int64_t n = elements - done < count ? elements - done : count;
    assert_ok(ea_mem_copy(gpu.context, tensor + (size_t)done * element, tensor, (size_t)n * element, NULL));
  }
  return tensor;
}

void run_once(const ea_problem *problem, int32_t stages, const ea_batch *batch) {
  ea_plan_options options = gpu.plan;
  options.stages = stages;
  ea_plan *plan;
  size_t bytes = 0;
  assert_ok(ea_plan_create(gpu.context, problem, &options, &plan));
  assert_ok(ea_workspace_size(plan, batch, &bytes));
  void *workspace = device_alloc(bytes);
  assert_ok(ea_run(plan, batch, workspace, bytes, NULL));
  assert_ok(ea_stream_synchronize(gpu.context, NULL));
  device_free(workspace);
  ea_plan_destroy(plan);
}

int32_t max_stages_of(const ea_problem *problem) {
  ea_plan *plan;
  ea_plan_info info = EA_PLAN_INFO_INIT;
  assert_ok(ea_plan_create(gpu.context, problem, &gpu.plan, &plan));
  assert_ok(ea_plan_get_info(plan, &info));
  ea_plan_destroy(plan);
  return info.max_stages;
}
