/* What the drawings of plot_replay.c, plot_bench.c and plot_timeline.c share: reading results back from JSON
 * and the look of a plot. A drawing is a gnuplot script with its data inside. */
#ifndef EA_CLI_PLOT_SCRIPT_H
#define EA_CLI_PLOT_SCRIPT_H

#include "cli.h"

/* A number that must be there: above zero where positive says so, else zero or more. False,
 * with the reason as the last error, when it is not. */
bool ea_plot_number(const json_t *object, const char *key, bool positive, double *value);

/* A text, or "?" when it is not there. Never NULL. */
const char *ea_plot_text(const json_t *object, const char *key);

/* "AMD EPYC 7763 (avx2, 2 threads)", from what results call "device". */
void ea_plot_device_text(const json_t *device, char *text, size_t n);

/* A string in gnuplot's single quotes, where nothing but the quote has a meaning: in double quotes, a text from a file
 * could run commands. */
void ea_plot_quoted(FILE *script, const char *text);

/* The look that all plots have, and a heading of two lines (plain text). */
void ea_plot_style(FILE *script, const char *title, const char *subtitle);

/* Which part of a timeline. */
typedef struct ea_plot_view {
  int32_t block;
  double from_us; /* negative: from the middle */
  double length_us;
} ea_plot_view;

#define EA_PLOT_VIEW_INIT                                                                                              \
  { 0, -1, 20 }

/* The drawings. False, with the reason as the last error, when the result is not one. */
bool ea_plot_replay_script(const json_t *result, FILE *script);
bool ea_plot_bench_script(const json_t *result, FILE *script);
bool ea_plot_timeline_script(const json_t *result, const ea_plot_view *view, FILE *script);

#endif
