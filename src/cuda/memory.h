/* Memory, streams, events and graphs of a context's device, for the command, the tests and
 * the benchmarks. The library itself never allocates on a device: none of this is public.
 *
 * On a CPU context the memory functions work on host memory and a stream is NULL, so that
 * one piece of code prepares and reads batches anywhere; streams, events and graphs are
 * EA_ERR_UNSUPPORTED there. */
#ifndef EA_CUDA_MEMORY_H
#define EA_CUDA_MEMORY_H

#include <stddef.h>

#include "extattn.h"

/* 256-byte aligned; bytes may be 0. Contents are undefined. */
ea_status ea_mem_alloc(ea_context *context, size_t bytes, void **ptr);
/* NULL is fine. Waits for the device's work. */
void ea_mem_free(ea_context *context, void *ptr);

/* Host to device and back; in order with the stream's work and done on return. */
ea_status ea_mem_upload(ea_context *context, void *to, const void *from, size_t bytes, void *stream);
ea_status ea_mem_download(ea_context *context, void *to, const void *from, size_t bytes, void *stream);
/* Device to device; enqueued. */
ea_status ea_mem_copy(ea_context *context, void *to, const void *from, size_t bytes, void *stream);
/* Every byte becomes value; enqueued. */
ea_status ea_mem_set(ea_context *context, void *to, unsigned char value, size_t bytes, void *stream);
/* What the device has left. On a CPU: EA_ERR_UNSUPPORTED. */
ea_status ea_mem_available(ea_context *context, size_t *bytes);

/* Waits for the stream's work (NULL: the default stream's) and reports what went wrong in it. */
ea_status ea_stream_synchronize(ea_context *context, void *stream);
/* A stream that does not wait for the default stream. */
ea_status ea_stream_create(ea_context *context, void **stream);
void ea_stream_destroy(ea_context *context, void *stream);

/* Makes the device's own driver context current on this thread, for a library that takes the
 * current one (cuBLAS), until it is left again. */
ea_status ea_gpu_enter(ea_context *context);
void ea_gpu_leave(ea_context *context);

typedef struct ea_event_s *ea_event;

ea_status ea_event_create(ea_context *context, ea_event *event);
void ea_event_destroy(ea_context *context, ea_event event);
ea_status ea_event_record(ea_context *context, ea_event event, void *stream);
/* Waits for last; the time between the two. */
ea_status ea_event_elapsed_ms(ea_context *context, ea_event first, ea_event last, float *elapsed_ms);

typedef struct ea_graph_s *ea_graph;

/* What is enqueued on stream (not NULL) between begin and end goes into the graph instead;
 * end makes it ready to launch. */
ea_status ea_graph_begin(ea_context *context, void *stream);
ea_status ea_graph_end(ea_context *context, void *stream, ea_graph *graph);
ea_status ea_graph_launch(ea_context *context, ea_graph graph, void *stream);
void ea_graph_destroy(ea_context *context, ea_graph graph);

#endif
