/* The promises of semantics.md on a GPU. Without one it says so and exits 77.
 *
 *     test_gpu [--small] [--family portable|hopper] [--skip PATTERN] [PATTERN]
 *
 * PATTERN chooses tests by name, as cmocka's filters do, and --skip leaves some out. With a family
 * only what concerns results is tested, on the cases that the family takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

static ea_family family_of(const char *name) {
  for (ea_family family = EA_FAMILY_PORTABLE; family <= EA_FAMILY_HOPPER; family++) {
    if (name && strcmp(name, ea_family_name(family)) == 0) return family;
  }
  printf("--family: found %s, allowed portable, hopper\n", name ? name : "nothing");
  exit(2);
}

int main(int argc, char **argv) {
  ea_plan_options plan = EA_PLAN_OPTIONS_INIT;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--small") == 0) {
      small = true;
    } else if (strcmp(argv[i], "--family") == 0) {
      plan.family = family_of(argv[++i]);
    } else if (strcmp(argv[i], "--skip") == 0 && i + 1 < argc) {
      cmocka_set_skip_filter(argv[++i]);
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
  const ea_status status = ea_subject_open(&context, &plan, &gpu);
  if (status == EA_ERR_UNSUPPORTED) { /* a card, or a build, without kernels for it */
    printf("skipped: no GPU: %s\n", ea_last_error());
    return 77;
  }
  if (status != EA_OK) {
    printf("%s\n", ea_last_error());
    return 1;
  }
  if (plan.family == EA_FAMILY_HOPPER && strcmp(gpu.info.arch, "sm_90") != 0) {
    printf("skipped: family hopper: found %s, allowed sm_90\n", gpu.info.arch);
    ea_subject_close(&gpu);
    return 77;
  }
  printf("%s, %s, driver %d\n", gpu.info.name, gpu.info.arch, gpu.info.driver_version);
  fflush(stdout);
  int failed = test_promises() + test_depths() + test_staging();
  if (plan.family == EA_FAMILY_AUTO) failed += test_calls() + test_large();
  ea_subject_close(&gpu);
  return failed ? 1 : 0;
}
