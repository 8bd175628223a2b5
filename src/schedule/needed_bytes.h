/* SPDX-License-Identifier: MIT-0 */
/* needed_bytes - private: how many bytes of memory the functions of dpar_schedule.h need. A program
 * learns the number from why->bytes when a call without memory fails with DPAR_E_ROOM. */
#ifndef DPARI_SCHEDULE_NEEDED_BYTES_H
#define DPARI_SCHEDULE_NEEDED_BYTES_H

#include "check.h"
#include "generate.h"
#include "lower.h"
#include "partition.h"
#include "slots.h"

/* Returns the bytes for dpar_schedule_generate: dpari_schedule_bytes, and for V_HALF, V_MIN and
 * 1F1B_V another 88 m + 72 p + 248 bytes of working memory per rank. Returns -1 if there is no such
 * schedule; `why` receives the reason. O(stages). */
DPARI_API int64_t dpari_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why);
/* Returns the bytes for dpar_schedule_check, or -1 if ranks, stages, chain, micro_batches, slices
 * or begin are not those of a schedule. O(ranks). */
DPARI_API int64_t dpari_schedule_check_bytes(const dpar_schedule *schedule,
                                             const dpar_schedule_check_desc *how);
/* Returns the bytes for dpar_schedule_slots, or -1 if dpari_schedule_check_bytes returns -1.
 * O(ranks). */
DPARI_API int64_t dpari_schedule_slots_bytes(const dpar_schedule *schedule);
/* Returns the bytes for dpar_schedule_lower, or -1 if it refuses the schedule or the passes; `why`
 * receives the reason. O(actions x max_active). */
DPARI_API int64_t dpari_schedule_lower_bytes(const dpar_schedule *in,
                                             const dpar_schedule_lower_desc *how, dpar_why *why);

/* ---- of this header's own modules ---- */

/* Returns the bytes of a schedule, or -1 unless there are 1 to 65535 ranks and stages and 0 or more
 * actions. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions);
/* Returns the bytes for dpar_schedule_simulate, or -1 if the struct is not a schedule or has more
 * than 2^32 - 2 actions. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_simulate_bytes(const dpar_schedule *schedule,
                                                     const dpar_schedule_simulate_desc *how);
/* Returns the least bytes for dpar_schedule_optimize, or -1 if a job is out of its domain or cannot
 * fit; `why` receives the reason. O(stages x ranks). */
DPARI_INTERNAL int64_t dpari_schedule_auto_bytes(const dpar_schedule_optimize_desc *job,
                                                 dpar_why *why);
/* Returns the bytes for dpar_schedule_partition, or -1 if a number is out of its domain. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_place_bytes(const dpar_schedule_partition_desc *how);

#endif
