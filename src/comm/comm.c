/* SPDX-License-Identifier: MIT-0 */
/* Implements the public functions of a communicator: they fill in a dpar_call, check it, and pass
 * it to the engine.
 *
 * dpari_post checks kind, type, counts, pointers and overlap of a call on this rank only; the
 * engine then compares the calls of all ranks. The file also writes messages about calls and tracks
 * posted work. It keeps a list of the handles that use a communicator, so that it can notify them
 * when the communicator is closed (engine.h). It does not depend on any engine: it calls every
 * engine through the table dpar_engine. */
#include "comm.h"

#include "../host/kernel.h"
#include "../index/index_private.h"
#include "engine.h"
#include "os.h"

/* ---- messages -------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_bad(dpar_comm *comm, const dpar_call *call,
                                             const char *what)
{
    return dpari_wrong(&comm->why, "%s: %s", dpar_call_name(call->kind), what);
}

static DPARI_COLD dpar_status dpari_comm_bad_number(dpar_comm *comm, const dpar_call *call,
                                                    const char *name, int64_t got,
                                                    const char *domain)
{
    return dpari_wrong(&comm->why, "%s: %s %ld is not %s", dpar_call_name(call->kind), name, got,
                       domain);
}

static DPARI_COLD dpar_status dpari_comm_bad_type(dpar_comm *comm, const dpar_call *call,
                                                  const char *domain)
{
    return dpari_wrong(&comm->why, "%s: type %s (%d) is not %s", dpar_call_name(call->kind),
                       dpar_type_name(call->type), call->type, domain);
}

/* Fails because an argument is NULL. Writes no message if the communicator is NULL. */
static DPARI_COLD dpar_status dpari_comm_null(dpar_comm *comm, const char *what)
{
    return dpari_repeat(DPAR_E_ARG, comm ? &comm->why : NULL, what);
}

DPARI_API DPARI_COLD const char *dpari_op_name(int32_t op)
{
    switch (op) {
    case DPAR_SUM: return "sum";
    case DPAR_AVG: return "avg";
    case DPAR_PRODUCT: return "product";
    case DPAR_MAX: return "max";
    case DPAR_MIN: return "min";
    default: return "copy";
    }
}

/* The plans that messages can name. Each entry is "=plan|text": the plan's name in the source and
 * the text that a user knows it by. The tag of a plan is INT32_MIN + the position of its text. */
static const char *dpari_plan_words(void)
{
    return "=grid|dpar_grid_make, _array, _attach, _gather or _scatter"
           "=grid exchange|a first dpar_grid_exchange=halo|a halo exchange=ddp|ddp"
           "=zero1|zero1=update refused|a rejected step=fsdp|fsdp"
           "=fsdp load|dpar_fsdp_load"
           "=pipeline|a pipeline=experts|experts=attention|an attention=spatial|a spatial layer"
           "=points|an exchange of points=transfers|dpar_transfers_exchange"
           "=redistribute|dpar_redistribute=dpar_comm_check_equal|dpar_comm_check_equal=";
}

