/* SPDX-License-Identifier: MIT-0 */
/* flight - private: the flight recorder, which keeps the last operations of each rank for messages
 * and dpar_comm_report. */
#ifndef DPARI_COMM_FLIGHT_H
#define DPARI_COMM_FLIGHT_H

#include "world.h"

/* Appends the last operation of a rank that failed, if there is one: " (failed: all-reduce #3
 * (...))". */
DPARI_API void dpari_put_failed(dpar_text *text, const dpari_world *world, int32_t rank);

/* ---- of this header's own modules ---- */

/* Begins a record of an operation. Returns its number for dpari_flight_end. */
DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *world, uint32_t comm, int64_t sequence,
                                          const dpar_call *call);
/* In place of a sequence number: the last operation, and the last one that failed. */
enum { DPARI_FLIGHT_LAST = -1, DPARI_FLIGHT_LAST_FAILED = -2 };
/* Copies the record of an operation to *out. Returns 0 if there is no such record, or no longer. */
DPARI_INTERNAL int dpari_flight_find(const dpari_world *world, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out);
/* Returns a rank's record with this number, which may be written at the same time, and a record of
 * a call that is not in the recorder. */
DPARI_INTERNAL dpari_flight dpari_flight_read(const dpari_rank *record, uint64_t number);
DPARI_INTERNAL dpari_flight dpari_flight_of(const dpar_call *call, int64_t sequence);
/* Sets the state of a record, unless a newer record has replaced it. */
DPARI_INTERNAL void dpari_flight_end(dpari_world *world, int64_t number, int32_t state);
/* Appends "all-reduce #12 (1024 f32, sum)". */
DPARI_INTERNAL void dpari_flight_text(dpar_text *text, const dpari_flight *flight);
/* Appends the last operation of a rank and its state: " (in all-reduce #12 (...))". */
DPARI_INTERNAL void dpari_put_last(dpar_text *text, const dpari_world *world, int32_t rank);

#endif
