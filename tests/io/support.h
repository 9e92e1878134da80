/* What the tests of src/io share: a folder of their own, files of any bytes, and a small
 * case to start from. */
#ifndef EA_TESTS_IO_SUPPORT_H
#define EA_TESTS_IO_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "io/case.h"
#include "io/safetensors.h"

/* cmocka group fixtures: the process works in a fresh empty folder, which is removed at the end. */
int enter_folder(void **state);
int leave_folder(void **state);

/* How many entries the folder has, and removing them all. */
int count_files(void);
void remove_files(void);

void check_same_files(const char *a, const char *b);

void write_bytes(const char *path, const void *bytes, size_t n);
/* Frees with free(). */
unsigned char *read_bytes(const char *path, size_t *n);

/* A safetensors file with this header, whatever it says, and n bytes of data. */
void write_raw(const char *path, const char *header, size_t data_bytes);

/* The tensors and options of a valid case as the format has them, to be spoiled one at a
 * time: B = 2, T = 3, heads 2/1, D = 4, Dv = 2, 6 slots, prefixes of 3 and 0 tokens, a
 * custom mask and sinks. */
#define PARTS_MAX 16
typedef struct parts {
  ea_st_source tensors[PARTS_MAX];
  size_t num_tensors;
  ea_st_entry options[PARTS_MAX];
  size_t num_options;
} parts;

parts valid_parts(void);
ea_st_source *part(parts *p, const char *name);
void drop_part(parts *p, const char *name);
void write_parts(const char *path, const parts *p);

/* A case file that has to be refused, and what has to be said then. */
typedef struct hostile {
  const char *name;
  const char *message; /* begins the one line */
  void (*make)(const char *path);
  bool by_library; /* read, but refused by the plan or the run */
} hostile;

extern const hostile hostiles[];
extern const size_t num_hostiles;

#endif