DPARI_API DPARI_COLD int32_t dpari_plan_tag(const char *plan)
{
    const char *words = dpari_plan_words();
    for (const char *w = words; plan && *w != 0; w++) {
        int32_t length = 0;
        if (*w != '=') {
            continue;
        }
        while (plan[length] != 0 && w[1 + length] == plan[length]) {
            length++;
        }
        if (plan[length] == 0 && w[1 + length] == '|') {
            return INT32_MIN + (int32_t)(w - words) + 2 + length;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD int dpari_planning_text(dpar_text *text, int32_t kind, int64_t sequence,
                                             int32_t tag)
{
    const char *w = dpari_plan_words();
    int32_t at;
    if (tag >= DPARI_PLAN_TAGS || (kind != DPAR_CALL_ALL_REDUCE && kind != DPAR_CALL_BROADCAST)) {
        return 0;
    }
    at = tag - INT32_MIN; /* past the end if a user passed such a tag: the loop stops there */
    dpar_text_put(text, "the planning of ");
    for (; *w != 0 && at > 0; at--) {
        w++;
    }
    for (; *w != 0 && *w != '='; w++) {
        dpari_text_char(text, *w);
    }
    dpari_text_print(text, " (%s #%ld)", dpar_call_name(kind), sequence);
    return 1;
}

DPARI_API DPARI_COLD void dpari_operation_text(dpar_text *text, int32_t kind, int64_t sequence,
                                               int32_t type, int64_t count, int32_t root,
                                               int32_t tag)
{
    const int message = kind == DPAR_CALL_SEND || kind == DPAR_CALL_RECV;
    const int own = kind == DPAR_CALL_BARRIER;
    const char *name = dpar_call_name(kind);
    if (dpari_planning_text(text, kind, sequence, tag)) {
        return;
    }
    if (own && root == DPARI_SPLIT) {
        name = "split";
    } else if (own && root == DPARI_CLOSE) {
        name = "close";
    }
    dpar_text_put(text, name);
    if (!message) {
        dpari_text_print(text, " #%ld", sequence);
    }
    if (!own) {
        dpari_text_print(text, " of %ld %s", count, dpar_type_name(type));
    }
    if (message) {
        dpari_text_print(text, "%s%d", kind == DPAR_CALL_SEND ? " to " : " from ", root);
    }
}

/* ---- which arguments each kind uses ---------------------------------------------------------- */

DPARI_API int dpari_kind_reduces(int32_t kind)
{
    return kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE ||
           kind == DPAR_CALL_REDUCE_SCATTER;
}

DPARI_API int dpari_kind_rooted(int32_t kind)
{
    return kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_REDUCE || kind == DPAR_CALL_GATHER ||
           kind == DPAR_CALL_SCATTER;
}

DPARI_API int dpari_kind_sends(int32_t kind)
{
    return kind == DPAR_CALL_SEND || kind == DPAR_CALL_RECV;
}

/* True if this rank's `in` has one piece for each rank. The next function tests the same for
 * `out`. */
static int dpari_call_cuts_in(const dpar_comm *comm, const dpar_call *call)
{
    return call->kind == DPAR_CALL_REDUCE_SCATTER || call->kind == DPAR_CALL_ALL_TO_ALL ||
           (call->kind == DPAR_CALL_SCATTER && call->root == comm->rank);
}

static int dpari_call_cuts_out(const dpar_comm *comm, const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_GATHER || call->kind == DPAR_CALL_ALL_TO_ALL ||
           (call->kind == DPAR_CALL_GATHER && call->root == comm->rank);
}

DPARI_API int dpari_call_has_in(const dpar_comm *comm, const dpar_call *call)
{
    if (call->kind == DPAR_CALL_SCATTER || call->kind == DPAR_CALL_BROADCAST) {
        return call->root == comm->rank;
    }
    return call->kind != DPAR_CALL_BARRIER && call->kind != DPAR_CALL_RECV;
}

DPARI_API int dpari_call_has_out(const dpar_comm *comm, const dpar_call *call)
{
    if (call->kind == DPAR_CALL_REDUCE || call->kind == DPAR_CALL_GATHER) {
        return call->root == comm->rank;
    }
    return call->kind != DPAR_CALL_BARRIER && call->kind != DPAR_CALL_SEND;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_too_large(dpar_comm *comm, const dpar_call *call,
                                                   int64_t count)
{
    return dpari_say(DPAR_E_RANGE, &comm->why,
                     "%s: %ld elements of %s for %d ranks are more than 2^62 bytes",
                     dpar_call_name(call->kind), count, dpar_type_name(call->type), comm->size);
}

/* Fails if two pieces overlap. Pieces in ascending order are checked in one pass; only others are
 * compared pair by pair. */
static DPARI_COLD dpar_status dpari_pieces_overlap(dpar_comm *comm, const dpar_call *call,
                                                   const int64_t *count, const int64_t *begin)
{
    int32_t i, j, sorted = 1;
    for (i = 1; i < comm->size && sorted; i++) {
        sorted = begin[i] >= begin[i - 1] + count[i - 1];
    }
    for (i = 0; i < comm->size && !sorted; i++) {
        for (j = 0; j < i; j++) {
            if (count[i] > 0 && count[j] > 0 && begin[i] < begin[j] + count[j] &&
                begin[j] < begin[i] + count[i]) {
                return dpari_comm_bad_number(comm, call, "the piece from rank", i,
                                             "disjoint from the other pieces in out");
            }
        }
    }
    return DPAR_OK;
}

/* Checks pieces of different sizes in `in` or `out`. If `disjoint` is set, they must not overlap.
 * Sets *extent to the number of elements from the beginning of the buffer to the end of the last
 * piece. */
static DPARI_COLD dpar_status dpari_check_pieces(dpar_comm *comm, const dpar_call *call,
                                                 const int64_t *count, const int64_t *begin,
                                                 int disjoint, int64_t *extent)
{
    const int64_t most = (INT64_C(1) << 62) / dpar_type_bytes(call->type);
    int64_t sum = 0, end = 0;
    if (!count) {
        return dpari_comm_bad(comm, call, "the counts are NULL");
    }
    for (int32_t r = 0; r < comm->size; r++) {
        int64_t from = begin ? begin[r] : sum;
        if (count[r] < 0) {
            return dpari_comm_bad_number(comm, call, "a count of", count[r], ">= 0");
        }
        if (from < 0) {
            return dpari_comm_bad_number(comm, call, "a begin of", from, ">= 0");
        }
        if (count[r] > most || from > most - count[r] || sum > most - count[r]) {
            return dpari_comm_too_large(comm, call, count[r]);
        }
        sum += count[r];
        end = count[r] > 0 && from + count[r] > end ? from + count[r] : end;
    }
    *extent = end;
    return begin && disjoint ? dpari_pieces_overlap(comm, call, count, begin) : DPAR_OK;
}

/* Computes how many elements this rank's `in` and `out` must have; 0 if this rank does not use
 * them. */
static dpar_status dpari_call_extents(dpar_comm *comm, const dpar_call *call, int64_t *in,
                                      int64_t *out)
{
    int cut_in = dpari_call_cuts_in(comm, call), cut_out = dpari_call_cuts_out(comm, call);
    dpar_status s = DPAR_OK;
    *in = cut_in ? call->count * comm->size : call->count;
    *out = cut_out ? call->count * comm->size : call->count;
    if (call->variable_counts && cut_in) {
        s = dpari_check_pieces(comm, call, call->in_count, call->in_first, 0, in);
    }
    if (call->variable_counts && cut_out && s == DPAR_OK) {
        s = dpari_check_pieces(comm, call, call->out_count, call->out_first, 1, out);
    }
    *in = dpari_call_has_in(comm, call) ? *in : 0;
    *out = dpari_call_has_out(comm, call) ? *out : 0;
    return s;
}

/* Returns the offset, in elements, of this rank's own piece in the buffer that `count` and `begin`
 * describe. */
static int64_t dpari_piece_begin(const dpar_comm *comm, const dpar_call *call, const int64_t *count,
                                 const int64_t *begin)
{
    int64_t sum = 0;
    if (!call->variable_counts) {
        return call->count * comm->rank;
    }
    for (int32_t r = 0; r < comm->rank && !begin; r++) {
        sum += count[r];
    }
    return begin ? begin[comm->rank] : sum;
}

/* True if the pieces of `in` have the same sizes and offsets as those of `out`. */
static int dpari_same_pieces(const dpar_comm *comm, const dpar_call *call)
{
    int64_t in = 0, out = 0;
    for (int32_t r = 0; r < comm->size && call->variable_counts; r++) {
        const int64_t in_first = call->in_first ? call->in_first[r] : in;
        const int64_t out_first = call->out_first ? call->out_first[r] : out;
        if (call->in_count[r] != call->out_count[r] || in_first != out_first) {
            return 0;
        }
        in += call->in_count[r];
        out += call->out_count[r];
    }
    return 1;
}

/* True if `in` and `out` are at the addresses that an in-place call of this kind requires: at the
 * same address, or the smaller buffer at this rank's own piece of the larger one. */
static int dpari_call_in_place(const dpar_comm *comm, const dpar_call *call)
{
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    const uintptr_t unit = (uintptr_t)dpar_type_bytes(call->type);
    switch (call->kind) {
    case DPAR_CALL_ALL_TO_ALL: return in == out && dpari_same_pieces(comm, call);
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_GATHER:
        return in == out + unit * (uintptr_t)dpari_piece_begin(comm, call, call->out_count,
                                                               call->out_first);
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_SCATTER:
        return out ==
               in + unit * (uintptr_t)dpari_piece_begin(comm, call, call->in_count, call->in_first);
    default: return in == out;
    }
}

static dpar_status dpari_check_memory(dpar_comm *comm, const dpar_call *call)
{
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    const uintptr_t unit = (uintptr_t)dpar_type_bytes(call->type);
    int64_t holds_in = 0, holds_out = 0;
    dpar_status s = dpari_call_extents(comm, call, &holds_in, &holds_out);
    if (s != DPAR_OK) {
        return s;
    }
    if (holds_in > 0 && !call->in) {
        return dpari_comm_bad(comm, call, "in is NULL");
    }
    if (holds_out > 0 && !call->out) {
        return dpari_comm_bad(comm, call, "out is NULL");
    }
    if (holds_in > 0 && holds_out > 0 && in < out + unit * (uintptr_t)holds_out &&
        out < in + unit * (uintptr_t)holds_in && !dpari_call_in_place(comm, call)) {
        return dpari_comm_bad(comm, call,
                              "in and out overlap, but not as an in-place call requires");
    }
    return DPAR_OK;
}

/* Checks a call against the size of its communicator. On failure the message is in comm->why. */
static dpar_status dpari_call_check(dpar_comm *comm, const dpar_call *call)
{
    int32_t unit = dpar_type_bytes(call->type);
    if (call->kind <= DPAR_CALL_NONE || call->kind >= DPAR_CALL_COUNT ||
        call->kind == DPAR_CALL_SEND_RECV) {
        return dpari_comm_bad_number(comm, call, "kind", call->kind, "an operation");
    }
    if (call->kind == DPAR_CALL_BARRIER) {
        return DPAR_OK;
    }
    if (dpari_kind_reduces(call->kind)) {
        if (!dpari_type_can_reduce(call->type)) {
            return dpari_comm_bad_type(comm, call, "a type that can be reduced");
        }
        if (call->op <= DPAR_COPY || call->op >= DPAR_OP_COUNT) {
            return dpari_comm_bad_number(comm, call, "op", call->op,
                                         "DPAR_SUM, AVG, PRODUCT, MAX or MIN");
        }
    } else if (unit == 0) {
        return dpari_comm_bad_type(comm, call, "a type with elements of whole bytes");
    }
    if ((dpari_kind_rooted(call->kind) || dpari_kind_sends(call->kind)) &&
        (call->root < 0 || call->root >= comm->size)) {
        return dpari_comm_bad_number(comm, call, dpari_kind_rooted(call->kind) ? "root" : "peer",
                                     call->root, "a rank of this communicator");
    }
    if (dpari_kind_sends(call->kind) && call->tag < 0) {
        return dpari_comm_bad_number(comm, call, "tag", call->tag, ">= 0");
    }
    if (call->count < 0) {
        return dpari_comm_bad_number(comm, call, "count", call->count, ">= 0");
    }
    /* smaller counts are below 2^62 bytes for any number of ranks, and need no divisions */
    if (call->count > 1 << 26 && call->count > (INT64_C(1) << 62) / unit / comm->size) {
        return dpari_comm_too_large(comm, call, call->count);
    }
    return dpari_check_memory(comm, call);
}

/* ---- counting the bytes sent to other ranks -------------------------------------------------- */

/* Counts the elements of all pieces except this rank's own. Pieces may have different sizes. */
static int64_t dpari_sent_pieces(const dpar_comm *comm, const dpar_call *call)
{
    int64_t sum = 0;
    int32_t r;
    if (!call->variable_counts) {
        return call->count * (comm->size - 1);
    }
    for (r = 0; call->in_count && r < comm->size; r++) {
        sum += r != comm->rank ? call->in_count[r] : 0;
    }
    return sum;
}

static int64_t dpari_sent_elements(const dpar_comm *comm, const dpar_call *call)
{
    const int64_t others = comm->size - 1, n = call->count;
    const int root = call->root == comm->rank;
    int64_t own;
    switch (call->kind) {
    case DPAR_CALL_ALL_REDUCE:
        own = n / comm->size + (comm->rank < n % comm->size);
        return n - own + others * own;
    case DPAR_CALL_ALL_GATHER: return others * n;
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_ALL_TO_ALL: return dpari_sent_pieces(comm, call);
    case DPAR_CALL_BROADCAST: return root ? others * n : 0;
    case DPAR_CALL_SCATTER: return root ? dpari_sent_pieces(comm, call) : 0;
    case DPAR_CALL_REDUCE:
    case DPAR_CALL_GATHER:
    case DPAR_CALL_SEND: return root ? 0 : n;
    default: return 0;
    }
}

/* Returns the bytes that a call adds to comm->sent (comm.h). */
static int64_t dpari_call_sent(const dpar_comm *comm, const dpar_call *call)
{
    return comm && call && comm->size > 1
               ? dpari_sent_elements(comm, call) * dpar_type_bytes(dpari_kern_wire(call->type))
               : 0;
}

/* Adds the call to comm->sent if the engine accepted it. Returns s. */
static dpar_status dpari_counted(dpar_comm *comm, const dpar_call *call, dpar_status s)
{
    if (s == DPAR_OK) {
        comm->sent[call->kind] += dpari_call_sent(comm, call);
    }
    return s;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_work_is_busy(dpar_comm *comm, const dpar_work *work)
{
    return dpari_wrong(&comm->why,
                       "this work is still in progress (%s): wait for it before you post it again",
                       dpar_call_name(work->call.kind));
}

/* True if the operation is in progress. Memory that was never posted may contain any bytes, but not
 * its own address in `self`. */
static int dpari_is_in_progress(const dpar_work *work)
{
    return work->comm && work->self == work;
}

/* Prepares memory that may never have been posted, before the engine uses it. From here on, `comm`
 * is NULL unless the operation is in progress. */
static void dpari_work_mark(dpar_work *work)
{
    if (work->self != work) {
        work->self = work;
        work->comm = NULL;
    }
}

/* Stores the status of an operation that could not be posted, so that a later wait returns it. */
static DPARI_COLD dpar_status dpari_not_posted(dpar_work *work, dpar_status s)
{
    if (s != DPAR_OK && work && !dpari_is_in_progress(work)) {
        work->comm = NULL;
        work->status = s;
    }
    return s;
}

/* Checks a call, and that `work` can be posted, unless it is NULL. */
static dpar_status dpari_post_check(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    /* a thread of the engine may have set it; it writes comm->why first */
    dpar_status s = DPARI_LOAD(&comm->status);
    if (s == DPAR_OK) {
        s = dpari_call_check(comm, call);
    }
    if (s == DPAR_OK && work && dpari_is_in_progress(work)) {
        s = dpari_work_is_busy(comm, work);
    }
    return dpari_not_posted(work, s);
}

DPARI_API dpar_status dpari_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpar_status s;
    if (!comm || !call) {
        return dpari_not_posted(work, dpari_comm_null(comm, "post: the call is NULL"));
    }
    s = dpari_post_check(comm, call, work);
    if (s != DPAR_OK) {
        return s;
    }
    if (!work) {
        return dpari_counted(comm, call, comm->engine.run(comm, call));
    }
    dpari_work_mark(work);
    return dpari_counted(comm, call, dpari_not_posted(work, comm->engine.post(comm, call, work)));
}

static dpar_status dpari_batch_check(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                     dpar_work *works)
{
    dpar_status s = DPARI_LOAD(&comm->status);
    for (int32_t i = 0; i < n && s == DPAR_OK; i++) {
        if (!dpari_kind_sends(calls[i].kind)) {
            return dpari_comm_bad(comm, &calls[i],
                                  "a batch takes only DPAR_CALL_SEND and DPAR_CALL_RECV");
        }
        s = dpari_post_check(comm, &calls[i], works ? &works[i] : NULL);
    }
    return s;
}

DPARI_API dpar_status dpari_batch_checked(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                          dpar_work *works)
{
    dpar_status s = DPARI_LOAD(&comm->status);
    for (int32_t i = 0; works && i < n; i++) {
        dpari_work_mark(&works[i]);
    }
    if (s == DPAR_OK && n > 0) {
        s = comm->engine.batch(comm, calls, n, works);
    }
    for (int32_t i = 0; i < n && s == DPAR_OK; i++) {
        if (calls[i].kind == DPAR_CALL_SEND) {
            comm->sent[DPAR_CALL_SEND] += dpari_call_sent(comm, &calls[i]);
        }
    }
    return s;
}

DPAR_API dpar_status dpar_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                dpar_work *works)
{
    dpar_status s;
    if (!comm || n < 0 || (n > 0 && !calls)) {
        return dpari_comm_null(comm, "batch: the number of calls is negative, or calls is NULL");
    }
    s = dpari_batch_check(comm, calls, n, works);
    if (s == DPAR_OK) {
        return dpari_batch_checked(comm, calls, n, works);
    }
    for (int32_t i = 0; i < n && works; i++) {
        dpari_not_posted(&works[i], s);
    }
    return s;
}

DPAR_API dpar_status dpar_test(dpar_work *work)
{
    dpar_comm *comm;
    if (!work) {
        return DPAR_E_ARG;
    }
    comm = DPARI_LOAD(&work->comm); /* a progress thread may finish it meanwhile */
    if (comm && work->self != work) {
        return DPAR_E_ARG;
    }
    return comm ? comm->engine.test(work) : work->status;
}

DPAR_API dpar_status dpar_wait(dpar_work *work)
{
    dpar_comm *comm;
    if (!work) {
        return DPAR_E_ARG;
    }
    comm = DPARI_LOAD(&work->comm);
    if (comm && work->self != work) {
        return DPAR_E_ARG;
    }
    return comm ? comm->engine.wait(work) : work->status;
}

DPAR_API dpar_status dpar_wait_all(dpar_work *works, int32_t n)
{
    dpar_status first = !works && n > 0 ? DPAR_E_ARG : DPAR_OK;
    for (int32_t i = 0; works && i < n; i++) {
        dpar_status s = dpar_wait(&works[i]);
        if (first == DPAR_OK) {
            first = s;
        }
    }
    return first;
}

/* ---- operations that post their messages step by step (engine.h) ----------------------------- */

DPARI_API void dpari_rest_leave(dpar_comm *comm, dpari_rest *post, void *operation)
{
    comm->post_pending = post;
    comm->pending_owner = operation;
}

DPARI_API dpar_status dpari_rest_post(dpar_comm *comm)
{
    dpari_rest *post = comm->post_pending;
    void *operation = comm->pending_owner;
    dpari_rest_leave(comm, NULL, NULL);
    return post ? post(operation) : DPAR_OK;
}

DPARI_API void dpari_rest_drop(dpar_comm *comm, const void *operation)
{
    if (comm->pending_owner == operation) {
        dpari_rest_leave(comm, NULL, NULL);
    }
}

/* ---- the operations: each describes its arguments in a dpar_call ----------------------------- */

DPARI_API dpar_call dpari_call(int32_t kind, const void *in, void *out, int64_t count, int32_t type)
{
    dpar_call call = {0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL};
    call.kind = kind;
    call.in = in;
    call.out = out;
    call.count = count;
    call.type = type;
    return call;
}

DPAR_API dpar_status dpar_barrier(dpar_comm *comm, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_BARRIER, NULL, NULL, 0, DPAR_U8);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_broadcast(dpar_comm *comm, void *buffer, int64_t count, int32_t type,
                                    int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_BROADCAST, buffer, buffer, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE, in, out, count, type);
    call.op = op;
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, in, out, count, type);
    call.op = op;
    return dpari_post(comm, &call, work);
}

DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *comm, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, data, data, count, DPAR_F32);
    dpar_status s;
    call.op = op;
    s = dpari_post_check(comm, &call, work);
    if (s != DPAR_OK) {
        return s;
    }
    dpari_work_mark(work);
    call.type = DPARI_KERN_THROUGH(wire);
    return dpari_counted(comm, &call, dpari_not_posted(work, comm->engine.post(comm, &call, work)));
}

