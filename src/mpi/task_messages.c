/* SPDX-License-Identifier: MIT-0 */
/* Sends and receives the messages of tasks, and compares their lengths.
 *
 * A message between one and two times as long as MPI's limit for sending at once is sent in two
 * parts (tuning.c). Its first part has a length that no whole message has, so that a receiver that
 * expects another count notices it. Every receive that is done is compared with the length that it
 * expected; a difference breaks the communicator with a message that names the call, the rank and
 * both counts. */
#include "task_messages.h"

#include "error_text.h"
#include "mpi_types.h"
#include "notes.h"
#include "tasks.h"

/* Makes a type whose one element holds n elements of `base`: blocks of DPARI_MPI_LIMIT, and a
 * remainder. */
static int dpari_mpi_big_type(MPI_Datatype base, int64_t n, int64_t bytes, MPI_Datatype *big)
{
    MPI_Datatype part[2];
    MPI_Aint begin[2];
    int length[2], code;
    int64_t blocks = n / DPARI_MPI_LIMIT;
    code = MPI_Type_vector((int)blocks, (int)DPARI_MPI_LIMIT, (int)DPARI_MPI_LIMIT, base, &part[0]);
    if (code != MPI_SUCCESS) {
        return code;
    }
    part[1] = base;
    length[0] = 1;
    length[1] = (int)(n % DPARI_MPI_LIMIT);
    begin[0] = 0;
    begin[1] = (MPI_Aint)(blocks * DPARI_MPI_LIMIT * bytes);
    code = MPI_Type_create_struct(2, length, begin, part, big);
    MPI_Type_free(&part[0]);
    return code == MPI_SUCCESS ? MPI_Type_commit(big) : code;
}

DPARI_INTERNAL int dpari_mpi_units(dpari_mpi_piece *p, int32_t b, int64_t n, int64_t total,
                                   MPI_Datatype *type, dpari_mpi_count *count)
{
    *type = dpari_mpi_by_bytes(b);
    *count = (dpari_mpi_count)n;
    if (total > DPARI_MPI_LIMIT && n > 0) {
        int code = dpari_mpi_big_type(*type, n, b, &p->big);
        *type = p->big;
        *count = 1;
        return code;
    }
    return MPI_SUCCESS;
}

DPARI_INTERNAL int dpari_mpi_send_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                      const void *from, int64_t n)
{
    dpari_mpi_piece *p = dpari_mpi_slot(task, to);
    MPI_Datatype type;
    dpari_mpi_count count;
    int code = dpari_mpi_units(p, dpar_type_bytes(task->call.type), n, n, &type, &count);
    if (code != MPI_SUCCESS) {
        return code;
    }
    return DPARI_MPI_C(MPI_Isend)(from, count, type, to, tag, comm, dpari_mpi_last_request(task));
}

DPARI_INTERNAL int dpari_mpi_recv_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                      void *to, int64_t n)
{
    dpari_mpi_piece *p = dpari_mpi_slot(task, from);
    MPI_Datatype type;
    dpari_mpi_count count;
    int code = dpari_mpi_units(p, dpar_type_bytes(task->call.type), n, n, &type, &count);
    if (code != MPI_SUCCESS) {
        return code;
    }
    if (n == 0) { /* has space for one byte, because Intel MPI 2021 would accept a short message as
                     an empty one */
        type = MPI_BYTE;
        count = 1;
        to = &p->none;
    }
    p->type = type;
    p->expect = p->whole = n;
    return DPARI_MPI_C(MPI_Irecv)(to, count, type, from, tag, comm, dpari_mpi_last_request(task));
}

/* Returns the elements of the first part of a message that is sent in two parts. No message in one
 * part has this length. -1 if no messages are sent in two parts. */
static int64_t dpari_mpi_first_of(const dpari_mpi_task *task)
{
    return task->ctx->world->at_once > 0
               ? task->ctx->world->at_once / dpar_type_bytes(task->call.type) + 1
               : -1;
}

DPARI_INTERNAL int64_t dpari_mpi_first_part(const dpari_mpi_task *task, int64_t n)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, n), at_once = task->ctx->world->at_once;
    return bytes > at_once && bytes <= 2 * at_once ? dpari_mpi_first_of(task) : 0;
}

DPARI_INTERNAL int dpari_mpi_send_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                        const void *from, int64_t n)
{
    const int64_t first = dpari_mpi_first_part(task, n);
    int code = MPI_SUCCESS;
    if (first > 0) {
        task->cut = 1;
        code = dpari_mpi_send_one(task, comm, tag, to, from, first);
    }
    if (code != MPI_SUCCESS) {
        return code;
    }
    return dpari_mpi_send_one(task, comm, tag, to, dpari_mpi_past(from, task->call.type, first),
                              n - first);
}

