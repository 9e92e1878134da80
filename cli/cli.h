/* What the commands of `extattn` share: exit codes, option values, the device and shape
 * options, tables and messages. A command is one file with one function ea_cmd_NAME and
 * one line in the table of main.c. */
#ifndef EA_CLI_CLI_H
#define EA_CLI_CLI_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "extattn.h"

/* ------------------------------------------------------------------------------------
 * Commands. argv[0] is "extattn NAME", so that argp's messages name the command.
 * ---------------------------------------------------------------------------------- */

int ea_cmd_bench(int argc, char **argv);
int ea_cmd_check(int argc, char **argv);
int ea_cmd_info(int argc, char **argv);
int ea_cmd_make_case(int argc, char **argv);
int ea_cmd_plan(int argc, char **argv);
int ea_cmd_plot(int argc, char **argv);
int ea_cmd_replay(int argc, char **argv);
int ea_cmd_run(int argc, char **argv);
int ea_cmd_trace(int argc, char **argv);

/* ------------------------------------------------------------------------------------
 * Exit codes and messages
 * ---------------------------------------------------------------------------------- */

typedef enum ea_exit {
  EA_EXIT_OK = 0,
  EA_EXIT_FAILURE = 1,   /* anything that is not one of the others */
  EA_EXIT_BAD_INPUT = 2, /* an option, a file or its contents are refused */
  EA_EXIT_DEVICE = 3     /* the device cannot: none there, out of memory, does not fit, unsupported */
} ea_exit;

/* The exit code that a library call's failure deserves; EA_OK gives EA_EXIT_OK. */
int ea_exit_of(ea_status status);

/* One line on standard error: "extattn NAME: " and the text. */
void ea_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ea_message(ea_last_error()), and the exit code of status. */
int ea_exit_failed(ea_status status);

/* The same of what came of a file: its name stands before what is refused, where it does not already. */
int ea_exit_failed_in(const char *path, ea_status status);

/* ------------------------------------------------------------------------------------
 * Option values. A value that is refused ends the program with EA_EXIT_BAD_INPUT and one
 * line that names the option, what was found and what is allowed.
 * ---------------------------------------------------------------------------------- */

int64_t ea_arg_int(const struct argp_state *state, const char *option, const char *arg, int64_t min, int64_t max);
/* Finite, min < value (or min <= value when inclusive). */
double ea_arg_double(const struct argp_state *state, const char *option, const char *arg, double min, bool inclusive);
/* One of the names given by name_of(values[i]); the rest of the text is the list of them. */
ea_dtype ea_arg_dtype(const struct argp_state *state, const char *option, const char *arg, const ea_dtype *allowed,
                      int num_allowed);
/* "32/8": query and key/value heads; "32" alone is 32/32. */
void ea_arg_heads(const struct argp_state *state, const char *option, const char *arg, int32_t *num_q_heads,
                  int32_t *num_kv_heads);

/* An option where it has no effect. Refused, since who gives it expects one. */
typedef struct ea_idle_option {
  const char *option; /* "arch"; NULL: none */
  bool idle;          /* it was given, and is not looked at */
  const char *found;  /* "beside --device" */
  const char *allowed;
} ea_idle_option;

/* Ends the program with EA_EXIT_BAD_INPUT at the first that is idle: "--arch: found beside --device, allowed
 * without it". */
void ea_refuse_idle(const struct argp_state *state, const ea_idle_option *options, int num_options);

/* Which of --device, --stages, --family, --threads, --isa were there, a bit each. */
typedef enum ea_device_option {
  EA_OPTION_DEVICE = 1,
  EA_OPTION_STAGES = 2,
  EA_OPTION_FAMILY = 4,
  EA_OPTION_THREADS = 8,
  EA_OPTION_ISA = 16,
  EA_OPTIONS_OF_CPU = EA_OPTION_THREADS | EA_OPTION_ISA,
  EA_OPTIONS_OF_DEVICE = 31
} ea_device_option;

/* --device, --stages, --family, --threads, --isa: an argp child; its input is an ea_device_args. */
typedef struct ea_device_args {
  unsigned given; /* of ea_device_option */
  bool automatic; /* the first GPU where there is one, else the CPU */
  ea_context_options context;
  ea_plan_options plan;
} ea_device_args;

