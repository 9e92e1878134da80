/* extattn plot: draws a recorded result again. The drawing is gnuplot's, which is given a
 * script with the data in it and answers with an image. */
#include "plot.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/error.h"
#include "files.h"
#include "io/new_file.h"
#include "plot_script.h"

/* ------------------------------------------------------------------------------------
 * gnuplot
 * ---------------------------------------------------------------------------------- */

/* Runs gnuplot on a script with its output and messages going into files. */
static ea_status run_gnuplot(FILE *script, FILE *output, FILE *messages) {
  static char name[] = "gnuplot", no_settings[] = "--default-settings", from_stdin[] = "-";
  char *argv[] = {name, no_settings, from_stdin, NULL};
  posix_spawn_file_actions_t actions;
  int error = posix_spawn_file_actions_init(&actions);
  if (error) return ea_fail(EA_ERR_OUT_OF_MEMORY, "gnuplot: %s", strerror(error));
  posix_spawn_file_actions_adddup2(&actions, fileno(script), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(output), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(messages), STDERR_FILENO);
  pid_t child;
  error = posix_spawnp(&child, name, &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return ea_fail(EA_ERR_DEVICE, "gnuplot is not installed, so there is no plot");
  if (error) return ea_fail(EA_ERR_DEVICE, "gnuplot: %s", strerror(error));

  int exit_status = 0;
  while (waitpid(child, &exit_status, 0) < 0) {
    if (errno != EINTR) return ea_fail(EA_ERR_DEVICE, "gnuplot: %s", strerror(errno));
  }
  if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0) return EA_OK;
  char line[256] = "no reason given";
  rewind(messages);
  while (fgets(line, sizeof line, messages) && line[strspn(line, " \n")] == 0) continue; /* blank ones come first */
  line[strcspn(line, "\n")] = 0;
  return ea_fail(EA_ERR_DEVICE, "gnuplot failed: %s", line);
}

static ea_status copy_out(FILE *output, const char *path) {
  ea_new_file *file = NULL;
  const ea_status status = ea_new_file_open(path, &file);
  if (status != EA_OK) return status;
  char part[1 << 14];
  size_t n;
  rewind(output);
  while ((n = fread(part, 1, sizeof part, output)) > 0) ea_new_file_write(file, part, n);
  return ea_new_file_commit(file);
}

static ea_status run_script(FILE *script, FILE *output) {
  FILE *messages = fflush(script) == 0 ? tmpfile() : NULL;
  if (!messages) return ea_fail(EA_ERR_DEVICE, "temporary file: %s", strerror(errno));
  rewind(script); /* moves the descriptor, too, which is where gnuplot starts to read */
  const ea_status status = run_gnuplot(script, output, messages);
  fclose(messages);
  return status;
}

/* ------------------------------------------------------------------------------------
 * The formats
 * ---------------------------------------------------------------------------------- */

static const struct {
  const char *ending;
  ea_plot_format format;
} formats[] = {{".svg", EA_PLOT_SVG}, {".png", EA_PLOT_PNG}, {".pdf", EA_PLOT_PDF}};

static bool format_of(const char *path, ea_plot_format *format) {
  const char *dot = strrchr(path, '.');
  *format = EA_PLOT_SVG;
  if (ea_is_dash(path)) return true;
  for (size_t i = 0; dot && i < sizeof formats / sizeof formats[0]; i++) {
    *format = formats[i].format;
    if (!strcasecmp(dot, formats[i].ending)) return true;
  }
  return false;
}

/* A script that draws nothing. */
static ea_status try_terminal(ea_plot_format format) {
  FILE *script = tmpfile(), *output = tmpfile();
  ea_status status = EA_OK;
  if (script && output) {
    ea_plot_terminal(script, format, EA_PLOT_HEIGHT);
    status = run_script(script, output);
  } else {
    status = ea_fail(EA_ERR_DEVICE, "temporary file: %s", strerror(errno));
  }
  if (script) fclose(script);
  if (output) fclose(output);
  return status;
}

int ea_plot_check(const char *option, const char *path) {
  ea_plot_format format;
  if (!path) return EA_EXIT_OK;
  if (!format_of(path, &format)) {
    ea_message("%s: found '%s', allowed a name ending in .svg, .png or .pdf", option, path);
    return EA_EXIT_BAD_INPUT;
  }
  const ea_status status = try_terminal(format);
  if (status == EA_OK) return EA_EXIT_OK;
  ea_message("%s: %s", option, ea_last_error());
  return EA_EXIT_FAILURE;
}

/* ------------------------------------------------------------------------------------
 * From a result to a file
 * ---------------------------------------------------------------------------------- */

static ea_status write_script(const json_t *result, const char *name, const ea_plot_view *view, ea_plot_format format,
                              FILE *script) {
  const char *command = ea_plot_text(result, "command");
  const bool timeline = !strcmp(command, "trace");
  bool ok = false;
  if (view->given && !timeline) {
    return ea_fail(EA_ERR_INVALID, "--%s: found for a result of '%s', allowed for one of 'trace'", view->given,
                   command);
  }
  if (!strcmp(command, "replay")) {
    ok = ea_plot_replay_script(result, format, script);
  } else if (!strcmp(command, "bench")) {
    ok = ea_plot_bench_script(result, format, script);
  } else if (timeline) {
    ok = ea_plot_timeline_script(result, view, format, script);
  } else {
    (void)ea_fail(EA_ERR_INVALID, "command: found '%s', allowed replay, bench, trace", command);
  }
  if (!ok) {
    char reason[256];
    snprintf(reason, sizeof reason, "%s", ea_last_error());
    return ea_fail(EA_ERR_INVALID, "%s: %s", name, reason);
  }
  return EA_OK;
}