DPARI_INTERNAL int dpari_mpi_recv_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                        void *to, int64_t n)
{
    const int64_t first = dpari_mpi_first_part(task, n);
    int code = MPI_SUCCESS;
    if (first > 0) {
        task->cut = 1;
        code = dpari_mpi_recv_one(task, comm, tag, from, to, first);
        task->piece[task->requests - 1].whole = n;
    }
    if (code == MPI_SUCCESS) {
        code = dpari_mpi_recv_one(task, comm, tag, from, dpari_mpi_at(to, task->call.type, first),
                                  n - first);
        task->piece[task->requests - 1].before = first;
        task->piece[task->requests - 1].whole = n;
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_piece_tag(const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    uint64_t h = (uint64_t)call->kind | (uint64_t)call->type << 8 | (uint64_t)call->op << 16;
    h = (h ^ (uint64_t)(uint32_t)call->root << 32) * UINT64_C(0x9e3779b97f4a7c15);
    h = ((h >> 29) ^ (uint64_t)(uint32_t)dpari_tag_compared(call->tag)) *
        UINT64_C(0x9e3779b97f4a7c15);
    return DPARI_MPI_TAG_PIECE + (int)(((h >> 33) + (uint64_t)task->sequence) % DPARI_MPI_TAGS);
}

DPARI_INTERNAL int dpari_mpi_trade(dpari_mpi_task *task, int32_t r, void *to, int64_t gets,
                                   const void *from, int64_t gives)
{
    int code = MPI_SUCCESS, tag = dpari_mpi_piece_tag(task);
    const int32_t peer = task->peer != NULL ? task->peer[r] : r;
    if (gets > 0) {
        code = dpari_mpi_recv_piece(task, task->ctx->side, tag, peer, to, gets);
    }
    if (gives > 0 && code == MPI_SUCCESS) {
        code = dpari_mpi_send_piece(task, task->ctx->side, tag, peer, from, gives);
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_trade_each(dpari_mpi_task *task, void *to, const int32_t *place,
                                        const void *from, int64_t step, int64_t n)
{
    const int32_t type = task->call.type;
    int32_t r, code = MPI_SUCCESS;
    if (!dpari_mpi_reserve(task, 2 * task->ranks)) {
        return MPI_ERR_NO_MEM;
    }
    for (r = 0; r < task->ranks && code == MPI_SUCCESS; r++) {
        void *row = dpari_mpi_at(to, type, (place != NULL ? place[r] : r) * n);
        const void *piece = dpari_mpi_past(from, type, r * step);
        if (r == task->me) {
            dpari_mpi_copy(row, piece, dpari_mpi_bytes(type, n));
        } else {
            code = dpari_mpi_trade(task, r, row, n, piece, n);
        }
    }
    return code;
}

/* ---- lengths and errors ---- */

DPARI_INTERNAL void dpari_mpi_mismatch(dpari_mpi_task *task, int32_t peer, int64_t got,
                                       int64_t expected)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpar_text_put(&t, ": ");
    dpari_mpi_put_rank(&t, task->ctx, peer);
    dpar_text_put(&t, " sent ");
    if (got < 0) {
        dpar_text_put(&t, "more elements than the ");
    } else {
        dpari_text_int(&t, got);
        dpar_text_put(&t, got == dpari_mpi_first_of(task) ? " or more elements, not the "
                                                          : " elements, not the ");
    }
    dpari_text_say(&t, "%ld that rank %d expects", expected, task->ctx->comm.rank);
    dpari_mpi_break(task->ctx, DPAR_E_MISMATCH, why.text, 1);
}

DPARI_INTERNAL void dpari_mpi_measure(dpari_mpi_task *task, int32_t i)
{
    const dpari_mpi_piece *p = &task->piece[i];
    MPI_Count got = 0;
    if (p->expect < 0 || p->whole < 0) {
        return;
    }
    if (MPI_Get_elements_x(&task->state[i], p->type, &got) != MPI_SUCCESS || got != p->expect) {
        dpari_mpi_mismatch(task, p->peer, p->before + (got < 0 ? 0 : (int64_t)got), p->whole);
    }
}

DPARI_INTERNAL void dpari_mpi_request_failed(dpari_mpi_task *task, int32_t i, int code)
{
    if (dpari_mpi_status_of(code) == DPAR_E_MISMATCH && task->piece[i].expect >= 0) {
        dpari_mpi_mismatch(task, task->piece[i].peer, -1, task->piece[i].whole);
    } else {
        dpari_mpi_failed(task->ctx, task, NULL, code);
    }
}

/* Tests the requests one by one. If only one end cuts a message in two, one part may never arrive,
 * and the length of the other part then reveals the mismatch. */
static int32_t dpari_mpi_parts_done(dpari_mpi_task *task)
{
    int32_t i, all = 1;
    for (i = 0; i < task->requests && task->ctx->comm.status >= 0; i++) {
        int done = 1;
        if (task->request[i] != MPI_REQUEST_NULL) {
            const int code = MPI_Test(&task->request[i], &done, &task->state[i]);
            if (code != MPI_SUCCESS) {
                dpari_mpi_request_failed(task, i, code);
                return 0;
            }
            if (done) {
                dpari_mpi_measure(task, i);
            }
        }
        all = all && done;
    }
    return all && task->ctx->comm.status >= 0;
}

DPARI_INTERNAL int32_t dpari_mpi_requests_done(dpari_mpi_task *task)
{
    int done = 0, code;
    int32_t i;
    if (task->cut) {
        return dpari_mpi_parts_done(task);
    }
    if (task->requests == 1) {
        code = MPI_Test(task->request, &done, task->state);
        if (code != MPI_SUCCESS) {
            dpari_mpi_request_failed(task, 0, code);
            return 0;
        }
    } else {
        code = MPI_Testall(task->requests, task->request, &done, task->state);
        for (i = 0; code != MPI_SUCCESS && i < task->requests; i++) {
            int one = dpari_mpi_class(code) == MPI_ERR_IN_STATUS ? task->state[i].MPI_ERROR : code;
            if (one != MPI_SUCCESS && dpari_mpi_class(one) != MPI_ERR_PENDING) {
                dpari_mpi_request_failed(task, i, one);
                return 0;
            }
        }
    }
    for (i = 0; done && i < task->requests; i++) {
        dpari_mpi_measure(task, i);
    }
    return done;
}