DPAR_API dpar_status dpar_all_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, in, out, count, type);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                         int32_t type, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE_SCATTER, in, out, count, type);
    call.op = op;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_to_all(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_TO_ALL, in, out, count, type);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_GATHER, in, out, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                  int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SCATTER, in, out, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_gather_v(dpar_comm *comm, const void *in, void *out,
                                       const int64_t *count, const int64_t *first, int32_t type,
                                       dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, in, out, 0, type);
    call.variable_counts = 1;
    call.count = comm && count ? count[comm->rank] : 0;
    call.out_count = count;
    call.out_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce_scatter_v(dpar_comm *comm, const void *in, void *out,
                                           const int64_t *count, int32_t type, int32_t op,
                                           dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE_SCATTER, in, out, 0, type);
    call.variable_counts = 1;
    call.op = op;
    call.count = comm && count ? count[comm->rank] : 0;
    call.in_count = count;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_to_all_v(dpar_comm *comm, const void *in, const int64_t *in_count,
                                       const int64_t *in_first, void *out, const int64_t *out_count,
                                       const int64_t *out_first, int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_TO_ALL, in, out, 0, type);
    call.variable_counts = 1;
    call.in_count = in_count;
    call.in_first = in_first;
    call.out_count = out_count;
    call.out_first = out_first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_gather_v(dpar_comm *comm, const void *in, int64_t in_count, void *out,
                                   const int64_t *count, const int64_t *first, int32_t type,
                                   int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_GATHER, in, out, in_count, type);
    call.variable_counts = 1;
    call.root = root;
    call.out_count = count;
    call.out_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_scatter_v(dpar_comm *comm, const void *in, const int64_t *count,
                                    const int64_t *first, void *out, int64_t out_count,
                                    int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SCATTER, in, out, out_count, type);
    call.variable_counts = 1;
    call.root = root;
    call.in_count = count;
    call.in_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_send(dpar_comm *comm, const void *in, int64_t count, int32_t type,
                               int32_t to, int32_t tag, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SEND, in, NULL, count, type);
    call.root = to;
    call.tag = tag;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_recv(dpar_comm *comm, void *out, int64_t count, int32_t type,
                               int32_t from, int32_t tag, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_RECV, NULL, out, count, type);
    call.root = from;
    call.tag = tag;
    return dpari_post(comm, &call, work);
}

