/* SPDX-License-Identifier: MIT-0 */
/* Implements scans by an all-gather of the inputs, which each rank then combines in rank order.
 * That gives the same bits with all engines, and costs only one collective in the most frequent
 * case, a scan of one number per rank. Long inputs are gathered piece by piece. */
#include "scan.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../host/kernel.h"
#include "agree.h"
#include "comm.h"
#include "engine.h"
#include "object_memory.h"

enum {
    DPARI_SCAN_STACK = 8192,   /* bytes on the stack for the inputs of all ranks */
    DPARI_SCAN_PIECE = 1 << 20 /* bytes that are gathered at a time if they exceed that */
};

/* The arguments of a scan. */
typedef struct dpari_scan_call {
    const unsigned char *in;
    unsigned char *out;
    int64_t count;
    int32_t type, op;
    int32_t exclusive; /* 1 leaves this rank's input out */
    int32_t unit;      /* bytes of an element */
} dpari_scan_call;

/* True if the arguments are allowed. */
static DPARI_COLD int dpari_scan_allowed(const dpar_comm *comm, const dpari_scan_call *scan)
{
    const uintptr_t in = (uintptr_t)scan->in, out = (uintptr_t)scan->out;
    const uintptr_t bytes = (uintptr_t)scan->count * (uintptr_t)scan->unit;
    if (!dpari_type_can_reduce(scan->type) || scan->op <= DPAR_COPY || scan->op >= DPAR_OP_COUNT ||
        scan->op == DPAR_AVG || scan->count < 0 ||
        scan->count > (INT64_C(1) << 62) / scan->unit / comm->size) {
        return 0;
    }
    return bytes == 0 || (in && out && (in == out || in >= out + bytes || out >= in + bytes));
}

/* Scans the next n elements. room: memory for n elements of each rank. */
static DPARI_COLD dpar_status dpari_scan_piece(dpar_comm *comm, const dpari_scan_call *scan,
                                               int64_t n, unsigned char *room)
{
    const int64_t bytes = n * scan->unit;
    const int32_t end = comm->rank + 1 - scan->exclusive;
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, scan->in, room, n, scan->type);
    const dpar_status status = dpari_post_alike(
        comm, &call,
        16 * (uint64_t)scan->count + 2 * (uint64_t)scan->op + (uint64_t)scan->exclusive,
        "dpar_scan", NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (int32_t rank = 1; rank < end; rank++) {
        const void *both[2];
        void *result = room;
        both[0] = room;
        both[1] = room + rank * bytes;
        dpari_kern_reduce(&result, 1, both, 2, n, scan->type, scan->op, 0);
    }
    if (end > 0) {
        dpari_kern_copy(scan->out, room, bytes, 0);
    } else if (scan->op == DPAR_SUM) {
        dpari_zero(scan->out, (size_t)bytes);
    }
    return DPAR_OK;
}

/* Scans inputs that are too long for the stack. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_scan_long(dpar_comm *comm, dpari_scan_call *scan)
{
    const int64_t all = (int64_t)scan->unit * comm->size;
    const int64_t most = all < DPARI_SCAN_PIECE ? DPARI_SCAN_PIECE / all : 1;
    void *room = NULL;
    dpar_status status =
        dpari_object_memory(comm, NULL, 0, most * all, "dpar_scan", &room, &comm->why);
    status = dpari_agree(comm, status, &comm->why);
    for (int64_t left = scan->count; left > 0 && status == DPAR_OK; left -= most) {
        status = dpari_scan_piece(comm, scan, dpari_least(most, left), (unsigned char *)room);
        scan->in += most * scan->unit;
        scan->out += most * scan->unit;
    }
    dpari_object_release(room);
    return status;
}

static DPARI_COLD dpar_status dpari_scan_run(dpar_comm *comm, const void *in, void *out,
                                             int64_t count, int32_t type, int32_t op,
                                             int32_t exclusive)
{
    int64_t room[DPARI_SCAN_STACK / 8];
    dpari_scan_call scan;
    if (!comm) {
        return DPAR_E_ARG;
    }
    scan.in = (const unsigned char *)in;
    scan.out = (unsigned char *)out;
    scan.count = count;
    scan.type = type;
    scan.op = op;
    scan.exclusive = exclusive;
    scan.unit = dpar_type_bytes(type);
    if (!dpari_scan_allowed(comm, &scan)) {
        return dpari_comm_wrong(comm,
                                "dpar_scan: type %s, op %d, count %ld: the type must be one that "
                                "can be reduced, op SUM, PRODUCT, MAX or MIN, count 0 to 2^62 "
                                "bytes, and in and out the same or disjoint",
                                dpar_type_name(type), op, count);
    }
    if (count > DPARI_SCAN_STACK / scan.unit / comm->size) {
        return dpari_scan_long(comm, &scan);
    }
    return dpari_scan_piece(comm, &scan, count, (unsigned char *)room);
}

DPAR_API dpar_status dpar_scan(dpar_comm *comm, const void *in, void *out, int64_t count,
                               int32_t type, int32_t op)
{
    return dpari_scan_run(comm, in, out, count, type, op, 0);
}

DPAR_API dpar_status dpar_exscan(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op)
{
    return dpari_scan_run(comm, in, out, count, type, op, 1);
}

/* ---- extremes and their locations ---- */

enum { DPARI_LOCATIONS = 128 }; /* the most pairs that are reduced at a time */

/* Does what dpar_all_reduce_location does, for n pairs. */
static DPARI_COLD dpar_status dpari_location_piece(dpar_comm *comm, dpar_location *pairs, int32_t n,
                                                   int32_t op)
{
    double value[DPARI_LOCATIONS];
    int64_t index[DPARI_LOCATIONS];
    dpar_status status;
    for (int32_t i = 0; i < n; i++) {
        value[i] = pairs[i].value;
    }
    status = dpar_all_reduce(comm, value, value, n, DPAR_F64, op, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (int32_t i = 0; i < n; i++) {
        const double mine = pairs[i].value;
        const int is_nan = mine != mine;
        index[i] = INT64_MAX;
        if (mine == value[i] || is_nan) {
            index[i] = pairs[i].index;
        }
        pairs[i].value = value[i];
    }
    status = dpar_all_reduce(comm, index, index, n, DPAR_I64, DPAR_MIN, NULL);
    for (int32_t i = 0; i < n; i++) {
        pairs[i].index = index[i];
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_all_reduce_location(dpar_comm *comm, dpar_location *pairs,
                                                         int64_t count, int32_t op)
{
    dpar_status status = DPAR_OK;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if ((op != DPAR_MIN && op != DPAR_MAX) || count < 0 || count > INT64_C(1) << 58 ||
        (count > 0 && !pairs)) {
        return dpari_comm_wrong(comm,
                                "dpar_all_reduce_location: op is %d; it must be DPAR_MIN or _MAX, "
                                "count (%ld) 0 to 2^58, and pairs not NULL",
                                op, count);
    }
    for (int64_t at = 0; at < count && status == DPAR_OK; at += DPARI_LOCATIONS) {
        const int64_t n = dpari_least(DPARI_LOCATIONS, count - at);
        status = dpari_location_piece(comm, pairs + at, (int32_t)n, op);
    }
    return status;
}
