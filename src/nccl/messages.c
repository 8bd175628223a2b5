/* SPDX-License-Identifier: MIT-0 */
/* Enqueues messages. Those that were posted since the last group are sorted by tag and enqueued as
 * one group of NCCL, as one operation with one slot. Messages of a rank to itself are copied, the
 * i-th send to the i-th receive. Messages on host memory go through page-locked memory, which is a
 * part of `letters` or, if that is full, allocated. */
#include "messages.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../host/elements.h"
#include "../comm/engine.h"
#include "failure.h"
#include "host_memory.h"
#include "operation.h"
#include "run.h"
#include "state.h"

/* Returns page-locked memory for a message: a part of `letters`, or newly allocated memory. NULL if
 * there is none. */
static char *dpari_nccl_letter(dpari_nccl_world *world, int64_t bytes)
{
    void *memory = NULL;
    int64_t begin = 0;
    int32_t i;
    bytes = (bytes + 63) / 64 * 64;
    for (i = 0; i < world->used_count && world->used[i].begin - begin < bytes; i++) {
        begin = world->used[i].begin + world->used[i].bytes;
    }
    if (begin + bytes <= world->options.staging_bytes &&
        world->used_count < world->options.work_count) {
        memmove(&world->used[i + 1], &world->used[i],
                (size_t)(world->used_count - i) * sizeof world->used[0]);
        world->used[i].begin = begin;
        world->used[i].bytes = bytes;
        world->used_count++;
        return world->letters + begin;
    }
    if (cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocPortable | cudaHostAllocMapped) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return (char *)memory;
}

static void dpari_nccl_letter_free(dpari_nccl_world *world, char *letter)
{
    const uintptr_t at = (uintptr_t)letter - (uintptr_t)world->letters;
    int32_t i;
    if (letter == NULL) {
        return;
    }
    if (at >= (uintptr_t)world->options.staging_bytes) {
        (void)cudaFreeHost(letter);
        return;
    }
    for (i = 0; i < world->used_count && world->used[i].begin != (int64_t)at; i++) {
    }
    if (i < world->used_count) {
        world->used_count--;
        memmove(&world->used[i], &world->used[i + 1],
                (size_t)(world->used_count - i) * sizeof world->used[0]);
    }
}

DPARI_INTERNAL void dpari_nccl_finish(dpar_work *work, dpar_status status)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    char *letter = dpari_nccl_letter_of(work);
    if (letter != NULL && status >= 0 && work->call.kind == DPAR_CALL_RECV) {
        memcpy(work->call.out, letter, (size_t)dpari_nccl_bytes(work->call.type, work->call.count));
    }
    dpari_nccl_letter_free(context->world, letter);
    dpari_nccl_set_letter(work, NULL);
    if (dpari_nccl_slot_of(work) != NULL) {
        dpari_nccl_let_go(context->world, dpari_nccl_slot_of(work));
        dpari_nccl_keep(work, NULL);
    }
    work->status = status;
    work->phase = DPARI_NCCL_FINISHED;
    work->comm = NULL;
}