#define EA_DEVICE_ARGS_INIT                                                                                            \
  { 0, true, EA_CONTEXT_OPTIONS_INIT, EA_PLAN_OPTIONS_INIT }

extern const struct argp ea_device_argp;

/* The first of some options (bits) that was there, its name; NULL: none. */
const char *ea_device_option_given(const ea_device_args *args, unsigned options);

/* Settles where to run. EA_ERR_INVALID for options of the CPU where that is a GPU. */
ea_status ea_device_settle(ea_device_args *args);

/* Opens the device that the options name, settled or not. */
ea_status ea_device_open(const ea_device_args *args, ea_context **context);

/* --heads, --head-dim, --head-dim-v, --dtype, --cache-dtype, --shared-kv: an argp child; its input is an ea_shape_args.
 */
typedef struct ea_shape_args {
  ea_problem *problem; /* holds the command's defaults */
  const char *given;   /* the name of the last that was there; NULL: none was */
} ea_shape_args;

extern const struct argp ea_shape_argp;

/* For an argp's help_filter: below the options, a list that print writes, and then the text that follows it there. */
char *ea_help_with_list(int key, const char *text, void (*print)(FILE *stream));

/* --json, which means the same for every command that has it: see ea_json_print. */
#define EA_JSON_KEY 'j'

/* Ends the program for `--json FILE`, where FILE looks like a second argument of the command. */
void ea_refuse_json_file(const struct argp_state *state, const char *file);
#define EA_JSON_OPTION(group)                                                                                          \
  { "json", EA_JSON_KEY, NULL, 0, "Print the result as JSON instead of text", group }

/* ------------------------------------------------------------------------------------
 * Output
 * ---------------------------------------------------------------------------------- */

/* Whether a stream is a terminal that wants colour (NO_COLOR and TERM=dumb are honoured). */
bool ea_wants_color(FILE *stream);

/* "8,464,918,967", in a buffer of the caller's. */
typedef struct ea_text {
  char text[32];
} ea_text;
ea_text ea_count_text(int64_t value);

/* A column of a table. Headers carry the units. */
typedef struct ea_column {
  const char *header;
  bool left; /* aligned left; numbers are aligned right */
  int width; /* at least; 0: as wide as what is in it */
} ea_column;

/* A table of text cells, printed with aligned columns. */
typedef struct ea_table ea_table;

/* NULL when out of memory; the functions below then do nothing. */
ea_table *ea_table_new(const ea_column *columns, int num_columns);
/* One row: as many strings as there are columns; they are copied. */
void ea_table_add(ea_table *table, ...);
/* Prints and frees. On a terminal a last column that is too long is wrapped below itself. */
void ea_table_print(ea_table *table, FILE *stream);

/* For tables that are printed as they grow: the header, and one row of strings. The widths
 * are those of the columns, or of their headers. */
void ea_header_print(FILE *stream, const ea_column *columns, int num_columns);
void ea_row_print(FILE *stream, const ea_column *columns, int num_columns, ...);

/* A progress bar on standard error, where that is a terminal. */
typedef struct ea_progress {
  bool enabled, drawn;
  double total;
  double start_ms, drawn_ms;
} ea_progress;

void ea_progress_begin(ea_progress *progress, double total);
/* done of total; text is put behind the bar. */
void ea_progress_update(ea_progress *progress, double done, const char *text);
/* Wipes the bar off, before something else is printed and at the end. */
void ea_progress_clear(ea_progress *progress);

/* Now, as results say it: "2026-01-31T12:00:00Z". */
json_t *ea_json_date(void);

/* Prints a value as JSON and a newline, and drops the reference. False (after a message) when
 * it cannot be written. */
bool ea_json_print(json_t *value, FILE *stream);

/* The same into a file, which is complete under its name or not there ("-": standard output). */
bool ea_json_write(json_t *value, const char *path);

/* What a reader of either will find: numbers have as many digits as are written. NULL: no memory. */
json_t *ea_json_as_written(const json_t *value);

#endif
