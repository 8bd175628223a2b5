/* SPDX-License-Identifier: MIT-0 */
/* Breaks communicators, and exchanges notes in long waits.
 *
 * A rank that waits for long sends all other ranks a note with its call, and again from time to
 * time. Each rank compares the notes that it receives with its own call: another call with the same
 * number is a mismatch, and at the deadline the ranks that sent nothing are the missing ones. A
 * rank whose communicator breaks sends the reason in the same way. Notes are sent without waiting,
 * from a buffer for each receiver, and counted, so that closing can receive the last of them. */
#include "notes.h"

#include "../comm/group.h"
#include "../comm/os.h"
#include "error_text.h"

static int32_t dpari_mpi_letter_gone(dpari_mpi_letter *l)
{
    int done = 0;
    return MPI_Test(&l->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

DPARI_INTERNAL int32_t dpari_mpi_letters_gone(const dpari_mpi_ctx *context)
{
    int32_t r, all = 1;
    for (r = 0; r < context->comm.size; r++) {
        all &= context->waiting == NULL || dpari_mpi_letter_gone(&context->waiting[r]);
        all &= context->broken == NULL || dpari_mpi_letter_gone(&context->broken[r]);
    }
    return all;
}

/* Sends `note`, without waiting, to every other rank that has received the previous note in
 * `letters`. */
static void dpari_mpi_tell(dpari_mpi_ctx *context, dpari_mpi_letter **letters,
                           const dpari_mpi_note *note)
{
    int32_t r, n = context->comm.size;
    if (n > DPARI_MPI_RANKS_TOLD || n == 1) {
        return;
    }
    if (context->told == NULL) {
        context->told = (int32_t *)calloc((size_t)n, sizeof *context->told);
    }
    if (*letters == NULL && context->told != NULL) {
        *letters = (dpari_mpi_letter *)malloc((size_t)n * sizeof(dpari_mpi_letter));
        for (r = 0; *letters != NULL && r < n; r++) {
            (*letters)[r].sent = MPI_REQUEST_NULL;
        }
    }
    for (r = 0; *letters != NULL && r < n; r++) {
        dpari_mpi_letter *l = &(*letters)[r];
        if (r != context->comm.rank && dpari_mpi_letter_gone(l)) {
            l->note = *note;
            MPI_Isend(&l->note, (int)sizeof l->note, MPI_BYTE, r, DPARI_MPI_TAG_NOTE, context->side,
                      &l->sent);
            context->told[r]++;
        }
    }
}

/* Writes "rank 3 on n2 says: the disk is full". */
static void dpari_mpi_put_says(dpar_why *why, const dpari_mpi_ctx *context, int32_t rank,
                               const char *text)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpari_mpi_put_rank(&t, context, rank);
    dpar_text_put(&t, " says: ");
    dpar_text_put(&t, text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_mpi_break(dpari_mpi_ctx *context, dpar_status status,
                                                      const char *text, int tell)
{
    dpari_mpi_note note;
    dpar_text t;
    if (context->comm.status < 0) {
        return context->comm.status;
    }
    context->comm.status = status;
    (void)dpari_repeat(status, &context->comm.why, text);
    if (tell) {
        memset(&note, 0, sizeof note);
        note.call.state = status;
        dpar_text_init(&t, note.text, sizeof note.text);
        dpar_text_put(&t, context->comm.why.text);
        dpari_mpi_tell(context, &context->broken, &note);
    }
    context->inward = context->comm.why;
    if (tell) {
        dpari_mpi_put_says(&context->inward, context, context->comm.rank, context->comm.why.text);
    }
    if (context->level.inside != NULL) {
        dpar_comm_abort(context->level.inside, status, context->inward.text);
    }
    return status;
}

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
/* Appends ", rank 3 has died" for up to 8 ranks that MPI knows to have failed. */
static void dpari_mpi_put_dead(const dpari_mpi_ctx *context, dpar_why *why)
{
    const dpar_why said = *why;
    MPI_Group gone, all;
    dpar_text t;
    int n = 0, i, rank;
    dpari_text_why(&t, why);
    dpar_text_put(&t, said.text);
    MPIX_Comm_get_failed(context->main, &gone);
    MPI_Comm_group(context->main, &all);
    MPI_Group_size(gone, &n);
    for (i = 0; i < n && i < 8; i++) {
        MPI_Group_translate_ranks(gone, 1, &i, all, &rank);
        dpar_text_put(&t, ", ");
        dpari_mpi_put_rank(&t, context, (int32_t)rank);
        dpar_text_put(&t, " has died");
    }
    MPI_Group_free(&gone);
    MPI_Group_free(&all);
}
#endif

DPARI_INTERNAL dpar_status dpari_mpi_failed(dpari_mpi_ctx *context, const dpari_mpi_task *task,
                                            const char *doing, int code)
{
    char words[100];
    dpar_text t;
    dpar_why why;
    if (code == MPI_SUCCESS) {
        return DPAR_OK;
    }
    if (task != NULL) {
        dpar_text_init(&t, words, sizeof words);
        dpari_mpi_describe_task(&t, task);
        doing = words;
    }
    (void)dpari_mpi_say(&why, doing, code);
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    if (dpari_mpi_status_of(code) == DPAR_E_PEER) {
        dpari_mpi_put_dead(context, &why);
    }
#endif
    return dpari_mpi_break(context, dpari_mpi_status_of(code), why.text, 1);
}

/* Stores a note from another rank. If the note reports a broken communicator, breaks this rank's,
 * too. */
static void dpari_mpi_hear(dpari_mpi_ctx *context, const dpari_mpi_note *note)
{
    dpar_why why;
    if (note->call.state < 0) {
        dpari_mpi_put_says(&why, context, note->rank, note->text);
        dpari_mpi_break(context, note->call.state, why.text, 0);
        return;
    }
    if (context->heard == NULL) {
        context->heard =
            (dpari_mpi_note *)calloc((size_t)context->comm.size, sizeof(dpari_mpi_note));
    }
    if (context->heard != NULL && note->rank >= 0 && note->rank < context->comm.size) {
        context->heard[note->rank] = *note;
    }
}

DPARI_INTERNAL void dpari_mpi_listen(dpari_mpi_ctx *context)
{
    dpari_mpi_note note;
    int there = 1;
    while (there) {
        MPI_Status status;
        there = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, DPARI_MPI_TAG_NOTE, context->side, &there, &status) !=
                MPI_SUCCESS ||
            !there ||
            MPI_Recv(&note, (int)sizeof note, MPI_BYTE, status.MPI_SOURCE, DPARI_MPI_TAG_NOTE,
                     context->side, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return;
        }
        note.rank = status.MPI_SOURCE;
        note.text[sizeof note.text - 1] = 0;
        context->notes++;
        dpari_mpi_hear(context, &note);
    }
}

/* Discards notes about collectives up to `sequence`: their senders may have finished them by
 * now. */
static void dpari_mpi_forget(dpari_mpi_ctx *context, int64_t sequence)
{
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        if (context->heard[r].call.sequence <= sequence) {
            context->heard[r].call.sequence = 0;
        }
    }
}

/* True if `rank` has reported that it waits in the same call as this task. */
static int32_t dpari_mpi_waits_with(const dpari_mpi_task *task, int32_t rank)
{
    const dpari_record *h = task->ctx->heard == NULL ? NULL : &task->ctx->heard[rank].call;
    const dpari_record mine = dpari_mpi_record_of(task);
    return h != NULL && h->sequence == task->sequence + 1 &&
           dpari_record_same(h, &mine, !task->call.variable_counts);
}

/* Breaks the communicator if a rank has reported another call than this task's as the collective
 * with the same number. */
static void dpari_mpi_compare_heard(const dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        dpari_record mine, other = context->heard[r].call;
        dpar_why why;
        dpar_text s;
        if (dpari_kind_sends(task->call.kind) || dpari_kind_sends(other.kind) ||
            other.sequence != task->sequence + 1 || dpari_mpi_waits_with(task, r)) {
            continue;
        }
        mine = dpari_mpi_record_of(task);
        other.sequence = mine.sequence;
        dpari_text_why(&s, &why);
        if (r < context->comm.rank) {
            dpari_mpi_put_calls(&s, context, r, &other, context->comm.rank, &mine);
        } else {
            dpari_mpi_put_calls(&s, context, context->comm.rank, &mine, r, &other);
        }
        dpari_mpi_break(context, DPAR_E_MISMATCH, why.text, 1);
        return;
    }
}

