/* When a call is captured, and the file that it becomes. */
#include "capture/capture.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/context.h"
#include "common/error.h"
#include "common/grow.h"
#include "cuda/memory.h"

#define VARIABLE_DIRECTORY "EXTATTN_CAPTURE"
#define VARIABLE_WHEN "EXTATTN_CAPTURE_WHEN"

/* One file at a time in a process, as io/new_file.h asks. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

/* ------------------------------------------------------------------------------------
 * Which calls
 * ---------------------------------------------------------------------------------- */

void ea_capture_init(ea_capture *capture) {
  pthread_mutex_init(&capture->lock, NULL);
  atomic_init(&capture->active, false);
}

void ea_capture_free(ea_capture *capture) {
  free(capture->directory);
  pthread_mutex_destroy(&capture->lock);
}

static ea_status check_options(const ea_capture_options *options) {
  struct stat folder;
  if (!options->directory || stat(options->directory, &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    return ea_fail(EA_ERR_INVALID, "directory: found %.200s, allowed a folder that exists",
                   options->directory ? options->directory : "NULL");
  }
  if (options->call < 0) {
    return ea_fail(EA_ERR_INVALID, "call: found %" PRId64 ", allowed 0 (none) or more", options->call);
  }
  if (!isfinite(options->slower_ms) || options->slower_ms < 0) {
    return ea_fail(EA_ERR_INVALID, "slower_ms: found %g, allowed 0 (none) or more", options->slower_ms);
  }
  if (options->max_files < 1) {
    return ea_fail(EA_ERR_INVALID, "max_files: found %d, allowed 1 or more", options->max_files);
  }
  return ea_check_bool("failing", &options->failing);
}

ea_status ea_capture_set(ea_capture *capture, const ea_capture_options *options) {
  ea_capture_options full = EA_CAPTURE_OPTIONS_INIT;
  char *directory = NULL;
  if (options) {
    ea_status status = ea_check_struct_in("options", options, offsetof(ea_capture_options, call), sizeof full);
    if (status) return status;
    ea_struct_in(&full, sizeof full, options, options->struct_size);
    status = check_options(&full);
    if (status) return status;
    directory = strdup(full.directory);
    if (!directory) return ea_fail(EA_ERR_OUT_OF_MEMORY, "directory: no memory for its name");
  }
  pthread_mutex_lock(&capture->lock);
  free(capture->directory);
  capture->directory = directory;
  capture->call = full.call;
  capture->slower_ms = full.slower_ms;
  capture->failing = full.failing;
  capture->files_left = full.max_files;
  capture->num_calls = 0;
  atomic_store(&capture->active, options != NULL);
  pthread_mutex_unlock(&capture->lock);
  return EA_OK;
}

/* The number behind "name=", all of text; false for anything else. (A double holds every count exactly.) */
static bool parse_number(const char *text, const char *name, double max, double *number) {
  const size_t n = strlen(name);
  if (strncmp(text, name, n) != 0 || text[n] != '=') return false;
  char *end;
  *number = strtod(text + n + 1, &end);
  return end != text + n + 1 && !*end && *number > 0 && *number <= max;
}

static bool parse_count(const char *text, const char *name, double max, double *number) {
  return parse_number(text, name, max, number) && *number == floor(*number);
}

/* One condition of EXTATTN_CAPTURE_WHEN. */
static ea_status parse_condition(const char *text, ea_capture_options *options) {
  double number;
  if (strcmp(text, "failing") == 0) {
    options->failing = true;
  } else if (parse_count(text, "call", 1e15, &number)) {
    options->call = (int64_t)number;
  } else if (parse_number(text, "slower", 1e15, &number)) {
    options->slower_ms = number;
  } else if (parse_count(text, "limit", INT32_MAX, &number)) {
    options->max_files = (int32_t)number;
  } else {
    return ea_fail(EA_ERR_INVALID, VARIABLE_WHEN ": found \"%.80s\", allowed call=N, slower=MS, failing, limit=N",
                   text);
  }
  return EA_OK;
}

static ea_status parse_when(const char *when, ea_capture_options *options) {
  char *list = strdup(when), *rest = NULL;
  if (!list) return ea_fail(EA_ERR_OUT_OF_MEMORY, VARIABLE_WHEN ": no memory for it");
  ea_status status = EA_OK;
  for (char *item = strtok_r(list, ",", &rest); item && !status; item = strtok_r(NULL, ",", &rest)) {
    status = parse_condition(item, options);
  }
  free(list);
  return status;
}

ea_status ea_capture_from_environment(ea_capture *capture) {
  const char *directory = getenv(VARIABLE_DIRECTORY), *when = getenv(VARIABLE_WHEN);
  if (!directory || !directory[0]) return EA_OK;
  ea_capture_options options = EA_CAPTURE_OPTIONS_INIT;
  options.directory = directory;
  const ea_status status = when ? parse_when(when, &options) : EA_OK;
  if (status) return status;
  if (!options.call && options.slower_ms == 0) options.failing = true;
  struct stat folder;
  if (stat(directory, &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    return ea_fail(EA_ERR_INVALID, VARIABLE_DIRECTORY ": found %.200s, allowed a folder that exists", directory);
  }
  return ea_capture_set(capture, &options);
}

/* ------------------------------------------------------------------------------------
 * Around a call
 * ---------------------------------------------------------------------------------- */

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Whether the stream's work goes into a graph: nothing may wait then. The driver is there already, as a
 * GPU's context is; what it cannot answer counts as yes. */
static bool in_graph_capture(ea_context *context, void *stream) {
  if (!context->cuda) return false;
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  int (*is_capturing)(void *, int *) = NULL;
  void *symbol = driver ? dlsym(driver, "cuStreamIsCapturing") : NULL;
  memcpy(&is_capturing, &symbol, sizeof symbol);
  int answer = 1;
  if (is_capturing && ea_gpu_enter(context) == EA_OK) {
    if (is_capturing(stream, &answer) != 0) answer = 1;
    ea_gpu_leave(context);
  }
  if (driver) dlclose(driver);
  return answer != 0;
}

void ea_capture_begin(ea_context *context, void *stream, ea_capture_call *call) {
  ea_capture *capture = context->capture;
  pthread_mutex_lock(&capture->lock);
  call->number = ++capture->num_calls;
  call->timed = capture->slower_ms > 0 && capture->files_left > 0;
  pthread_mutex_unlock(&capture->lock);
  if (call->timed && in_graph_capture(context, stream)) call->timed = false;
  if (call->timed && ea_stream_synchronize(context, stream) != EA_OK) call->timed = false;
  call->start_ms = now_ms();
}

/* Why the call is to be written, "" if it is not; takes one of the files that are left. */
static const char *reason_for(ea_capture *capture, const ea_capture_call *call, ea_status status, double elapsed_ms,
                              char *directory) {
  const char *why = "";
  pthread_mutex_lock(&capture->lock);
  if (atomic_load(&capture->active) && capture->files_left > 0) {
    if (status && capture->failing) {
      why = "failing";
    } else if (call->number == capture->call) {
      why = "call";
    } else if (call->timed && elapsed_ms > capture->slower_ms) {
      why = "slow";
    }
    if (why[0]) {
      capture->files_left--;
      snprintf(directory, PATH_MAX, "%s", capture->directory);
    }
  }
  pthread_mutex_unlock(&capture->lock);
  return why;
}

static void write_call(ea_context *context, const ea_problem *resolved, const ea_batch *callers, void *stream,
                       ea_status call_status, const char *path) {
  ea_case c;
  ea_case_init(&c);
  ea_batch batch = EA_BATCH_INIT;
  ea_status status = ea_check_struct("batch", callers, offsetof(ea_batch, num_kv_indices));
  if (!status) {
    ea_struct_in(&batch, sizeof batch, callers, callers->struct_size);
    status = ea_capture_gather(context, resolved, &batch, stream, call_status == EA_OK, &c);
  }
  if (!status) {
    pthread_mutex_lock(&writing);
    status = ea_case_write(path, &c);
    pthread_mutex_unlock(&writing);
  }
  if (status) {
    fprintf(stderr, "extattn: %s was not written: %s\n", path, ea_last_error());
  } else {
    fprintf(stderr, "extattn: captured a call in %s\n", path);
  }
  ea_case_free(&c);
}

void ea_capture_end(ea_context *context, const ea_problem *resolved, const ea_batch *batch, void *stream,
                    ea_status status, const ea_capture_call *call) {
  ea_capture *capture = context->capture;
  char error[512]; /* the call's own text, which the caller is to find */
  snprintf(error, sizeof error, "%s", ea_last_error());
  double elapsed_ms = 0;
  if (call->timed && ea_stream_synchronize(context, stream) == EA_OK) elapsed_ms = now_ms() - call->start_ms;

  char directory[PATH_MAX], path[PATH_MAX + 96];
  const char *why = reason_for(capture, call, status, elapsed_ms, directory);
  if (why[0] && in_graph_capture(context, stream)) {
    fprintf(stderr, "extattn: call %" PRId64 " was not written: it goes into a CUDA graph\n", call->number);
  } else if (why[0]) {
    snprintf(path, sizeof path, "%s/extattn-%ld-%06" PRId64 "-%s.safetensors", directory, (long)getpid(), call->number,
             why);
    write_call(context, resolved, batch, stream, status, path);
  }
  if (status) ea_set_last_error("%s", error);
}
