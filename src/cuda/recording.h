/* Recording when the warps of a Hopper kernel did what, for `extattn trace`. The kernels of a build with
 * EA_TRACE leave the marks (cuda/kernels/timeline.h). None of this is public. */
#ifndef EA_CUDA_RECORDING_H
#define EA_CUDA_RECORDING_H

#include "cuda/kernels/timeline.h"
#include "extattn.h"

typedef struct ea_recording ea_recording;

/* EA_ERR_UNSUPPORTED where the build's kernels record nothing. */
ea_status ea_recording_possible(void);

/* From now on a launch of a Hopper kernel by this context leaves its marks, those of its first `blocks` blocks and up
 * to 2^records_log2 - 1 of a track; for one launch. The context is to outlive the recording, and no other thread may
 * use it meanwhile. */
ea_status ea_recording_begin(ea_context *context, int32_t blocks, int32_t records_log2, ea_recording **recording);

/* Waits for the launch on the default stream and fetches its marks. */
ea_status ea_recording_fetch(ea_recording *recording);

/* Of what was fetched: a block's header, NULL where there was no such block; a track's marks, which end with one whose
 * `what` is 0. */
const ea_marked_block *ea_recording_block(const ea_recording *recording, int32_t block);
const ea_mark *ea_recording_track(const ea_recording *recording, int32_t block, int32_t track);

/* Launches leave no marks any more. NULL is fine. */
void ea_recording_end(ea_recording *recording);

#endif
