/* The files that a command reads and writes, looked at before it runs: an output that would replace an input or another
 * output, or that cannot be written, is found out while nothing has been done yet. */
#ifndef EA_CLI_FILES_H
#define EA_CLI_FILES_H

#include <stdbool.h>

typedef struct ea_file_use {
  const char *what; /* as messages call it: "TRACE", "--output" */
  const char *path; /* NULL: not asked for; "-": standard input or output */
  bool written;
} ea_file_use;

#define EA_FILE_READ(what, path)                                                                                       \
  { what, path, false }
#define EA_FILE_WRITTEN(what, path)                                                                                    \
  { what, path, true }

/* Refuses (EA_EXIT_BAD_INPUT) an output that is, by name, by a link or by a hard link, an input or another output; and
 * (EA_EXIT_FAILURE) one that cannot be written. EA_EXIT_OK else. Nothing is made or changed. */
int ea_files_check(const ea_file_use *files, int num_files);

/* Refuses (EA_EXIT_FAILURE) what is no folder that files can be made in. */
int ea_folder_check(const char *option, const char *path);

/* "-", which means standard input or output. NULL is not. */
bool ea_is_dash(const char *path);

#endif
