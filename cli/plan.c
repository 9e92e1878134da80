/* extattn plan: which kernel would run a shape on which architecture, with which tiles and
 * pipeline depth, and why. Needs no GPU. */
#include <string.h>

#include "cli.h"
#include "plan/planner.h"

typedef struct plan_args {
  ea_problem problem;
  ea_shape_args shape_args;
  ea_device_args device;
  bool arch_given;
  const char *arch; /* NULL: all */
  bool json;
} plan_args;

/* One line of the answer. */
typedef struct plan_row {
  char target[32]; /* "sm_90", or the device's name */
  ea_status status;
  ea_plan_info info;
  char error[512];
} plan_row;

enum { KEY_ARCH = 'a', KEY_WINDOW = 0x1000, KEY_CAP };

static const struct argp_option options[] = {
    {"arch", KEY_ARCH, "all|sm_80|sm_86|sm_89|sm_90|sm_100|sm_120", 0, "Architecture (all)", 0},
    EA_JSON_OPTION(0),
    {"window", KEY_WINDOW, "W", 0, "Sliding window: W tokens to the left", 0},
    {"cap", KEY_CAP, "C", 0, "Scores are capped: C * tanh(score / C)", 0},
    {0},
};

static void refuse_idle(const struct argp_state *state, const plan_args *args) {
  const bool here = args->device.given & EA_OPTION_DEVICE;
  const ea_idle_option idle[] = {
      {"arch", args->arch_given && here, "beside --device", "without it"},
      {ea_device_option_given(&args->device, EA_OPTIONS_OF_CPU), !here, "without --device cpu", "with it"},
  };
  ea_refuse_idle(state, idle, sizeof idle / sizeof idle[0]);
}

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  plan_args *args = state->input;
  switch (key) {
  case ARGP_KEY_INIT:
    args->shape_args.problem = &args->problem;
    state->child_inputs[0] = &args->shape_args;
    state->child_inputs[1] = &args->device;
    return 0;
  case KEY_ARCH:
    args->arch_given = true;
    args->arch = strcmp(arg, "all") != 0 ? arg : NULL;
    return 0;
  case EA_JSON_KEY:
    args->json = true;
    return 0;
  case KEY_WINDOW:
    args->problem.window_left = (int32_t)ea_arg_int(state, "--window", arg, 1, INT32_MAX);
    return 0;
  case KEY_CAP:
    args->problem.logit_cap = ea_arg_double(state, "--cap", arg, 0, false);
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "unexpected argument '%s'", arg);
    return EINVAL;
  case ARGP_KEY_END:
    if (args->problem.head_dim == 0) argp_error(state, "--head-dim is missing");
    refuse_idle(state, args);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {
    {&ea_shape_argp, 0, NULL, 0},
    {&ea_device_argp, 0, NULL, 0},
    {0},
};

/* ------------------------------------------------------------------------------------
 * The answers
 * ---------------------------------------------------------------------------------- */

static ea_status plan_on_device(const plan_args *args, plan_row *row) {
  ea_context *context = NULL;
  ea_plan *plan = NULL;
  ea_device_info device = EA_DEVICE_INFO_INIT;
  ea_status status = ea_device_open(&args->device, &context);
  if (status == EA_OK) status = ea_context_info(context, &device);
  if (status == EA_OK) {
    snprintf(row->target, sizeof row->target, "%s", device.arch);
    status = ea_plan_create(context, &args->problem, &args->device.plan, &plan);
  }
  if (status == EA_OK) status = ea_plan_get_info(plan, &row->info);
  ea_plan_destroy(plan);
  ea_context_destroy(context);
  return status;
}

static void plan_row_of(const plan_args *args, const char *arch, plan_row *row) {
  *row = (plan_row){.info = EA_PLAN_INFO_INIT};
  snprintf(row->target, sizeof row->target, "%s", arch ? arch : "device");
  row->status =
      arch ? ea_plan_for_arch(arch, &args->problem, &args->device.plan, &row->info) : plan_on_device(args, row);
  if (row->status != EA_OK) snprintf(row->error, sizeof row->error, "%s", ea_last_error());
}

enum { MAX_ROWS = 16 };

/* One row for the device or the architecture that was named, or one for each that is known. */
static int plan_rows(const plan_args *args, plan_row rows[MAX_ROWS]) {
  const bool here = args->device.given & EA_OPTION_DEVICE;
  if (here || args->arch) {
    plan_row_of(args, here ? NULL : args->arch, &rows[0]);
    return 1;
  }
  int32_t count = 0;
  const ea_arch *archs = ea_known_archs(&count);
  if (count > MAX_ROWS) count = MAX_ROWS;
  for (int32_t i = 0; i < count; i++) plan_row_of(args, archs[i].name, &rows[i]);
  return count;
}

/* ------------------------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------------------- */

