// The public header and library from C++11.
#include <extattn.h>

#include <cstdio>

int main() {
  ea_context_options options = EA_CONTEXT_OPTIONS_INIT;
  ea_plan_options plan_options = EA_PLAN_OPTIONS_INIT;
  ea_problem problem = EA_PROBLEM_INIT;
  ea_batch batch = EA_BATCH_INIT;
  ea_merge_args merge = EA_MERGE_ARGS_INIT;
  if (batch.struct_size != sizeof batch || merge.struct_size != sizeof merge) return 1;

  options.num_threads = 1;
  problem.dtype = EA_F32;
  problem.num_q_heads = problem.num_kv_heads = 1;
  problem.head_dim = 8;
  ea_context *context = nullptr;
  ea_plan *plan = nullptr;
  ea_status status = ea_context_create(&options, &context);
  if (status == EA_OK) status = ea_plan_create(context, &problem, &plan_options, &plan);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
  std::printf("extattn %s from C++: %s\n", ea_version(), ea_status_name(status));
  return status == EA_OK ? 0 : 1;
}
