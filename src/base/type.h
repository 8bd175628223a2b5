/* SPDX-License-Identifier: MIT-0 */
/* type - constants that all headers share: number formats, and the collectives. */
#ifndef DPARI_BASE_TYPE_H
#define DPARI_BASE_TYPE_H

#include "base.h"

/* Number formats: what an array holds, what a message carries, what a chip computes in.
 *
 * DPAR_TYPE_NONE is a field that was left out. That is E_ARG where the field describes data. Where
 * it may be left out, as for what travels or an optimizer's moments, the field says what 0 means.
 *
 * For the formats from F64 on, below DPAR_FORMAT_COUNT, chips state a peak of FLOP/s. BF16 there
 * stands for F16 too. The types from F16 on only say how numbers are stored. */
enum {
    DPAR_TYPE_NONE,
    DPAR_F64,
    DPAR_F32,
    DPAR_TF32, /* stored as F32 */
    DPAR_BF16,
    DPAR_F8,
    DPAR_F4,
    DPAR_FORMAT_COUNT,
    DPAR_F16 = DPAR_FORMAT_COUNT,
    DPAR_I8,
    DPAR_U8,
    DPAR_I32,
    DPAR_U32,
    DPAR_I64,
    DPAR_U64,
    DPAR_TYPE_COUNT
};

/* Bytes of one element: 0 for F4, which has no address of its own, and for what is no type.
 * O(1). */
DPAR_API int32_t dpar_type_bytes(int32_t type);
/* "f32", "bf16", ...; "none" for DPAR_TYPE_NONE; "?" for others. Static text. */
DPAR_API const char *dpar_type_name(int32_t type);
/* Can ranks add such elements? F64 F32 BF16 F16 and the integers; not TF32, F8, F4. O(1). */
DPAR_API int32_t dpar_type_reduces(int32_t type);

/* The collectives, as MPI and NCCL have them, and the two halves of a message. DPAR_CALL_NONE is a
 * kind that was left out. */
enum {
    DPAR_CALL_NONE,
    DPAR_CALL_ALL_REDUCE,
    DPAR_CALL_ALL_GATHER,
    DPAR_CALL_REDUCE_SCATTER,
    DPAR_CALL_ALL_TO_ALL,
    DPAR_CALL_BROADCAST,
    DPAR_CALL_REDUCE,
    DPAR_CALL_GATHER,
    DPAR_CALL_SCATTER,
    DPAR_CALL_SEND_RECV, /* a message, as a cost */
    DPAR_CALL_BARRIER,
    DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_SEND = DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_RECV,
    DPAR_CALL_COUNT
};

/* "all-reduce", ..., "send", "recv"; "none" for DPAR_CALL_NONE, "?" for others. Static text. */
DPAR_API const char *dpar_call_name(int32_t kind);

#endif