/* With `waiting`, writes the ranks that wait in the same call ("1, 3"), otherwise the ranks that
 * have reported nothing, with their nodes ("1 on n1, 2, 3 on n2"). Writes at most 8 of them, and
 * returns how many there are. */
static int32_t dpari_mpi_put_ranks(dpar_text *text, const dpari_mpi_task *task, int32_t waiting)
{
    const dpari_mpi_ctx *context = task->ctx;
    const char *host = NULL;
    int32_t r, n = 0;
    for (r = 0; r < context->comm.size; r++) {
        int32_t quiet = context->heard == NULL || context->heard[r].call.sequence == 0;
        if (r == context->comm.rank || (waiting ? !dpari_mpi_waits_with(task, r) : !quiet)) {
            continue;
        }
        if (n < 8) {
            const char *before = host;
            host = waiting ? NULL : dpari_mpi_host(context, r);
            if (before != host) {
                dpari_mpi_put_host(text, before);
            }
            dpar_text_put(text, n > 0 ? ", " : "");
            dpari_text_int(text, r);
        } else if (n == 8) {
            dpari_mpi_put_host(text, host);
            host = NULL;
            dpar_text_put(text, ", ...");
        }
        n++;
    }
    dpari_mpi_put_host(text, host);
    if (n == 0) {
        dpar_text_put(text, "none");
    }
    return n;
}

