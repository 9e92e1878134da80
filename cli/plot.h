/* Plots of recorded results, drawn by gnuplot (run as a program) from their JSON. */
#ifndef EA_CLI_PLOT_H
#define EA_CLI_PLOT_H

#include "cli.h"

/* Whether a plot can be drawn into a file of this name: before the work, so that it is not done in vain. Refuses
 * (EA_EXIT_BAD_INPUT) a name that does not end in a format's, and (EA_EXIT_FAILURE) a gnuplot that is not there or
 * cannot. option: what named the file. Fine on NULL. */
int ea_plot_check(const char *option, const char *path);

/* Draws the result of a command into a file in the format of its ending ("-": SVG on standard output), which is
 * complete under its name or not there. Returns the exit code, after a message when it is not 0. */
int ea_plot_write(const json_t *result, const char *path);

#endif
