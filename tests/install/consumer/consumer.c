/* The public header and library from strict C99: every INIT, and a call that needs no tensor. */
#include <extattn.h>

#include <stdio.h>

int main(void) {
  ea_problem problem = EA_PROBLEM_INIT;
  ea_plan_info info = EA_PLAN_INFO_INIT;
  ea_device_info device = EA_DEVICE_INFO_INIT;
  ea_context_options context_options = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan_options = EA_PLAN_OPTIONS_INIT;
  ea_batch batch = EA_BATCH_INIT;
  ea_merge_args merge = EA_MERGE_ARGS_INIT;
  ea_status status;

  if (context_options.struct_size != sizeof context_options || plan_options.struct_size != sizeof plan_options ||
      batch.struct_size != sizeof batch || merge.struct_size != sizeof merge || info.struct_size != sizeof info ||
      device.struct_size != sizeof device) {
    return 1;
  }
  problem.num_q_heads = 32;
  problem.num_kv_heads = 8;
  problem.head_dim = 128;
  status = ea_plan_for_arch("sm_90", &problem, &plan_options, &info);
  if (status != EA_OK) {
    fprintf(stderr, "%s: %s\n", ea_status_name(status), ea_last_error());
    return 1;
  }
  printf("extattn %s, sm_90, head_dim 128: depth %d\n", ea_version(), (int)info.stages);
  return info.stages >= 1 ? 0 : 1;
}
