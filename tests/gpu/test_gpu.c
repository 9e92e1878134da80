/* The promises of semantics.md on a GPU. Without one it says so and exits 77.
 *
 *     test_gpu [--small] [PATTERN]     PATTERN chooses tests by name, as cmocka's filters do */
#include <stdio.h>
#include <string.h>

#include "support.h"

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--small") == 0) {
      small = true;
    } else {
      cmocka_set_test_filter(argv[i]);
    }
  }
  if (ea_cuda_device_count() == 0) {
    printf("skipped: no GPU: %s\n", ea_last_error());
    return 77;
  }
  ea_context_options context = EA_CONTEXT_OPTIONS_INIT;
  context.device = EA_DEVICE_CUDA;
  const ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  const ea_status status = ea_subject_open(&context, &plan, &gpu);
  if (status == EA_ERR_UNSUPPORTED) { /* a card, or a build, without kernels for it */
    printf("skipped: no GPU: %s\n", ea_last_error());
    return 77;
  }
  if (status != EA_OK) {
    printf("%s\n", ea_last_error());
    return 1;
  }
  printf("%s, %s, driver %d\n", gpu.info.name, gpu.info.arch, gpu.info.driver_version);
  fflush(stdout);
  const int failed = test_promises() + test_depths() + test_calls() + test_large();
  ea_subject_close(&gpu);
  return failed ? 1 : 0;
}
