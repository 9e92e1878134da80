/* A progress bar on standard error, for a person who waits: drawn only on a terminal, a few
 * times a second, and wiped off before anything else is printed. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"

enum { BAR_WIDTH = 28 };
static const double redraw_ms = 100;

void ea_progress_begin(ea_progress *progress, double total) {
  const char *term = getenv("TERM");
  *progress = (ea_progress){.total = total, .start_ms = ea_clock_ms()};
  progress->enabled = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* "0:42", "12:07", "1:02:33" */
static void format_duration(char *text, size_t n, double seconds) {
  const long s = (long)(seconds + 0.5);
  if (s >= 3600) {
    snprintf(text, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  } else {
    snprintf(text, n, "%ld:%02ld", s / 60, s % 60);
  }
}

void ea_progress_update(ea_progress *progress, double done, const char *text) {
  if (!progress->enabled) return;
  const double now = ea_clock_ms();
  if (progress->drawn && now - progress->drawn_ms < redraw_ms) return;
  progress->drawn = true;
  progress->drawn_ms = now;
  double share = progress->total > 0 ? done / progress->total : 1;
  if (share > 1) share = 1;
  char bar[BAR_WIDTH + 1];
  for (int i = 0; i < BAR_WIDTH; i++) bar[i] = (double)i < share * BAR_WIDTH ? '#' : '.';
  bar[BAR_WIDTH] = 0;
  char left[32] = "";
  if (share > 0.01) {
    char duration[24];
    format_duration(duration, sizeof duration, (now - progress->start_ms) * (1 / share - 1) / 1000);
    snprintf(left, sizeof left, ", %s left", duration);
  }
  fprintf(stderr, "\r\033[K[%s] %3.0f%%  %s%s", bar, 100 * share, text, left);
  fflush(stderr);
}

void ea_progress_clear(ea_progress *progress) {
  if (!progress->drawn) return;
  fputs("\r\033[K", stderr);
  fflush(stderr);
  progress->drawn = false;
}
