/* SPDX-License-Identifier: MIT-0 */
/* type - names the number formats and the collectives that all headers share. */
#ifndef DPARI_BASE_TYPE_H
#define DPARI_BASE_TYPE_H

#include "base.h"

/* The number format of an array, a message or an arithmetic unit.
 *
 * DPAR_TYPE_NONE is the value of a field that was left out. A field that describes data must not be
 * left out (DPAR_E_ARG); an optional field documents what 0 selects.
 *
 * dpar_cost.h knows a chip's peak FLOP/s in the formats from DPAR_F64 up to DPAR_FORMAT_COUNT,
 * where DPAR_BF16 stands for DPAR_F16 too. The types from DPAR_F16 on only describe how numbers are
 * stored. */
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

/* Returns the bytes of one element. Returns 0 for DPAR_F4, whose elements share bytes, and for a
 * number that is not a type. */
DPAR_API int32_t dpar_type_bytes(int32_t type);
/* Returns the name of a type: "f32", "bf16", ..., "none" for DPAR_TYPE_NONE, or "?" for a number
 * that is not a type. The text is static. */
DPAR_API const char *dpar_type_name(int32_t type);

/* The collectives, named as in MPI and NCCL, and the two halves of a message. DPAR_CALL_NONE is the
 * value of a field that was left out. */
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
    DPAR_CALL_SEND_RECV, /* a message, where its cost is computed */
    DPAR_CALL_BARRIER,
    DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_SEND = DPAR_CALL_COLLECTIVE_COUNT,
    DPAR_CALL_RECV,
    DPAR_CALL_COUNT
};

/* Returns the name of a collective: "all-reduce", ..., "send", "recv", "none" for DPAR_CALL_NONE,
 * or "?" for any other number. The text is static. */
DPAR_API const char *dpar_call_name(int32_t kind);

#endif