static json_t *row_json(const plan_row *row) {
  if (row->status != EA_OK) {
    return json_pack("{s:s, s:s, s:s}", "arch", row->target, "status", ea_status_name(row->status), "error",
                     row->error);
  }
  const ea_plan_info *info = &row->info;
  json_t *json =
      json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:s}", "arch", row->target, "status",
                ea_status_name(row->status), "family", ea_family_name(info->family), "kernel", info->kernel, "tile_m",
                info->tile_m, "tile_n", info->tile_n, "stages", info->stages, "max_stages", info->max_stages,
                "smem_bytes", (json_int_t)info->smem_bytes, "smem_limit_bytes", (json_int_t)info->smem_limit_bytes,
                "threads", info->threads, "reason", info->reason);
  if (json && info->registers > 0) json_object_set_new(json, "registers", json_integer(info->registers));
  return json;
}

static json_t *rows_json(const plan_row *rows, int count) {
  json_t *list = json_array();
  for (int i = 0; i < count; i++) json_array_append_new(list, row_json(&rows[i]));
  return list;
}

static void add_row(ea_table *table, const plan_row *row) {
  if (row->status != EA_OK) {
    ea_table_add(table, row->target, "-", "-", "-", "-", "-", "-", "-");
    return;
  }
  const ea_plan_info *info = &row->info;
  char stages[32];
  snprintf(stages, sizeof stages, info->max_stages > 0 ? "%d of %d" : "-", info->stages, info->max_stages);
  ea_table_add(table, row->target, info->kernel, ea_count_text(info->tile_m).text, ea_count_text(info->tile_n).text,
               stages, ea_count_text(info->smem_bytes).text, ea_count_text(info->smem_limit_bytes).text,
               ea_count_text(info->threads).text);
}

static void print_rows(const plan_row *rows, int count) {
  static const ea_column columns[] = {
      /* 80 characters for the longest name of a kernel */
      {"arch", true, 0},    {"kernel", true, 0}, {"rows", false, 0},    {"keys", false, 0},
      {"stages", false, 0}, {"bytes", false, 0}, {"allowed", false, 0}, {"threads", false, 0},
  };
  static const ea_column reason_columns[] = {{"arch", true, 0}, {"reason", true, 0}};
  ea_table *table = ea_table_new(columns, sizeof columns / sizeof columns[0]);
  for (int i = 0; i < count; i++) add_row(table, &rows[i]);
  ea_table_print(table, stdout);
  putchar('\n');
  table = ea_table_new(reason_columns, 2); /* sentences: under the numbers, not beside them */
  for (int i = 0; i < count; i++) {
    ea_table_add(table, rows[i].target, rows[i].status == EA_OK ? rows[i].info.reason : rows[i].error);
  }
  ea_table_print(table, stdout);
}

/* Says on standard error what failed, as far as no table says it; returns the exit code. */
static int report_failures(const plan_row *rows, int count, bool in_table) {
  int exit_code = EA_EXIT_OK, num_failed = 0;
  for (int i = 0; i < count; i++) {
    if (rows[i].status == EA_OK) continue;
    num_failed++;
    if (exit_code == EA_EXIT_OK) exit_code = ea_exit_of(rows[i].status);
    if (in_table) continue;
    if (count == 1 || exit_code == EA_EXIT_BAD_INPUT) { /* a mistake in the question is the same for all */
      ea_message("%s", rows[i].error);
      break;
    }
    ea_message("%s: %s", rows[i].target, rows[i].error);
  }
  if (in_table && num_failed > 0) {
    fflush(stdout); /* the table comes first */
    ea_message("%d of %d architectures cannot do it", num_failed, count);
  }
  return exit_code;
}

static bool any_ok(const plan_row *rows, int count) {
  for (int i = 0; i < count; i++) {
    if (rows[i].status == EA_OK) return true;
  }
  return false;
}

int ea_cmd_plan(int argc, char **argv) {
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .children = children,
      .doc = "Shows which kernel would run a shape on each GPU architecture: its tiles of query rows and keys, its "
             "pipeline depth in stages, of how many at most, the bytes of shared memory that a block needs and may "
             "have, and why. "
             "With --device, the plan for a device that is here. Heads are 32/8 where --heads does not say otherwise.\v"
             "Examples:\n"
             "  extattn plan --head-dim 128 --heads 32/8\n"
             "  extattn plan -D 576 --head-dim-v 512 --shared-kv -H 128/1 --arch sm_90",
  };
  plan_args args = {.problem = EA_PROBLEM_INIT, .device = EA_DEVICE_ARGS_INIT};
  args.problem.num_q_heads = 32;
  args.problem.num_kv_heads = 8;
  if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0) return EA_EXIT_FAILURE;

  plan_row rows[MAX_ROWS];
  const int count = plan_rows(&args, rows);
  const bool table = !args.json && any_ok(rows, count);
  if (table) print_rows(rows, count);
  if (args.json && !ea_json_print(rows_json(rows, count), stdout)) return EA_EXIT_FAILURE;
  return report_failures(rows, count, table);
}
