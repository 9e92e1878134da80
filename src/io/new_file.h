/* Writing a file so that it is complete under its name or not there at all: what is
 * written gets its name when it is safely on disk. */
#ifndef EA_IO_NEW_FILE_H
#define EA_IO_NEW_FILE_H

#include <stddef.h>

#include "extattn.h"

typedef struct ea_new_file ea_new_file;

/*
 * Begins a file that will be called path. Where the file system can, it has no name until
 * then, so that not even SIGKILL leaves something behind. Elsewhere it has a temporary name
 * in the same folder, and interrupts (SIGHUP, SIGINT, SIGQUIT, SIGTERM) are ignored
 * meanwhile, so one such file at a time in a process. An existing device or pipe
 * (/dev/null, /dev/stdout) is written to directly, and "-" is standard output. EA_ERR_DEVICE with
 * the system's reason.
 */
ea_status ea_new_file_open(const char *path, ea_new_file **file);

/* Appends. After a failure (the first one's reason is kept) the rest does nothing, and
 * ea_new_file_commit reports it. */
void ea_new_file_write(ea_new_file *file, const void *data, size_t bytes);

/* Flushes, waits for the disk and gives the file its name, replacing an older one. On
 * failure nothing is left. Frees file either way. */
ea_status ea_new_file_commit(ea_new_file *file);

/* Drops what was written. */
void ea_new_file_discard(ea_new_file *file);

#endif
