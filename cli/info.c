/* extattn info: the processor, the GPUs and what this build can use of them. */
#include <string.h>

#include "cli.h"
#include "cpu/cpu.h"
#include "cuda/device.h"

static const struct argp_option options[] = {
    EA_JSON_OPTION(0),
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  bool *json = state->input;
  switch (key) {
  case EA_JSON_KEY:
    *json = true;
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "unexpected argument '%s'", arg);
    return EINVAL;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* A GPU, or why it cannot be opened. */
typedef struct gpu {
  int32_t ordinal;
  ea_device_info info;
  char error[256]; /* "": none */
} gpu;

static ea_status describe(const ea_context_options *options_of_device, ea_device_info *info) {
  ea_context *context;
  ea_status status = ea_context_create(options_of_device, &context);
  if (status != EA_OK) return status;
  *info = (ea_device_info)EA_DEVICE_INFO_INIT;
  status = ea_context_info(context, info);
  ea_context_destroy(context);
  return status;
}

static void describe_gpu(int32_t ordinal, gpu *out) {
  ea_context_options device = EA_CONTEXT_OPTIONS_INIT;
  device.device = EA_DEVICE_CUDA;
  device.device_ordinal = ordinal;
  *out = (gpu){.ordinal = ordinal};
  if (describe(&device, &out->info) != EA_OK) snprintf(out->error, sizeof out->error, "%s", ea_last_error());
}

/* ------------------------------------------------------------------------------------
 * The embedded kernels, by architecture
 * ---------------------------------------------------------------------------------- */

static void image_arch(const ea_image *image, char *name, size_t n) {
  snprintf(name, n, "sm_%d%s", image->capability, image->exact ? "a" : "");
}

/* The architectures in ascending order, sm_90a after sm_90. */
static int arch_rank(const ea_image *image) {
  return 2 * image->capability + image->exact;
}

static bool same_arch(const ea_image *a, const ea_image *b) {
  return arch_rank(a) == arch_rank(b);
}

/* One of the images for the first architecture after that of `previous` (NULL: the first of all), or NULL. */
static const ea_image *next_arch(const ea_image *previous) {
  const ea_image *next = NULL;
  for (int32_t i = 0; i < ea_image_count; i++) {
    const ea_image *image = &ea_images[i];
    if (previous && arch_rank(image) <= arch_rank(previous)) continue;
    if (!next || arch_rank(image) < arch_rank(next)) next = image;
  }
  return next;
}

static int count_of_arch(const ea_image *image) {
  int count = 0;
  for (int32_t i = 0; i < ea_image_count; i++) count += same_arch(&ea_images[i], image);
  return count;
}

static json_t *kernels_json(void) {
  json_t *list = json_array();
  for (const ea_image *image = next_arch(NULL); image; image = next_arch(image)) {
    json_t *names = json_array();
    for (int32_t i = 0; i < ea_image_count; i++) {
      if (same_arch(&ea_images[i], image)) json_array_append_new(names, json_string(ea_images[i].kernel));
    }
    char arch[16];
    image_arch(image, arch, sizeof arch);
    json_array_append_new(list, json_pack("{s:s, s:o}", "arch", arch, "kernels", names));
  }
  return list;
}

/* ------------------------------------------------------------------------------------
 * JSON
 * ---------------------------------------------------------------------------------- */

static json_t *isas_json(void) {
  json_t *list = json_array();
  for (ea_isa isa = EA_ISA_PORTABLE; isa <= EA_ISA_AMX; isa++) {
    if (ea_cpu_has_isa(isa)) json_array_append_new(list, json_string(ea_isa_name(isa)));
  }
  return list;
}

static json_t *gpu_json(const gpu *g) {
  if (g->error[0]) return json_pack("{s:i, s:s}", "ordinal", g->ordinal, "error", g->error);
  return json_pack("{s:i, s:s, s:s, s:i, s:I, s:I, s:i}", "ordinal", g->ordinal, "name", g->info.name, "arch",
                   g->info.arch, "multiprocessors", g->info.multiprocessors, "memory_bytes",
                   (json_int_t)g->info.memory_bytes, "smem_limit_bytes", (json_int_t)g->info.smem_limit_bytes,
                   "driver_version", g->info.driver_version);
}

static json_t *info_json(const ea_device_info *cpu, int32_t num_gpus, const char *no_gpu) {
  json_t *gpus = json_array();
  for (int32_t i = 0; i < num_gpus; i++) {
    gpu g;
    describe_gpu(i, &g);
    json_array_append_new(gpus, gpu_json(&g));
  }
  json_t *root = json_pack("{s:s, s:{s:s, s:s, s:o, s:i}, s:o}", "version", ea_version(), "cpu", "name", cpu->name,
                           "isa", cpu->arch, "isas", isas_json(), "threads", cpu->num_threads, "gpus", gpus);
  if (root && num_gpus == 0) json_object_set_new(root, "no_gpu_because", json_string(no_gpu));
  if (root) json_object_set_new(root, "kernels", kernels_json());
  return root;
}

/* ------------------------------------------------------------------------------------
 * Text
 * ---------------------------------------------------------------------------------- */

static void print_gpus(int32_t num_gpus) {
  static const ea_column columns[] = {
      {"GPU", false, 0},    {"name", true, 0},        {"arch", true, 0},
      {"SMs", false, 0},    {"memory GiB", false, 0}, {"shared memory/block bytes", false, 0},
      {"driver", false, 0},
  };
  ea_table *table = ea_table_new(columns, sizeof columns / sizeof columns[0]);
  for (int32_t i = 0; i < num_gpus; i++) {
    gpu g;
    describe_gpu(i, &g);
    char sms[16], memory[16], driver[16];
    snprintf(sms, sizeof sms, "%d", g.info.multiprocessors);
    snprintf(memory, sizeof memory, "%.1f", (double)g.info.memory_bytes / (1 << 30));
    snprintf(driver, sizeof driver, "%d.%d", g.info.driver_version / 1000, g.info.driver_version % 1000 / 10);
    const bool ok = !g.error[0];
    ea_table_add(table, ea_count_text(i).text, ok ? g.info.name : g.error, ok ? g.info.arch : "-", ok ? sms : "-",
                 ok ? memory : "-", ok ? ea_count_text(g.info.smem_limit_bytes).text : "-", ok ? driver : "-");
  }
  fputc('\n', stdout);
  ea_table_print(table, stdout);
}

static void print_kernels(void) {
  if (ea_image_count == 0) {
    printf("GPU kernels  none in this build\n");
    return;
  }
  printf("GPU kernels  ");
  const char *separator = "";
  for (const ea_image *image = next_arch(NULL); image; image = next_arch(image)) {
    char arch[16];
    image_arch(image, arch, sizeof arch);
    printf("%s%s (%d)", separator, arch, count_of_arch(image));
    separator = ", ";
  }
  fputc('\n', stdout);
}

static void print_info(const ea_device_info *cpu, int32_t num_gpus, const char *no_gpu) {
  printf("extattn      %s\n", ea_version());
  printf("processor    %s, %d thread%s\n", cpu->name, cpu->num_threads, cpu->num_threads == 1 ? "" : "s");
  printf("instructions %s", cpu->arch);
  const char *separator = " (also ";
  for (ea_isa isa = EA_ISA_AMX; isa >= EA_ISA_PORTABLE; isa--) {
    if (isa == cpu->isa || !ea_cpu_has_isa(isa)) continue;
    printf("%s%s", separator, ea_isa_name(isa));
    separator = ", ";
  }
  puts(separator[0] == ',' ? ")" : "");
  print_kernels();
  if (num_gpus == 0) {
    printf("GPUs         none: %s\n", no_gpu);
  } else {
    print_gpus(num_gpus);
  }
}

int ea_cmd_info(int argc, char **argv) {
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .doc = "Shows the processor, the GPUs and what this build can use of them.\v"
             "Example:\n  extattn info --json",
  };
  bool json = false;
  if (argp_parse(&argp, argc, argv, 0, NULL, &json) != 0) return EA_EXIT_FAILURE;

  ea_device_info cpu;
  const ea_status status = describe(NULL, &cpu);
  if (status != EA_OK) return ea_exit_failed(status);
  const int32_t num_gpus = ea_cuda_device_count();
  char no_gpu[256] = "";
  if (num_gpus == 0) snprintf(no_gpu, sizeof no_gpu, "%s", ea_last_error());

  if (json) return ea_json_print(info_json(&cpu, num_gpus, no_gpu), stdout) ? EA_EXIT_OK : EA_EXIT_FAILURE;
  print_info(&cpu, num_gpus, no_gpu);
  return EA_EXIT_OK;
}
