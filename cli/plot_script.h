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

/* How high a plot is that is EA_PLOT_WIDTH wide. What an image's points are to a screen's, the drawing decides. */
enum { EA_PLOT_WIDTH = 960, EA_PLOT_HEIGHT = 640 };

typedef enum ea_plot_format { EA_PLOT_SVG, EA_PLOT_PNG, EA_PLOT_PDF } ea_plot_format;

/* gnuplot's terminal for a plot of this height. */
void ea_plot_terminal(FILE *script, ea_plot_format format, double height);

/* The look that all plots have, a heading of two lines (plain text) and below it, in a row or two, the key. */
void ea_plot_style(FILE *script, const char *title, const char *subtitle);

/* Which part of a timeline. */
typedef struct ea_plot_view {
  const char *given; /* the name of an option that says so; NULL: none does */
  int32_t block;
  double from_us; /* negative: from the middle */
  double length_us;
} ea_plot_view;

#define EA_PLOT_VIEW_INIT                                                                                              \
  { NULL, 0, -1, 20 }

/* The drawings. False, with the reason as the last error, when the result is not one. */
bool ea_plot_replay_script(const json_t *result, ea_plot_format format, FILE *script);
bool ea_plot_bench_script(const json_t *result, ea_plot_format format, FILE *script);
bool ea_plot_timeline_script(const json_t *result, const ea_plot_view *view, ea_plot_format format, FILE *script);

#endif