/* ---- groups, closed communicators, memory, reports ------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_comm_split(dpar_comm *comm, int32_t color, int32_t key,
                                                dpar_comm **out)
{
    dpar_status st;
    if (!comm || !out) {
        return dpari_comm_null(comm, "split: out is NULL");
    }
    st = DPARI_LOAD(&comm->status);
    if (st == DPAR_OK) {
        st = comm->engine.split(comm, color, key, out);
    }
    if (st == DPAR_OK && *out) {
        (*out)->mem = comm->mem;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_split_axes(dpar_comm *comm, const dpar_mesh *mesh,
                                                     uint32_t axes, dpar_comm **out)
{
    int32_t coord[DPAR_MAX_AXES], color = -1, key = 0;
    int64_t last = 0;
    if (!comm || !mesh || !out) {
        return dpari_comm_null(comm, "split: the mesh or out is NULL");
    }
    for (int32_t a = 0; a < mesh->axes; a++) {
        last += (int64_t)(mesh->axis[a].size - 1) * mesh->axis[a].stride;
    }
    if (!dpari_mesh_injective(mesh) || mesh->first_rank < 0 ||
        mesh->first_rank + last >= comm->size) {
        return dpari_wrong(&comm->why,
                           "split: the mesh's ranks %d to %ld are outside this communicator of %d "
                           "ranks, or occur twice",
                           mesh->first_rank, mesh->first_rank + last, comm->size);
    }
    if (dpar_mesh_coords(mesh, comm->rank, coord)) {
        color = dpar_mesh_group_index(mesh, ~axes, comm->rank);
        key = dpar_mesh_group_index(mesh, axes, comm->rank);
    }
    return dpar_comm_split(comm, color, key, out);
}

DPAR_API DPARI_COLD dpar_status dpar_comm_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                                 dpar_why *why)
{
    dpar_status st;
    if (!comm || !out) {
        return dpari_wrong(why, "shrink: the communicator or out is NULL");
    }
    if (!comm->engine.shrink) {
        return dpari_say(DPAR_E_SYSTEM, why,
                         "shrink: the engine %s cannot continue without the ranks that failed",
                         comm->engine.name);
    }
    st = comm->engine.shrink(comm, out, was, why);
    if (st == DPAR_OK) {
        (*out)->mem = comm->mem;
    }
    return st;
}

/* The dpari_ended_x functions are the engine of a closed communicator. */
static DPARI_COLD dpar_status dpari_ended_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                                 dpar_why *why)
{
    const dpar_why closed = comm->why; /* a copy, because why may be &comm->why */
    (void)out;
    (void)was;
    return dpari_say(comm->status, why, "shrink: %s", closed.text);
}

