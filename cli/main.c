/* The command `extattn`: finds the command that is asked for and hands over to it. Also
 * the one place that makes sure that what was printed has really been written. */
#include <errno.h>
#include <limits.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct command {
  const char *name;
  const char *title; /* argv[0] of the command, for argp's messages */
  const char *summary;
  int (*run)(int argc, char **argv);
} command;

#define COMMAND(name, function, summary)                                                                               \
  { name, "extattn " name, summary, function }

static const command commands[] = {
    COMMAND("run", ea_cmd_run, "Run one batch from a case file"),
    COMMAND("make-case", ea_cmd_make_case, "Write a random batch as a case file"),
    COMMAND("check", ea_cmd_check, "Check random batches against the float64 reference"),
    COMMAND("plan", ea_cmd_plan, "Show the kernel, tiles and pipeline depth for a shape, and why"),
    COMMAND("replay", ea_cmd_replay, "Time a trace of requests as chunked prefill with a prefix cache"),
    COMMAND("plot", ea_cmd_plot, "Draw a recorded result"),
    COMMAND("trace", ea_cmd_trace, "Record a timeline of a Hopper kernel's warps"),
    COMMAND("bench", ea_cmd_bench, "Measure a suite of shapes at every pipeline depth"),
    COMMAND("info", ea_cmd_info, "Show the processor, the GPUs and what this build can use"),
};

enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static const command *find_command(const char *name) {
  for (int i = 0; i < NUM_COMMANDS; i++) {
    if (!strcmp(commands[i].name, name)) return &commands[i];
  }
  return NULL;
}

static int min_int(int a, int b) {
  return a < b ? a : b;
}

/* Letters to insert, delete, replace or swap to turn a into b; INT_MAX for long words. */
static int edit_distance(const char *a, const char *b) {
  enum { MAX_WORD = 32 };
  const int na = (int)strnlen(a, MAX_WORD), nb = (int)strnlen(b, MAX_WORD);
  if (na == MAX_WORD || nb == MAX_WORD) return INT_MAX;
  int d[MAX_WORD][MAX_WORD];
  for (int i = 0; i <= na; i++) {
    for (int j = 0; j <= nb; j++) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      const int replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      d[i][j] = min_int(replaced, 1 + min_int(d[i - 1][j], d[i][j - 1]));
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = min_int(d[i][j], 1 + d[i - 2][j - 2]);
    }
  }
  return d[na][nb];
}

/* The command that a mistyped name most likely meant, or NULL. */
static const command *nearest_command(const char *name) {
  const command *best = NULL;
  int best_distance = 3; /* more than two slips are another word */
  for (int i = 0; i < NUM_COMMANDS; i++) {
    int distance = edit_distance(name, commands[i].name);
    if (strlen(name) >= 2 && !strncmp(name, commands[i].name, strlen(name))) distance = 0;
    if (distance < best_distance) {
      best_distance = distance;
      best = &commands[i];
    }
  }
  return best;
}

static int unknown_command(const char *name) {
  const command *meant = nearest_command(name);
  if (meant) {
    ea_message("'%s' is not a command; did you mean '%s'? 'extattn --help' lists all", name, meant->name);
  } else {
    ea_message("'%s' is not a command; 'extattn --help' lists all", name);
  }
  return EA_EXIT_BAD_INPUT;
}

static void print_commands(FILE *stream) {
  fputs("Commands:\n", stream);
  for (int i = 0; i < NUM_COMMANDS; i++) fprintf(stream, "  %-10s %s\n", commands[i].name, commands[i].summary);
  fputs("  help       Show the help of a command: 'extattn help replay'\n", stream);
}

static char *help_text(int key, const char *text, void *input) {
  (void)input;
  return ea_help_with_list(key, text, print_commands);
}

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "extattn %s\n", ea_version());
}

typedef struct top_level {
  char *name; /* of the command */
  int index;  /* of the name in argv */
} top_level;

static error_t parse_top_level(int key, char *arg, struct argp_state *state) {
  top_level *top = state->input;
  switch (key) {
  case ARGP_KEY_ARG:
    top->name = arg;
    top->index = state->next - 1;
    state->next = state->argc; /* the rest belongs to the command */
    return 0;
  case ARGP_KEY_NO_ARGS:
    argp_state_help(state, stderr, ARGP_HELP_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC | ARGP_HELP_EXIT_ERR);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* Output that could not be written is a failure. */
static void fail_output(int error) {
  ea_message("standard output: %s", error ? strerror(error) : "not everything could be written");
  _exit(EA_EXIT_FAILURE);
}

/* At exit, for what argp prints before it leaves. */
static void close_stdout(void) {
  const bool pending = __fpending(stdout) != 0;
  const bool failed = ferror(stdout) != 0;
  errno = 0;
  const bool closed = fclose(stdout) == 0;
  if (!failed && (closed || (!pending && errno == EBADF))) return; /* started without one, and nothing to say */
  fail_output(errno);
}

/* Commands find their own name in argv[0], as argp, getopt and ea_message print it. */
static int run_command(const command *chosen, int argc, char **argv) {
  argv[0] = (char *)chosen->title; /* never written to */
  program_invocation_name = argv[0];
  const int exit_code = chosen->run(argc, argv);
  /* Now, while errno says why: exit handlers of other libraries flush it, too. */
  if (fflush(stdout) != 0) fail_output(errno);
  return exit_code;
}

static int run_help(const char *name) {
  const command *chosen = find_command(name);
  if (!chosen) return unknown_command(name);
  char option[] = "--help";
  char *argv[] = {NULL, option, NULL};
  return run_command(chosen, 2, argv);
}

int main(int argc, char **argv) {
  static const struct argp argp = {
      .parser = parse_top_level,
      .args_doc = "COMMAND [OPTION...]",
      .doc = "Extend attention: prefill attention with a paged KV cache.\v"
             "Exit status: 0 done; 2 an option, a file or its contents are refused; 3 the device "
             "cannot do it (none there, out of memory, does not fit); 1 anything else.",
      .help_filter = help_text,
  };
  static char name[] = "extattn"; /* read until the very end, by close_stdout */
  char help[] = "--help";
  char *no_arguments[] = {name, NULL};
  if (argc < 1) argv = no_arguments, argc = 1;
  argv[0] = name;
  program_invocation_name = name;
  argp_err_exit_status = EA_EXIT_BAD_INPUT;
  argp_program_version_hook = print_version;
  if (atexit(close_stdout) != 0) return EA_EXIT_FAILURE;

  if (argc >= 2 && !strcmp(argv[1], "help")) {
    if (argc > 2) return run_help(argv[2]);
    argv[1] = help;
  }
  top_level top = {0};
  if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &top) != 0) return EA_EXIT_FAILURE;
  const command *chosen = find_command(top.name);
  if (!chosen) return unknown_command(top.name);
  return run_command(chosen, argc - top.index, argv + top.index);
}
