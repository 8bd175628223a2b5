/* SPDX-License-Identifier: MIT-0 */
/* type - constants that all headers share: number formats, and the collectives. */
#ifndef DPARI_BASE_TYPE_H
#define DPARI_BASE_TYPE_H

#include "base.h"

/* Number formats: what an array holds, what a message carries, what a chip computes in.
 *
 * DPAR_NO_TYPE is a field that was left out. That is E_ARG where the field describes data. Where it
 * may be left out, as for what travels or an optimizer's moments, the field says what 0 means.
 *
 * For the formats from F64 on, below DPAR_FORMATS, chips state a peak of FLOP/s. BF16 there stands
 * for F16 too. The types from F16 on only say how numbers are stored. */
enum {
    DPAR_NO_TYPE,
    DPAR_F64,
    DPAR_F32,
    DPAR_TF32, /* stored as F32 */
    DPAR_BF16,
    DPAR_F8,
    DPAR_F4,
    DPAR_FORMATS,
    DPAR_F16 = DPAR_FORMATS,
    DPAR_I8,
    DPAR_U8,
    DPAR_I32,
    DPAR_U32,
    DPAR_I64,
    DPAR_U64,
    DPAR_TYPES
};

/* Bytes of one element: 0 for F4, which has no address of its own, and for what is no type.
 * O(1). */
DPAR_API int32_t dpar_type_bytes(int32_t type);
/* "f32", "bf16", ...; "none" for DPAR_NO_TYPE; "?" for others. Static text. */
DPAR_API const char *dpar_type_name(int32_t type);
/* Can ranks add such elements? F64 F32 BF16 F16 and the integers; not TF32, F8, F4. O(1). */
DPAR_API int32_t dpar_type_reduces(int32_t type);

/* The collectives, as MPI and NCCL have them, and the two halves of a message. DPAR_NO_CALL is a
 * kind that was left out. */
enum {
    DPAR_NO_CALL,
    DPAR_ALL_REDUCE,
    DPAR_ALL_GATHER,
    DPAR_REDUCE_SCATTER,
    DPAR_ALL_TO_ALL,
    DPAR_BROADCAST,
    DPAR_REDUCE,
    DPAR_GATHER,
    DPAR_SCATTER,
    DPAR_SEND_RECV, /* a message, as a cost */
    DPAR_BARRIER,
    DPAR_COLLECTIVES,
    DPAR_SEND = DPAR_COLLECTIVES,
    DPAR_RECV,
    DPAR_CALLS
};

/* "all-reduce", ..., "send", "recv"; "none" for DPAR_NO_CALL, "?" for others. Static text. */
DPAR_API const char *dpar_collective_name(int32_t kind);

#endif