static dpar_status dpari_ended_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    (void)bytes;
    *memory = NULL;
    return comm->status;
}

static void dpari_ended_release(dpar_comm *comm, void *memory)
{
    (void)comm;
    (void)memory;
}

static dpar_status dpari_ended_progress(dpar_comm *comm, int32_t on)
{
    (void)on;
    return comm->status;
}

static void dpari_ended_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    (void)comm;
    (void)status;
    (void)text;
}

static void dpari_ended_report(dpar_comm *comm, dpar_text *out)
{
    dpari_text_print(out, "%s\n", comm->why.text);
}

static void dpari_ended_describe(dpar_comm *comm, dpar_text *out)
{
    (void)comm;
    dpar_text_put(out, ", closed");
}

static dpar_status dpari_ended_close(dpar_comm *comm)
{
    (void)comm;
    return DPAR_E_ARG;
}

DPARI_API DPARI_COLD int dpari_ended_is(const dpar_comm *comm)
{
    return comm->engine.close == dpari_ended_close;
}

DPARI_API DPARI_COLD void dpari_on_end_add(dpar_comm *comm, dpari_on_end *e)
{
    e->next = comm->ends;
    comm->ends = e;
}

DPARI_API DPARI_COLD void dpari_on_end_drop(dpar_comm *comm, const dpari_on_end *e)
{
    dpari_on_end **link = comm ? &comm->ends : NULL;
    while (link && *link) {
        if (*link == e) {
            *link = e->next;
            return;
        }
        link = &(*link)->next;
    }
}

