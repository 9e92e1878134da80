/* Plans: which family runs a problem on a context, with which shape, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "common/check.h"
#include "common/grow.h"
#include "cpu/cpu.h"
#include "plan/planner.h"
#include "problem/problem.h"

static ea_status resolve_options(const ea_plan_options *callers, ea_plan_options *full) {
  *full = (ea_plan_options)EA_PLAN_OPTIONS_INIT;
  if (callers) {
    const ea_status status = ea_check_struct_in("options", callers, sizeof callers->struct_size, sizeof *full);
    if (status) return status;
    ea_struct_in(full, sizeof *full, callers, callers->struct_size);
  }
  if ((int)full->family < EA_FAMILY_AUTO || (int)full->family > EA_FAMILY_HOPPER) {
    return ea_fail(EA_ERR_INVALID, "family: found %d, allowed %d (auto) to %d (hopper)", (int)full->family,
                   EA_FAMILY_AUTO, EA_FAMILY_HOPPER);
  }
  if (full->stages < 0) {
    return ea_fail(EA_ERR_INVALID, "stages: found %d, allowed 0 (automatic) or more", full->stages);
  }
  return EA_OK;
}

static void clear_info(ea_plan_info *info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
}

static ea_status plan_cpu(const ea_context *context, const ea_problem *problem, const ea_plan_options *options,
                          ea_plan_info *info) {
  if (options->family == EA_FAMILY_PORTABLE || options->family == EA_FAMILY_HOPPER) {
    return ea_fail(EA_ERR_UNSUPPORTED, "family: found %s, allowed cpu, reference on a CPU context",
                   ea_family_name(options->family));
  }
  if (options->stages > 1) {
    return ea_fail(EA_ERR_UNSUPPORTED, "stages: found %d, allowed 0 or 1 on a CPU context", options->stages);
  }
  info->stages = 1;
  info->max_stages = 1;
  info->threads = context->num_threads;
  if (options->family == EA_FAMILY_REFERENCE) {
    info->family = EA_FAMILY_REFERENCE;
    info->tile_m = 1;
    info->tile_n = 1;
    (void)snprintf(info->kernel, sizeof info->kernel, "reference");
    (void)snprintf(info->reason, sizeof info->reason,
                   "asked for: the definition in float64, a query and a key at a time");
    return EA_OK;
  }
  const ea_cpu_shape shape = ea_cpu_shape_of(problem, context->isa);
  info->family = EA_FAMILY_CPU;
  info->tile_m = shape.tile_m;
  info->tile_n = shape.tile_n;
  (void)snprintf(info->kernel, sizeof info->kernel, "%s", shape.kernel);
  (void)snprintf(info->reason, sizeof info->reason, "a CPU context with %s, %d x %d tiles on %d threads",
                 ea_isa_name(context->isa), shape.tile_m, shape.tile_n, context->num_threads);
  return EA_OK;
}

static ea_status check_gpu_options(const ea_plan_options *options) {
  if (options->family != EA_FAMILY_REFERENCE && options->family != EA_FAMILY_CPU) return EA_OK;
  return ea_fail(EA_ERR_UNSUPPORTED, "family: found %s, allowed portable, hopper on a GPU",
                 ea_family_name(options->family));
}

static ea_status plan_cuda(const ea_context *context, const ea_problem *problem, const ea_plan_options *options,
                           ea_plan_info *info, ea_cuda_plan *plan) {
  ea_arch arch;
  const ea_kernel *kernel = NULL;
  ea_cuda_arch(context->cuda, &arch);
  ea_status status = check_gpu_options(options);
  if (!status) status = ea_plan_gpu(&arch, problem, options, info, &kernel);
  if (!status) status = ea_cuda_plan_make(context->cuda, kernel, problem, info, plan);
  return status;
}

static ea_status fill_plan(ea_plan *plan, const ea_context *context, const ea_problem *problem,
                           const ea_plan_options *options) {
  ea_plan_options full;
  ea_status status = resolve_options(options, &full);
  if (!status) status = ea_problem_resolve(problem, &plan->problem);
  if (status) return status;
  clear_info(&plan->info);
  if (context->cuda) return plan_cuda(context, &plan->problem, &full, &plan->info, &plan->cuda);
  return plan_cpu(context, &plan->problem, &full, &plan->info);
}

ea_status ea_plan_create(ea_context *context, const ea_problem *problem, const ea_plan_options *options,
                         ea_plan **plan) {
  if (!plan) return ea_fail(EA_ERR_INVALID, "plan: found NULL, allowed where to put the new plan");
  *plan = NULL;
  if (!context) return ea_fail(EA_ERR_INVALID, "context: found NULL, allowed a context");

  ea_plan *created = calloc(1, sizeof *created);
  if (!created) return ea_fail(EA_ERR_OUT_OF_MEMORY, "plan: no memory for %zu bytes", sizeof *created);
  const ea_status status = fill_plan(created, context, problem, options);
  if (status) {
    free(created);
    return status;
  }
  ea_context_retain(context);
  created->context = context;
  *plan = created;
  return EA_OK;
}

void ea_plan_destroy(ea_plan *plan) {
  if (!plan) return;
  ea_context_destroy(plan->context);
  free(plan);
}

ea_status ea_plan_get_info(const ea_plan *plan, ea_plan_info *info) {
  if (!plan) return ea_fail(EA_ERR_INVALID, "plan: found NULL, allowed a plan");
  const ea_status status = ea_check_struct("info", info, sizeof info->struct_size);
  if (status) return status;
  ea_struct_out(info, &plan->info, sizeof plan->info);
  return EA_OK;
}

static ea_status unknown_arch(const char *name) {
  char known[128] = "";
  size_t length = 0;
  int32_t count;
  const ea_arch *archs = ea_known_archs(&count);
  for (int32_t i = 0; i < count && length < sizeof known; ++i) {
    const int written = snprintf(known + length, sizeof known - length, "%s%s", i ? ", " : "", archs[i].name);
    if (written < 0) break;
    length += (size_t)written;
  }
  return ea_fail(EA_ERR_INVALID, "arch: found \"%.40s\", allowed %s", name, known);
}

ea_status ea_plan_for_arch(const char *arch, const ea_problem *problem, const ea_plan_options *options,
                           ea_plan_info *info) {
  if (!arch) return ea_fail(EA_ERR_INVALID, "arch: found NULL, allowed a name such as \"sm_90\"");
  ea_status status = ea_check_struct("info", info, sizeof info->struct_size);
  if (status) return status;
  const ea_arch *known = ea_arch_find(arch);
  if (!known) return unknown_arch(arch);

  ea_problem resolved;
  ea_plan_options full;
  ea_plan_info planned;
  const ea_kernel *kernel;
  clear_info(&planned);
  status = resolve_options(options, &full);
  if (!status) status = ea_problem_resolve(problem, &resolved);
  if (!status) status = check_gpu_options(&full);
  if (!status) status = ea_plan_gpu(known, &resolved, &full, &planned, &kernel);
  if (status) return status;
  ea_struct_out(info, &planned, sizeof planned);
  return EA_OK;
}
