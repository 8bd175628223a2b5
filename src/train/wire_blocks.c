/* SPDX-License-Identifier: MIT-0 */
/* Sums arrays over all ranks and sends them as blocks of 8-bit codes.
 *
 * A rank sends each byte of an array about twice, as in an all-reduce, but an element has 1 byte
 * and 1/64 of a scale in place of 4 bytes. Each element is rounded twice: on its rank, and after
 * the sum. The steps are apart because the all-to-all can be posted while backward runs, whereas
 * the sum needs its result. */
#include "wire_blocks.h"

#include "../comm/memory_calls.h"
#include "layer_calls.h"

DPARI_INTERNAL int64_t dpari_wire_piece(const dpar_comm *comm, int64_t count)
{
    return dpari_ceil_div(dpari_ceil_div(count, DPARI_WIRE_BLOCK), comm->size);
}

/* An array of n elements has at most n / 256 + size blocks, rounded down, because each piece is
 * rounded up to whole blocks and all pieces have the same number. */
DPARI_INTERNAL int64_t dpari_wire_position(const dpar_comm *comm, int64_t first, int32_t k)
{
    return first / DPARI_WIRE_BLOCK + k * (INT64_C(1) + comm->size);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_wire_make(dpari_wire_blocks *wire, int64_t records,
                                                      int64_t piece)
{
    const int64_t codes = dpari_ceil_div(records * DPARI_WIRE_RECORD, 64) * 64;
    void *memory = NULL;
    dpar_status status =
        dpar_comm_alloc(wire->comm, 2 * codes + (piece + 1) * DPARI_WIRE_BLOCK * 4, &memory);
    if (status != DPAR_OK) {
        return status;
    }
    wire->sent = (unsigned char *)memory;
    wire->received = wire->sent + codes;
    wire->sum = (float *)(void *)(wire->received + codes);
    return dpari_do_copy(wire->comm, memory, NULL, 2 * codes);
}

/* Quantizes x[count] to the blocks at `code`, or dequantizes them. */
static dpar_status dpari_wire_convert(const dpari_wire_blocks *wire, void *x, int32_t type,
                                      unsigned char *code, int64_t count, int back, int accumulate)
{
    dpar_mem_quantize call;
    dpari_zero(&call, sizeof call);
    call.x = x;
    call.count = count;
    call.block = DPARI_WIRE_BLOCK;
    call.type = type;
    call.code_type = wire->code_type;
    call.code = code;
    call.scale = code + DPARI_WIRE_BLOCK;
    call.code_step = DPARI_WIRE_RECORD;
    call.scale_step = DPARI_WIRE_RECORD;
    call.accumulate = accumulate;
    return back ? dpari_do_dequantize(wire->comm, &call) : dpari_do_quantize(wire->comm, &call);
}

DPARI_INTERNAL dpar_status dpari_wire_begin(const dpari_wire_blocks *wire, int64_t position,
                                            void *data, int64_t count, dpar_work *work)
{
    const int64_t at = position * DPARI_WIRE_RECORD;
    const int64_t bytes = dpari_wire_piece(wire->comm, count) * DPARI_WIRE_RECORD;
    const dpar_status status =
        dpari_wire_convert(wire, data, wire->type, wire->sent + at, count, 0, 0);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_all_to_all(wire->comm, wire->sent + at, wire->received + at, bytes, DPAR_U8, work);
}

DPARI_INTERNAL dpar_status dpari_wire_reduce(const dpari_wire_blocks *wire, int64_t position,
                                             int64_t count, double factor, dpar_work *work)
{
    dpar_comm *comm = wire->comm;
    const int64_t piece = dpari_wire_piece(comm, count);
    const int64_t bytes = piece * DPARI_WIRE_RECORD;
    const int64_t left = count - comm->rank * piece * DPARI_WIRE_BLOCK;
    const int64_t mine = dpari_least(dpari_most(left, 0), piece * DPARI_WIRE_BLOCK);
    unsigned char *const all = wire->received + position * DPARI_WIRE_RECORD;
    unsigned char *const own = wire->sent + position * DPARI_WIRE_RECORD + comm->rank * bytes;
    dpar_status status = DPAR_OK;
    for (int32_t r = 0; r < comm->size && mine > 0 && status == DPAR_OK; r++) {
        status = dpari_wire_convert(wire, wire->sum, DPAR_F32, all + r * bytes, mine, 1, r > 0);
    }
    if (mine > 0 && factor != 1.0 && status == DPAR_OK) {
        dpar_mem_reduce scaled;
        dpari_zero(&scaled, sizeof scaled);
        scaled.to = wire->sum;
        scaled.from = wire->sum;
        scaled.count = mine;
        scaled.parts = 1;
        scaled.to_type = scaled.from_type = scaled.sum_type = DPAR_F32;
        scaled.op = DPAR_SUM;
        scaled.scale = factor;
        status = dpari_do_reduce(comm, &scaled);
    }
    if (mine > 0 && status == DPAR_OK) {
        status = dpari_wire_convert(wire, wire->sum, DPAR_F32, own, mine, 0, 0);
    }
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_all_gather(comm, own, all, bytes, DPAR_U8, work);
}

DPARI_INTERNAL dpar_status dpari_wire_end(const dpari_wire_blocks *wire, int64_t position,
                                          void *data, int64_t count)
{
    return dpari_wire_convert(wire, data, wire->type, wire->received + position * DPARI_WIRE_RECORD,
                              count, 1, 0);
}