DPARI_API DPARI_COLD void dpari_on_end_all(dpar_comm *comm)
{
    for (; comm && comm->ends; comm->ends = comm->ends->next) {
        *comm->ends->at = NULL;
    }
}

/* Replaces the engine's functions that are called without a check of comm->status. Callers of the
 * others, such as run and post, check it first. */
DPARI_API DPARI_COLD dpar_comm *dpari_ended_keep(dpari_ended *closed, dpar_comm *comm)
{
    dpar_comm **at = &closed->last[closed->count++ % DPARI_ENDED], *gone = *at;
    *at = comm;
    (void)dpari_wrong(&comm->why, "this communicator was closed before");
    DPARI_STORE(&comm->status, (dpar_status)DPAR_E_ARG);
    comm->engine.shrink = dpari_ended_shrink;
    comm->engine.alloc = dpari_ended_alloc;
    comm->engine.release = dpari_ended_release;
    comm->engine.progress = dpari_ended_progress;
    comm->engine.abort = dpari_ended_abort;
    comm->engine.report = dpari_ended_report;
    comm->engine.describe = dpari_ended_describe;
    comm->engine.close = dpari_ended_close;
    dpari_on_end_all(gone);
    return gone;
}

DPARI_API DPARI_COLD dpar_comm *dpari_ended_take(dpari_ended *closed)
{
    for (int32_t i = 0; i < DPARI_ENDED; i++) {
        dpar_comm *comm = closed->last[i];
        closed->last[i] = NULL;
        if (comm) {
            dpari_on_end_all(comm);
            return comm;
        }
    }
    return NULL;
}

