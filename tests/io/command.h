/* The built command, run from a test: its exit code and what it printed. */
#ifndef EA_TESTS_IO_COMMAND_H
#define EA_TESTS_IO_COMMAND_H

#define MAX_TEXT 8192

/* What the last command did. */
typedef struct ran_command {
  int code; /* exit code; 128 + signal where one ended it */
  char out[MAX_TEXT];
  char err[MAX_TEXT];
} ran_command;

extern ran_command ran;

/* Runs `extattn` with the words of a text. */
void extattn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with files that cannot become larger than a few KiB. */
void extattn_on_a_full_disk(const char *arguments);

/* The last command did it: an exit code of 0 and nothing to complain about. */
void succeeded(const char *what);

/* The last command refused: the code, and one line that begins with the message. */
void refused(const char *what, int code, const char *message);

#endif