static ea_status draw(const json_t *result, const char *name, const ea_plot_view *view, const char *path) {
  FILE *script = tmpfile(), *output = tmpfile();
  ea_plot_format format;
  ea_status status = EA_OK;
  (void)format_of(path, &format); /* ea_plot_check has refused the others */
  if (!script || !output) status = ea_fail(EA_ERR_DEVICE, "temporary file: %s", strerror(errno));
  if (status == EA_OK) status = write_script(result, name, view, format, script);
  if (status == EA_OK) status = run_script(script, output);
  if (status == EA_OK) status = copy_out(output, path);
  if (script) fclose(script);
  if (output) fclose(output);
  return status;
}

int ea_plot_write(const json_t *result, const char *path) {
  const ea_plot_view view = EA_PLOT_VIEW_INIT;
  json_t *written = ea_json_as_written(result); /* the file's plot is to be the same */
  const ea_status status =
      written ? draw(written, "result", &view, path) : ea_fail(EA_ERR_OUT_OF_MEMORY, "result: no memory for its JSON");
  json_decref(written);
  return status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

typedef struct plot_args {
  const char *json_path;
  const char *out_path;
  ea_plot_view view;
} plot_args;

enum { KEY_BLOCK = 0x700, KEY_FROM, KEY_LENGTH };

static const struct argp_option options[] = {
    {"output", 'o', "FILE.svg|.png|.pdf", 0, "Where to write the plot (-: an SVG on standard output)", 0},
    {"block", KEY_BLOCK, "N", 0, "Of a timeline: block N (0)", 0},
    {"from", KEY_FROM, "US", 0, "Of a timeline: from this microsecond on (from its middle)", 0},
    {"length", KEY_LENGTH, "US", 0, "Of a timeline: so many microseconds (20)", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  plot_args *args = state->input;
  for (const struct argp_option *o = options; o->name; o++) {
    if (o->key == key && key >= KEY_BLOCK) args->view.given = o->name;
  }
  switch (key) {
  case 'o':
    args->out_path = arg;
    return 0;
  case KEY_BLOCK:
    args->view.block = (int32_t)ea_arg_int(state, "--block", arg, 0, INT32_MAX);
    return 0;
  case KEY_FROM:
    args->view.from_us = ea_arg_double(state, "--from", arg, 0, true);
    return 0;
  case KEY_LENGTH:
    args->view.length_us = ea_arg_double(state, "--length", arg, 0, false);
    return 0;
  case ARGP_KEY_ARG:
    if (args->json_path) argp_error(state, "found a second result '%s', allowed one", arg);
    args->json_path = arg;
    return 0;
  case ARGP_KEY_END:
    if (!args->json_path) argp_error(state, "RESULT.json is missing");
    if (!args->out_path) argp_error(state, "-o FILE.svg is missing");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

static const char *name_of(const char *path) {
  return ea_is_dash(path) ? "standard input" : path;
}

/* NULL, with the reason as the last error, when it is not one. */
static json_t *read_result(const char *path) {
  const bool from_stdin = ea_is_dash(path);
  const char *name = name_of(path);
  json_error_t error;
  errno = 0;
  FILE *file = from_stdin ? stdin : fopen(path, "r");
  json_t *result = file ? json_loadf(file, JSON_REJECT_DUPLICATES, &error) : NULL;
  if (!file || (!result && ferror(file))) {
    (void)ea_fail(EA_ERR_INVALID, "%s: cannot read: %s", name, strerror(errno));
  } else if (!result) {
    (void)ea_fail(EA_ERR_INVALID, "%s: line %d: %s", name, error.line, error.text);
  }
  if (file && !from_stdin) fclose(file);
  return result;
}

static int check_files(const plot_args *args) {
  const ea_file_use files[] = {EA_FILE_READ("RESULT", args->json_path), EA_FILE_WRITTEN("--output", args->out_path)};
  const int code = ea_files_check(files, sizeof files / sizeof files[0]);
  return code == EA_EXIT_OK ? ea_plot_check("--output", args->out_path) : code;
}

int ea_cmd_plot(int argc, char **argv) {
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .args_doc = "RESULT.json",
      .doc = "Draws a result that was recorded with --json: of 'extattn replay', batch time against visible pairs; "
             "of 'extattn bench', the speed of each shape at each depth. Of 'extattn trace', its timeline: what the "
             "warps of one block did. Needs gnuplot.\v"
             "Examples:\n"
             "  extattn bench cpu --shrink 64 -o cpu.json\n"
             "  extattn plot cpu.json -o cpu.svg",
  };
  plot_args args = {.view = EA_PLOT_VIEW_INIT};
  if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0) return EA_EXIT_FAILURE;

  const int checked = check_files(&args);
  if (checked != EA_EXIT_OK) return checked;
  json_t *result = read_result(args.json_path);
  if (!result) return ea_exit_failed(EA_ERR_INVALID);
  const ea_status status = draw(result, name_of(args.json_path), &args.view, args.out_path);
  json_decref(result);
  return status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
}
