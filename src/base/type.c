/* SPDX-License-Identifier: MIT-0 */
/* Returns sizes and names of number formats, and names of collectives. dpar_type_name uses a
 * switch, because a table of pointers would have to be relocated at load time. */
#include "base_private.h"

DPAR_API int32_t dpar_type_bytes(int32_t type)
{
    switch (type) {
    case DPAR_F64:
    case DPAR_I64:
    case DPAR_U64: return 8;
    case DPAR_F32:
    case DPAR_TF32:
    case DPAR_I32:
    case DPAR_U32: return 4;
    case DPAR_BF16:
    case DPAR_F16: return 2;
    case DPAR_F8:
    case DPAR_I8:
    case DPAR_U8: return 1;
    default: return 0;
    }
}

DPAR_API DPARI_COLD const char *dpar_type_name(int32_t type)
{
    switch (type) {
    case DPAR_TYPE_NONE: return "none";
    case DPAR_F64: return "f64";
    case DPAR_F32: return "f32";
    case DPAR_TF32: return "tf32";
    case DPAR_BF16: return "bf16";
    case DPAR_F8: return "f8";
    case DPAR_F4: return "f4";
    case DPAR_F16: return "f16";
    case DPAR_I8: return "i8";
    case DPAR_U8: return "u8";
    case DPAR_I32: return "i32";
    case DPAR_U32: return "u32";
    case DPAR_I64: return "i64";
    case DPAR_U64: return "u64";
    default: return "?";
    }
}

DPARI_API int32_t dpari_type_can_reduce(int32_t type)
{
    return dpar_type_bytes(type) > 0 && type != DPAR_TF32 && type != DPAR_F8;
}

DPAR_API const char *dpar_call_name(int32_t kind)
{
    static const char name[DPAR_CALL_COUNT][16] = {
        "none",   "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
        "gather", "scatter",    "send-recv",  "barrier",        "send",       "recv"};
    return kind >= 0 && kind < DPAR_CALL_COUNT ? name[kind] : "?";
}