/* Writes the call of the first rank that waits in another call than this task. */
static void dpari_mpi_put_elsewhere(dpar_text *text, const dpari_mpi_task *task)
{
    const dpari_mpi_ctx *context = task->ctx;
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        const dpari_record *h = &context->heard[r].call;
        if (h->sequence != 0 && !dpari_mpi_waits_with(task, r)) {
            dpar_text_put(text, "; ");
            dpari_mpi_put_rank(text, context, r);
            dpar_text_put(text, " waits in ");
            dpari_mpi_describe_note(text, h);
            return;
        }
    }
}

/* The deadline has passed: breaks the communicator with a message that names the missing ranks. */
static void dpari_mpi_late(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpari_text_print(&t, " on rank %d of %d: not finished after %.3g s; ", context->comm.rank,
                     context->comm.size, context->comm.timeout_s);
    if (context->comm.size > DPARI_MPI_RANKS_TOLD) {
        dpar_text_put(&t, "MPI cannot tell which rank is missing");
    } else {
        dpar_text_put(&t, "nothing heard from ranks: ");
        dpari_mpi_put_ranks(&t, task, 0);
        if (!dpari_kind_sends(task->call.kind)) {
            dpar_text_put(&t, "; also waiting in it: ");
            dpari_mpi_put_ranks(&t, task, 1);
        }
        dpari_mpi_put_elsewhere(&t, task);
    }
    dpari_mpi_break(context, DPAR_E_TIMEOUT, why.text, 1);
}

/* Tells the other ranks that this rank waits in the task's call. */
static void dpari_mpi_announce(dpari_mpi_task *task)
{
    dpari_mpi_note note;
    memset(&note, 0, sizeof note);
    note.call = dpari_mpi_record_of(task);
    note.call.sequence++;
    dpari_mpi_tell(task->ctx, &task->ctx->waiting, &note);
}

/* Breaks the communicator if a rank of this node has ended, even if the task waits for another
 * rank. */
static void dpari_mpi_look_for_ended(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpar_text_put(&t, ": ");
    if (context->level.inside != NULL && dpari_group_ended(context->level.inside, &t)) {
        dpari_mpi_break(context, DPAR_E_PEER, why.text, 1);
    }
}

