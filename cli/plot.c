/* extattn plot: draws a recorded result again. The drawing is gnuplot's, which is given a
 * script with the data in it and answers with an SVG file. */
#include "plot.h"

#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/error.h"
#include "io/new_file.h"
#include "plot_script.h"

/* ------------------------------------------------------------------------------------
 * gnuplot
 * ---------------------------------------------------------------------------------- */

bool ea_plot_available(void) {
  const char *path = getenv("PATH");
  char *folders = path ? strdup(path) : NULL, *rest = folders, *folder;
  bool found = false;
  while (!found && (folder = strsep(&rest, ":"))) {
    char *program = NULL;
    if (asprintf(&program, "%s/gnuplot", *folder ? folder : ".") < 0) break;
    found = access(program, X_OK) == 0;
    free(program);
  }
  free(folders);
  return found;
}

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

static ea_status copy_out(FILE *output, const char *svg_path) {
  const bool to_stdout = !strcmp(svg_path, "-");
  ea_new_file *file = NULL;
  ea_status status = to_stdout ? EA_OK : ea_new_file_open(svg_path, &file);
  if (status != EA_OK) return status;
  char part[1 << 14];
  size_t n;
  rewind(output);
  while ((n = fread(part, 1, sizeof part, output)) > 0) {
    if (to_stdout) {
      fwrite(part, 1, n, stdout); /* checked when the program ends */
    } else {
      ea_new_file_write(file, part, n);
    }
  }
  return to_stdout ? EA_OK : ea_new_file_commit(file);
}

/* ------------------------------------------------------------------------------------
 * From a result to a file
 * ---------------------------------------------------------------------------------- */

static ea_status write_script(const json_t *result, const char *name, const ea_plot_view *view, FILE *script) {
  const char *command = ea_plot_text(result, "command");
  bool ok = false;
  if (!strcmp(command, "replay")) {
    ok = ea_plot_replay_script(result, script);
  } else if (!strcmp(command, "bench")) {
    ok = ea_plot_bench_script(result, script);
  } else if (!strcmp(command, "trace")) {
    ok = ea_plot_timeline_script(result, view, script);
  } else {
    (void)ea_fail(EA_ERR_INVALID, "command: found '%s', allowed replay, bench, trace", command);
  }
  if (!ok) {
    char reason[256];
    snprintf(reason, sizeof reason, "%s", ea_last_error());
    return ea_fail(EA_ERR_INVALID, "%s: %s", name, reason);
  }
  if (fflush(script) != 0) return ea_fail(EA_ERR_DEVICE, "temporary file: %s", strerror(errno));
  rewind(script); /* moves the descriptor, too, which is where gnuplot starts to read */
  return EA_OK;
}

static ea_status draw(const json_t *result, const char *name, const ea_plot_view *view, const char *svg_path) {
  FILE *script = tmpfile(), *output = tmpfile(), *messages = tmpfile();
  ea_status status = EA_OK;
  if (!script || !output || !messages) status = ea_fail(EA_ERR_DEVICE, "temporary file: %s", strerror(errno));
  if (status == EA_OK) status = write_script(result, name, view, script);
  if (status == EA_OK) status = run_gnuplot(script, output, messages);
  if (status == EA_OK) status = copy_out(output, svg_path);
  if (script) fclose(script);
  if (output) fclose(output);
  if (messages) fclose(messages);
  return status;
}

int ea_plot_write(const json_t *result, const char *svg_path) {
  const ea_plot_view view = EA_PLOT_VIEW_INIT;
  json_t *written = ea_json_as_written(result); /* the file's plot is to be the same */
  const ea_status status = written ? draw(written, "result", &view, svg_path)
                                   : ea_fail(EA_ERR_OUT_OF_MEMORY, "result: no memory for its JSON");
  json_decref(written);
  return status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
}

/* ------------------------------------------------------------------------------------
 * The command
 * ---------------------------------------------------------------------------------- */

typedef struct plot_args {
  const char *json_path;
  const char *svg_path;
  ea_plot_view view;
} plot_args;

enum { KEY_BLOCK = 0x700, KEY_FROM, KEY_LENGTH };

static const struct argp_option options[] = {
    {"output", 'o', "FILE.svg", 0, "Where to write the plot (-: standard output)", 0},
    {"block", KEY_BLOCK, "N", 0, "Of a timeline: block N (0)", 0},
    {"from", KEY_FROM, "US", 0, "Of a timeline: from this microsecond on (from its middle)", 0},
    {"length", KEY_LENGTH, "US", 0, "Of a timeline: so many microseconds (20)", 0},
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state) {
  plot_args *args = state->input;
  switch (key) {
  case 'o':
    args->svg_path = arg;
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
    if (!args->svg_path) argp_error(state, "-o FILE.svg is missing");
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

int ea_cmd_plot(int argc, char **argv) {
  static const struct argp argp = {
      .options = options,
      .parser = parse_option,
      .args_doc = "RESULT.json",
      .doc = "Draws a result that was recorded with --json: of 'extattn replay', batch time against visible pairs; "
             "of 'extattn bench', the speed of each shape at each depth. Of 'extattn trace', its timeline: what the "
             "warps of one block did. Needs gnuplot.\v"
             "Example:\n  extattn plot chat.json -o chat.svg",
  };
  plot_args args = {.view = EA_PLOT_VIEW_INIT};
  if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0) return EA_EXIT_FAILURE;

  json_error_t error;
  const bool from_stdin = !strcmp(args.json_path, "-");
  json_t *result = from_stdin ? json_loadf(stdin, JSON_REJECT_DUPLICATES, &error)
                              : json_load_file(args.json_path, JSON_REJECT_DUPLICATES, &error);
  if (!result) {
    ea_message("%s: line %d: %s", args.json_path, error.line, error.text);
    return EA_EXIT_BAD_INPUT;
  }
  const ea_status status = draw(result, args.json_path, &args.view, args.svg_path);
  json_decref(result);
  return status == EA_OK ? EA_EXIT_OK : ea_exit_failed(status);
}
