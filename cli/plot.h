/* Plots of recorded results, drawn by gnuplot (run as a program) from their JSON. */
#ifndef EA_CLI_PLOT_H
#define EA_CLI_PLOT_H

#include "cli.h"

/* Whether gnuplot can be found in PATH. */
bool ea_plot_available(void);

/* Draws the result of a command into an SVG file ("-": standard output), which is complete under
 * its name or not there. Returns the exit code, after a message when it is not 0. */
int ea_plot_write(const json_t *result, const char *svg_path);

#endif