DPARI_INTERNAL int32_t dpari_mpi_trade_notes(dpari_mpi_task *task, double now)
{
    dpari_mpi_ctx *context = task->ctx;
    const double limit = context->comm.timeout_s, quarter = limit > 0 ? limit / 4 : 4.0;
    int due = 0;
    if (task->since < 0) {
        task->since = now;
        task->next_note = now + (quarter < 1 ? quarter : 1);
    }
    task->since += dpari_os_suspended(&task->looked, now);
    if (now - context->listened > 1e-3) {
        context->listened = now;
        dpari_mpi_listen(context);
        if (context->comm.status >= 0) {
            dpari_mpi_compare_heard(task);
        }
        due = now >= task->next_note;
    }
    if (!due || context->comm.status < 0) {
        return 0;
    }
    if (!task->told) {
        dpari_mpi_forget(context, dpari_kind_sends(task->call.kind) ? INT64_MAX : task->sequence);
    }
    task->told = 1;
    task->next_note = now + (quarter < 5 ? quarter : 5);
    dpari_mpi_announce(task);
    dpari_mpi_look_for_ended(task);
    return 1;
}

DPARI_INTERNAL void dpari_mpi_check_deadline(dpari_mpi_task *task, double now)
{
    dpari_mpi_ctx *context = task->ctx;
    const double limit = context->comm.timeout_s;
    if (!(limit > 0) || now - task->since <= limit || context->comm.status < 0) {
        return;
    }
    dpari_mpi_listen(context);
    if (context->comm.status >= 0) {
        dpari_mpi_late(task);
    }
}

DPARI_INTERNAL void dpari_mpi_hear_why(dpari_mpi_ctx *context)
{
    const double until = MPI_Wtime() + 0.05;
    while (context->comm.status >= 0 && MPI_Wtime() < until) {
        dpari_mpi_listen(context);
        DPARI_MPI_YIELD();
    }
}

/* Waits until a request is done, or `limit` seconds have passed on the stopwatch (0 means no
 * limit). Returns 1 if the request is done, otherwise 0. */
static int32_t dpari_mpi_in_time(MPI_Request *request, dpari_stopwatch *watch, double limit)
{
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done &&
           (!(limit > 0) || dpari_os_waited(watch) < limit)) {
        DPARI_MPI_YIELD();
    }
    return done;
}

DPARI_INTERNAL dpar_status dpari_mpi_last_notes(dpari_mpi_ctx *context)
{
    const double limit = context->comm.timeout_s;
    dpari_stopwatch watch = {0, 0};
    MPI_Request request = MPI_REQUEST_NULL;
    int32_t r, there;
    if (context->comm.size == 1 || context->comm.size > DPARI_MPI_RANKS_TOLD) {
        return DPAR_OK;
    }
    if (context->told == NULL) {
        context->told = (int32_t *)calloc((size_t)context->comm.size, sizeof *context->told);
    }
    there = context->told != NULL &&
            MPI_Ireduce_scatter_block(context->told, &context->due, 1, MPI_INT32_T, MPI_SUM,
                                      context->main, &request) == MPI_SUCCESS &&
            dpari_mpi_in_time(&request, &watch, limit);
    for (; there && context->notes < context->due;
         context->notes++) { /* without a probe, see dpari_mpi_begin */
        there = MPI_Irecv(&context->last, (int)sizeof context->last, MPI_BYTE, MPI_ANY_SOURCE,
                          DPARI_MPI_TAG_NOTE, context->side, &request) == MPI_SUCCESS &&
                dpari_mpi_in_time(&request, &watch, limit);
    }
    for (r = 0; there && context->waiting != NULL && r < context->comm.size; r++) {
        there = dpari_mpi_in_time(&context->waiting[r].sent, &watch, limit);
    }
    return there ? (dpar_status)DPAR_OK
                 : dpari_mpi_break(context, DPAR_E_TIMEOUT,
                                   "dpar_comm_free: a rank called it, but does not finish it", 0);
}
