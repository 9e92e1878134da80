/* Gives every file of the folders on the command line to a fuzz target, where it was built
 * without libFuzzer: what the corpus has found stays found, with any compiler. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

/* Frees with free(); NULL where the file cannot be read. */
static uint8_t *read_file(const char *path, size_t *size) {
  FILE *f = fopen(path, "rb");
  if (!f) return NULL;
  uint8_t *bytes = NULL;
  if (fseek(f, 0, SEEK_END) == 0) {
    *size = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*size ? *size : 1); /* exactly, so that a byte too many read shows */
    if (bytes && fread(bytes, 1, *size, f) != *size) {
      free(bytes);
      bytes = NULL;
    }
  }
  fclose(f);
  return bytes;
}

/* How many files were run, or -1. */
static int run_folder(const char *folder) {
  struct dirent **entries;
  const int n = scandir(folder, &entries, NULL, alphasort);
  int count = n < 0 ? -1 : 0;
  for (int i = 0; i < n; ++i) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
    const int hidden = entries[i]->d_name[0] == '.';
    free(entries[i]);
    if (hidden || count < 0) continue;
    size_t size;
    uint8_t *bytes = read_file(path, &size);
    if (!bytes) {
      fprintf(stderr, "%s: cannot be read\n", path);
      count = -1;
      continue;
    }
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    ++count;
  }
  if (n >= 0) free(entries);
  return count;
}

int main(int argc, char **argv) {
  if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
  for (int i = 1; i < argc; ++i) {
    const int count = run_folder(argv[i]);
    if (count <= 0) {
      fprintf(stderr, "%s: no input was run\n", argv[i]);
      return 1;
    }
    printf("%s: %d inputs\n", argv[i], count);
  }
  return argc > 1 ? 0 : 1;
}
