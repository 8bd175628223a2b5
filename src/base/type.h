/* SPDX-License-Identifier: MIT-0 */
/* type - words that all headers share: the number formats (what a chip computes in, what a message
 * holds) and the collectives (what one costs, what one does). */
#ifndef DPARI_BASE_TYPE_H
#define DPARI_BASE_TYPE_H

#include "base.h"

/* A field that was left out says no type: E_ARG where data is described; where a type may be left
 * to another (what travels, an optimizer's moments) the field says what 0 means there.
 * From F64 below DPAR_FORMATS are the formats that chips state a peak for; from F16 on they are
 * only stored. BF16 stands for F16 too where a peak is meant. */
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

/* Bytes of one element; 0 where it has no address of its own (F4) or the type is none. O(1). */
DPAR_API int32_t dpar_type_bytes(int32_t type);
/* "f32", "bf16", ...; "none" for DPAR_NO_TYPE; "?" for others. Static text. */
DPAR_API const char *dpar_type_name(int32_t type);
/* Can ranks add such elements? F64 F32 BF16 F16 and the integers; not TF32, F8, F4. O(1). */
DPAR_API int32_t dpar_type_reduces(int32_t type);

/* The collectives, as MPI and NCCL have them, and the two halves of a message. A kind that was left
 * out is none of them. */
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