DPAR_API dpar_status dpar_comm_free(dpar_comm *comm)
{
    return comm ? comm->engine.close(comm) : DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    if (!comm || !memory) {
        return dpari_comm_null(comm, "alloc: memory is NULL");
    }
    if (bytes < 0) {
        return dpari_wrong(&comm->why, "alloc: %ld bytes cannot be allocated", bytes);
    }
    return comm->engine.alloc(comm, bytes, memory);
}

DPAR_API void dpar_comm_release(dpar_comm *comm, void *memory)
{
    if (comm && memory) {
        comm->engine.release(comm, memory);
    }
}

DPAR_API dpar_status dpar_comm_progress(dpar_comm *comm, int32_t on)
{
    return comm ? comm->engine.progress(comm, on) : DPAR_E_ARG;
}

DPAR_API void dpar_comm_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    if (!comm) {
        return;
    }
    if (status >= 0) {
        status = DPAR_E_PEER;
    }
    comm->engine.abort(comm, status, text ? text : "aborted");
}

DPAR_API DPARI_COLD void dpar_comm_describe(dpar_comm *comm, dpar_text *out)
{
    if (comm && out) {
        dpari_text_print(out, "%s: %d%s", comm->engine.name, comm->size,
                         comm->size == 1 ? " rank" : " ranks");
        if (comm->engine.describe) {
            comm->engine.describe(comm, out);
        }
    }
}

DPAR_API DPARI_COLD void dpar_comm_report(dpar_comm *comm, dpar_text *out)
{
    if (comm && out) {
        comm->engine.report(comm, out);
    }
}
