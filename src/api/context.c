/* Contexts: opening a device, and what it says about itself. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "common/check.h"
#include "common/grow.h"
#include "common/limits.h"
#include "cpu/cpu.h"

/* Overrides EA_ISA_AUTO. */
#define EA_ISA_VARIABLE "EXTATTN_ISA"

static ea_status check_options(const ea_context_options *options) {
  if (options->device != EA_DEVICE_CPU && options->device != EA_DEVICE_CUDA) {
    return ea_fail(EA_ERR_INVALID, "device: found %d, allowed 0 (CPU), 1 (CUDA)", (int)options->device);
  }
  if (options->device == EA_DEVICE_CPU && options->device_ordinal != 0) {
    return ea_fail(EA_ERR_INVALID, "device_ordinal: found %d, allowed 0 for the CPU", options->device_ordinal);
  }
  if (options->device_ordinal < 0) {
    return ea_fail(EA_ERR_INVALID, "device_ordinal: found %d, allowed 0 or more", options->device_ordinal);
  }
  if (options->num_threads < 0 || options->num_threads > EA_MAX_THREADS) {
    return ea_fail(EA_ERR_INVALID, "num_threads: found %d, allowed 0 (automatic) to %d", options->num_threads,
                   EA_MAX_THREADS);
  }
  if ((int)options->isa < EA_ISA_AUTO || (int)options->isa > EA_ISA_AMX) {
    return ea_fail(EA_ERR_INVALID, "isa: found %d, allowed %d (auto) to %d (amx)", (int)options->isa, EA_ISA_AUTO,
                   EA_ISA_AMX);
  }
  return EA_OK;
}

static ea_status isa_of_name(const char *name, ea_isa *isa) {
  for (int i = EA_ISA_PORTABLE; i <= EA_ISA_AMX; ++i) {
    if (strcmp(name, ea_isa_name((ea_isa)i)) == 0) {
      *isa = (ea_isa)i;
      return EA_OK;
    }
  }
  return ea_fail(EA_ERR_INVALID, "%s: found \"%.40s\", allowed portable, avx2, avx512, avx512_bf16, amx",
                 EA_ISA_VARIABLE, name);
}

/* The instruction set to use: the asked one, else the environment's, else the best. */
static ea_status choose_isa(ea_isa asked, ea_isa *chosen) {
  const char *source = "isa";
  const char *variable = getenv(EA_ISA_VARIABLE);
  if (asked == EA_ISA_AUTO && variable && variable[0]) {
    source = EA_ISA_VARIABLE;
    const ea_status status = isa_of_name(variable, &asked);
    if (status) return status;
  }
  if (!ea_cpu_has_isa(asked)) {
    return ea_fail(EA_ERR_UNSUPPORTED, "%s: found %s, allowed what this processor has, at best %s", source,
                   ea_isa_name(asked), ea_isa_name(ea_cpu_best_isa()));
  }
  *chosen = asked == EA_ISA_AUTO ? ea_cpu_best_isa() : asked;
  return EA_OK;
}

static int choose_threads(int32_t asked) {
  if (asked > 0) return asked;
  const int automatic = omp_get_max_threads();
  return automatic < EA_MAX_THREADS ? automatic : EA_MAX_THREADS;
}

static ea_status open_device(const ea_context_options *options, ea_context *context) {
  context->device = options->device;
  if (options->device == EA_DEVICE_CUDA) return ea_cuda_open(options->device_ordinal, &context->cuda);
  context->num_threads = choose_threads(options->num_threads);
  return choose_isa(options->isa, &context->isa);
}

/* A context without a device, with one reference; NULL: no memory. */
static ea_context *allocate(void) {
  ea_context *context = calloc(1, sizeof *context);
  ea_capture *capture = calloc(1, sizeof *capture);
  if (!context || !capture) {
    free(context);
    free(capture);
    return NULL;
  }
  atomic_init(&context->references, 1);
  ea_capture_init(capture);
  context->capture = capture;
  return context;
}

static void release(ea_context *context) {
  ea_capture_free(context->capture);
  free(context->capture);
  free(context);
}

ea_status ea_context_create(const ea_context_options *options, ea_context **context) {
  if (!context) return ea_fail(EA_ERR_INVALID, "context: found NULL, allowed where to put the new context");
  *context = NULL;

  ea_context_options full = EA_CONTEXT_OPTIONS_INIT;
  if (options) {
    ea_status status = ea_check_struct_in("options", options, sizeof options->struct_size, sizeof full);
    if (status) return status;
    ea_struct_in(&full, sizeof full, options, options->struct_size);
  }
  ea_status status = check_options(&full);
  if (status) return status;

  ea_context *created = allocate();
  if (!created) return ea_fail(EA_ERR_OUT_OF_MEMORY, "context: no memory for %zu bytes", sizeof *created);
  status = ea_capture_from_environment(created->capture);
  if (!status) status = open_device(&full, created);
  if (status) {
    release(created);
    return status;
  }
  *context = created;
  return EA_OK;
}

void ea_context_retain(ea_context *context) {
  atomic_fetch_add_explicit(&context->references, 1, memory_order_relaxed);
}

void ea_context_destroy(ea_context *context) {
  if (!context) return;
  if (atomic_fetch_sub_explicit(&context->references, 1, memory_order_acq_rel) > 1) return;
  if (context->cuda) ea_cuda_close(context->cuda);
  release(context);
}

ea_status ea_context_capture(ea_context *context, const ea_capture_options *options) {
  if (!context) return ea_fail(EA_ERR_INVALID, "context: found NULL, allowed a context");
  return ea_capture_set(context->capture, options);
}

static void describe_cpu(const ea_context *context, ea_device_info *info) {
  ea_cpu_name(info->name, sizeof info->name);
  (void)snprintf(info->arch, sizeof info->arch, "%s", ea_isa_name(context->isa));
  info->isa = context->isa;
  info->num_threads = context->num_threads;
}

ea_status ea_context_info(const ea_context *context, ea_device_info *info) {
  if (!context) return ea_fail(EA_ERR_INVALID, "context: found NULL, allowed a context");
  const ea_status status = ea_check_struct("info", info, sizeof info->struct_size);
  if (status) return status;

  ea_device_info full = EA_DEVICE_INFO_INIT;
  full.device = context->device;
  if (context->cuda) {
    ea_cuda_describe(context->cuda, &full);
  } else {
    describe_cpu(context, &full);
  }
  ea_struct_out(info, &full, sizeof full);
  return EA_OK;
}

int32_t ea_cuda_device_count(void) {
  return ea_cuda_count();
}

ea_status ea_check_stream(const ea_context *context, const void *stream) {
  if (context->device == EA_DEVICE_CUDA || !stream) return EA_OK;
  return ea_fail(EA_ERR_INVALID, "stream: found %p, allowed NULL on a CPU context", stream);
}