DPARI_INTERNAL dpar_status dpari_nccl_can(dpari_nccl_ctx *context, const dpar_call *call,
                                          int32_t place)
{
    if (place == DPARI_NCCL_HOST && dpari_nccl_capturing(context->world)) {
        return dpari_wrong(&context->comm.why,
                           "%s on host memory blocks, and therefore cannot be captured in a graph",
                           dpar_call_name(call->kind));
    }
    if (place == DPARI_NCCL_DEVICE && dpari_kind_reduces(call->kind) && call->op == DPAR_AVG &&
        !dpari_is_float(call->type)) {
        return dpari_wrong(&context->comm.why,
                           "%s: NCCL has no average of integers that rounds towards zero: use "
                           "DPAR_SUM and divide",
                           dpar_call_name(call->kind));
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_pend(dpari_nccl_ctx *context, const dpar_call *call,
                                           dpar_work *work)
{
    const int32_t place = dpari_nccl_place(context, call);
    const int64_t bytes = dpari_nccl_bytes(call->type, call->count);
    const dpar_status can = place < 0 ? (dpar_status)place : dpari_nccl_can(context, call, place);
    char *letter = NULL;
    if (can < 0) {
        return can;
    }
    if (place == DPARI_NCCL_HOST && bytes > 0) {
        letter = dpari_nccl_letter(context->world, bytes);
        if (letter == NULL) {
            return dpari_say(DPAR_E_MEMORY, &context->comm.why,
                             "%s: no page-locked memory for a message of %ld bytes",
                             dpar_call_name(call->kind), bytes);
        }
        if (call->kind == DPAR_CALL_SEND) {
            memcpy(letter, call->in, (size_t)bytes);
        }
    }
    work->comm = &context->comm;
    work->call = *call;
    work->status = DPAR_MORE;
    work->phase = DPARI_NCCL_PENDING;
    work->next = NULL;
    dpari_nccl_keep(work, NULL);
    dpari_nccl_set_letter(work, letter);
    if (context->newest != NULL) {
        context->newest->next = work;
    } else {
        context->pending = work;
    }
    context->newest = work;
    return DPAR_OK;
}

/* Sorts a list of messages by tag, by merging, which keeps messages with the same tag as they were
 * posted. Both ranks of a pair therefore have the same order, whatever the order in which they name
 * their neighbours. */
static dpar_work *dpari_nccl_sorted(dpar_work *list)
{
    dpar_work *part[2], *out = NULL, **end = &out;
    int32_t k = 0;
    if (list == NULL || list->next == NULL) {
        return list;
    }
    {
        dpar_work *slow = list, *fast = list->next;
        while (fast != NULL && fast->next != NULL) {
            slow = slow->next;
            fast = fast->next->next;
        }
        part[1] = slow->next;
        slow->next = NULL;
        part[0] = list;
    }
    part[0] = dpari_nccl_sorted(part[0]);
    part[1] = dpari_nccl_sorted(part[1]);
    while (part[0] != NULL && part[1] != NULL) {
        k = part[1]->call.tag < part[0]->call.tag;
        *end = part[k];
        end = &part[k]->next;
        part[k] = part[k]->next;
    }
    *end = part[0] != NULL ? part[0] : part[1];
    return out;
}

/* Returns the first message of this kind, from `list` on, that a rank `me` sends to itself or
 * receives from itself. NULL if there is none. */
static dpar_work *dpari_nccl_with_self(dpar_work *list, int32_t kind, int32_t me)
{
    while (list != NULL && (list->call.kind != kind || list->call.root != me)) {
        list = list->next;
    }
    return list;
}

/* Copies the messages of this rank to itself: the i-th send of the sorted list to the i-th
 * receive. */
static void dpari_nccl_to_self(dpari_nccl_run *run, dpar_work *list)
{
    const int32_t me = run->c->comm.rank;
    dpar_work *give = dpari_nccl_with_self(list, DPAR_CALL_SEND, me);
    dpar_work *take = dpari_nccl_with_self(list, DPAR_CALL_RECV, me);
    while (give != NULL && take != NULL) {
        const char *letter = dpari_nccl_letter_of(give);
        char *box = dpari_nccl_letter_of(take);
        const void *from = letter != NULL ? (const void *)letter : give->call.in;
        void *to = box != NULL ? (void *)box : take->call.out;
        dpari_nccl_copy(run, to, from, dpari_nccl_bytes(give->call.type, give->call.count));
        give = dpari_nccl_with_self(give->next, DPAR_CALL_SEND, me);
        take = dpari_nccl_with_self(take->next, DPAR_CALL_RECV, me);
    }
}

/* Removes the messages that can be enqueued from the pending ones, and returns them. Messages of
 * this rank to itself are enqueued only in pairs; those whose other side is not posted yet stay in
 * *rest. */
static dpar_work *dpari_nccl_take_ready(dpari_nccl_ctx *context, dpar_work **rest)
{
    dpar_work *work, *next, *out = NULL, **end = &out, **left = rest;
    int32_t sends = 0, recvs = 0, meet;
    for (work = context->pending; work != NULL; work = work->next) {
        if (work->call.root == context->comm.rank) {
            sends += work->call.kind == DPAR_CALL_SEND;
            recvs += work->call.kind == DPAR_CALL_RECV;
        }
    }
    meet = sends < recvs ? sends : recvs;
    sends = recvs = 0;
    *rest = NULL;
    for (work = context->pending; work != NULL; work = next) {
        int32_t *seen = work->call.kind == DPAR_CALL_SEND ? &sends : &recvs;
        next = work->next;
        work->next = NULL;
        if (work->call.root == context->comm.rank && ++*seen > meet) {
            *left = work;
            left = &work->next;
            context->newest = work;
        } else {
            *end = work;
            end = &work->next;
        }
    }
    return out;
}

/* Checks that the sends of this rank to itself match its receives. */
static dpar_status dpari_nccl_self_fits(dpari_nccl_ctx *context, dpar_work *list)
{
    const int32_t me = context->comm.rank;
    dpar_work *give = dpari_nccl_with_self(list, DPAR_CALL_SEND, me);
    dpar_work *take = dpari_nccl_with_self(list, DPAR_CALL_RECV, me);
    while (give != NULL && take != NULL) {
        if (give->call.count != take->call.count || give->call.type != take->call.type ||
            give->call.tag != take->call.tag) {
            return dpari_nccl_broke(context, DPAR_E_MISMATCH,
                                    "a send of this rank to itself and its receive differ in "
                                    "count, type or tag");
        }
        give = dpari_nccl_with_self(give->next, DPAR_CALL_SEND, me);
        take = dpari_nccl_with_self(take->next, DPAR_CALL_RECV, me);
    }
    return DPAR_OK;
}

/* Enqueues a list of messages as one group, and then ends the operation of their slot. */
static dpar_status dpari_nccl_enqueue_group(dpari_nccl_ctx *context, dpari_nccl_slot *slot,
                                            dpar_work *list)
{
    dpari_nccl_run x;
    dpar_work *work;
    int32_t n = 0;
    dpari_nccl_run_init(&x, context, &slot->call);
    dpari_nccl_open(&x);
    for (work = list; work != NULL; work = work->next) {
        const dpar_call *call = &work->call;
        const int64_t bytes = dpari_nccl_bytes(call->type, call->count);
        char *letter = dpari_nccl_letter_of(work);
        if (call->root != context->comm.rank && call->kind == DPAR_CALL_SEND) {
            dpari_nccl_send_bytes(&x, letter != NULL ? letter : call->in, bytes, call->root);
        } else if (call->root != context->comm.rank) {
            dpari_nccl_recv_bytes(&x, letter != NULL ? letter : call->out, bytes, call->root);
        }
        n++;
    }
    dpari_nccl_shut(&x);
    dpari_nccl_to_self(&x, list);
    return dpari_nccl_end(slot, n, dpari_nccl_result(&x));
}

DPARI_INTERNAL dpar_status dpari_nccl_flush_one(dpari_nccl_ctx *context)
{
    dpar_work *list, *work, *rest = NULL;
    dpari_nccl_slot *slot;
    dpar_status status;
    if (context->pending == NULL) {
        return DPAR_OK;
    }
    context->newest = NULL;
    list = dpari_nccl_sorted(dpari_nccl_take_ready(context, &rest));
    context->pending = rest;
    if (list == NULL) {
        return DPAR_OK;
    }
    status = dpari_nccl_self_fits(context, list);
    slot = status >= 0 ? dpari_nccl_begin(context, &list->call, &status) : NULL;
    if (slot != NULL) {
        status = dpari_nccl_enqueue_group(context, slot, list);
    }
    while (list != NULL) {
        work = list;
        list = work->next;
        work->next = NULL;
        work->phase = DPARI_NCCL_ENQUEUED;
        if (status >= 0) {
            dpari_nccl_keep(work, slot);
        } else {
            dpari_nccl_finish(work, status);
        }
    }
    return status;
}

DPARI_INTERNAL void dpari_nccl_flush(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    for (context = world->comms; context != NULL; context = context->next) {
        if (context->pending != NULL) {
            (void)dpari_nccl_flush_one(context);
        }
    }
}
