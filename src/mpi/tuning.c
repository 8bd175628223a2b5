/* SPDX-License-Identifier: MIT-0 */
/* Measures which sizes are faster by which path. Each measurement tries a few sizes, takes the
 * shortest of several times by one rank's clock, and sends that rank's result to all, because all
 * ranks must choose the same path. Only paths that give the same bits depend on it. */
#include "tuning.h"

#include "error_text.h"
#include "nodes.h"
#include "notes.h"

/* Returns zeroed memory on all ranks. Returns NULL on all, and breaks the communicator, if one has
 * none. Collective. */
static void *dpari_mpi_buffers(dpari_mpi_ctx *context, int64_t bytes, dpar_status *status)
{
    void *memory = calloc(1, (size_t)bytes + 1);
    dpar_why said;
    memset(&said, 0, sizeof said);
    *status = DPAR_OK;
    if (memory == NULL) {
        *status = dpari_say(DPAR_E_MEMORY, &said,
                            "no memory for the buffers of a measurement (%ld bytes)", bytes);
    }
    *status = dpari_mpi_all_well(context, *status, &said);
    if (*status < 0) {
        free(memory);
        memory = NULL;
    }
    return memory;
}

/* ---- which messages are sent in two parts ----
 *
 * MPI sends short messages at once (eagerly), but announces long ones first, which takes another
 * round trip (the rendezvous protocol). Two messages just below this limit may therefore be faster
 * than one above it. The limit, and whether two messages are faster, is measured once, between the
 * first two nodes, in both directions at a time, as in a halo exchange. The times of the first of
 * the two ranks decide, because both have to take the same steps. */

typedef struct dpari_mpi_probe {
    MPI_Comm comm;
    int peer, decides;
    unsigned char *memory; /* two halves: for messages that are received, and for those that are
                              sent */
} dpari_mpi_probe;

/* Returns the seconds of an exchange of `bytes` as `parts` messages in each direction: the shortest
 * of TURNS times. 0 if MPI fails. */
static double dpari_mpi_exchange_time(const dpari_mpi_probe *p, int bytes, int parts)
{
    enum { TURNS = 6, MOST = 2 };
    const int part = bytes / parts, tag = DPARI_MPI_TAG_PIECE;
    MPI_Request request[2 * MOST];
    MPI_Status state[2 * MOST];
    double best = 0, time[2];
    int turn, i, code = MPI_SUCCESS;
    for (turn = 0; turn < TURNS && code == MPI_SUCCESS; turn++) {
        const double began = MPI_Wtime();
        for (i = 0; i < parts; i++) {
            MPI_Irecv(p->memory + i * part, part, MPI_BYTE, p->peer, tag, p->comm, &request[i]);
        }
        for (i = 0; i < parts; i++) {
            MPI_Isend(p->memory + 2 * DPARI_MPI_AT_ONCE_LAST + i * part, part, MPI_BYTE, p->peer,
                      tag, p->comm, &request[parts + i]);
        }
        code = MPI_Waitall(2 * parts, request, state);
        time[0] = MPI_Wtime() - began;
        best = turn == 0 || time[0] < best ? time[0] : best;
    }
    time[0] = time[1] = best;
    if (code == MPI_SUCCESS && p->decides) {
        code = MPI_Send(time, 1, MPI_DOUBLE, p->peer, tag, p->comm);
    } else if (code == MPI_SUCCESS) {
        code = MPI_Recv(time + 1, 1, MPI_DOUBLE, p->peer, tag, p->comm, MPI_STATUS_IGNORE);
    }
    return code == MPI_SUCCESS ? time[1] : 0;
}

/* Returns the bytes of the longest message that MPI sends at once, if two such messages are clearly
 * faster than one above the limit, otherwise 0. Finds the largest jump of the times, by a factor of
 * at least 1.5, and narrows it down by bisection. */
static int dpari_mpi_measure_at_once(const dpari_mpi_probe *p)
{
    int bytes, low = 0, high = 0;
    double before = dpari_mpi_exchange_time(p, DPARI_MPI_AT_ONCE_FIRST, 1), jump = 1.5, border = 0;
    for (bytes = DPARI_MPI_AT_ONCE_FIRST; bytes < DPARI_MPI_AT_ONCE_LAST; bytes += bytes / 4) {
        const double now = dpari_mpi_exchange_time(p, bytes + bytes / 4, 1);
        if (now > jump * before) {
            jump = now / before;
            border = (now + before) / 2;
            low = bytes;
            high = bytes + bytes / 4;
        }
        before = now;
    }
    while (high - low > low / 64) {
        const int middle = low + (high - low) / 2;
        const int above = dpari_mpi_exchange_time(p, middle, 1) > border;
        low = above ? low : middle;
        high = above ? middle : high;
    }
    bytes = low + low / 2;
    return low > 0 && dpari_mpi_exchange_time(p, bytes, 2) <
                          0.85 * dpari_mpi_exchange_time(p, bytes, 1)
               ? low - DPARI_MPI_AT_ONCE_SPARE
               : 0;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_at_once(dpari_mpi_ctx *context)
{
    const dpari_mpi_levels *levels = &context->level;
    const int first = levels->node_of != NULL ? levels->member[0] : 0;
    const int second =
        levels->node_of != NULL && levels->nodes > 1 ? levels->member[levels->begin[1]] : 1;
    const int me = (int)context->comm.rank, measures = me == first || me == second;
    dpari_mpi_probe probe;
    dpar_status status;
    int found = 0;
    if (context->comm.size == 1 || levels->nodes == 1) {
        return DPAR_OK;
    }
    probe.comm = context->side;
    probe.peer = me == first ? second : first;
    probe.decides = me == first;
    probe.memory = (unsigned char *)dpari_mpi_buffers(
        context, measures ? 4 * DPARI_MPI_AT_ONCE_LAST : 0, &status);
    if (status < 0) {
        return status;
    }
    if (measures) {
        found = dpari_mpi_measure_at_once(&probe);
    }
    free(probe.memory);
    status = dpari_mpi_failed(context, NULL, "measuring messages",
                              MPI_Bcast(&found, 1, MPI_INT, first, context->side));
    context->world->at_once = found;
    return status;
}

/* Sets *best, on all ranks, to the seconds of an all-reduce of `bytes`: the shortest of TURNS times
 * on rank 0. */
static dpar_status dpari_mpi_sum_time(dpar_comm *comm, int64_t bytes, int64_t lanes_from, float *in,
                                      double *best)
{
    enum { TURNS = 5 };
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpar_status status = DPAR_OK;
    double time = 0;
    int32_t turn;
    world->lanes_from = lanes_from;
    for (turn = 0; turn < TURNS && status == DPAR_OK; turn++) {
        const double began = MPI_Wtime();
        status = dpar_all_reduce(comm, in, in + bytes / 4, bytes / 4, DPAR_F32, DPAR_SUM, NULL);
        time = MPI_Wtime() - began;
        *best = turn == 0 || time < *best ? time : *best;
    }
    return status == DPAR_OK ? dpar_broadcast(comm, best, 1, DPAR_F64, 0, NULL) : status;
}

/* Sets *faster to 1 if an all-to-all with pieces of `bytes` is clearly faster by nodes, as rank 0
 * measures it, otherwise to 0. Several calls between barriers are timed together, because a single
 * call seems short on a rank that enters last. The two methods alternate, and the shortest time of
 * each counts. counts: [size] scratch. */
static dpar_status dpari_mpi_deal_time(dpar_comm *comm, int32_t varies, int64_t bytes, char *in,
                                       int64_t *counts, int32_t *faster)
{
    enum { TURNS = 4, CALLS = 5 };
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpar_status status = DPAR_OK;
    double best[2] = {0, 0};
    dpar_call call;
    int32_t turn, k, r;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_ALL_TO_ALL;
    call.type = DPAR_U8;
    call.in = in;
    call.out = in + bytes * comm->size;
    call.variable_counts = varies;
    call.count = varies ? 0 : bytes;
    call.in_count = call.out_count = varies ? counts : NULL;
    for (r = 0; r < comm->size; r++) {
        counts[r] = bytes;
    }
    for (turn = 0; turn < 2 * TURNS && status == DPAR_OK; turn++) {
        double time, began;
        world->dealt[varies] = turn % 2 ? bytes : -1;
        status = dpar_barrier(comm, NULL);
        began = MPI_Wtime();
        for (k = 0; k < CALLS && status == DPAR_OK; k++) {
            status = dpari_post(comm, &call, NULL);
        }
        if (status == DPAR_OK) {
            status = dpar_barrier(comm, NULL);
        }
        time = MPI_Wtime() - began;
        if (turn < 2 || time < best[turn % 2]) {
            best[turn % 2] = time;
        }
    }
    *faster = best[1] < 0.85 * best[0];
    return status == DPAR_OK ? dpar_broadcast(comm, faster, 1, DPAR_I32, 0, NULL) : status;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_dealt(dpar_comm *comm)
{
    dpari_mpi_ctx *x = dpari_mpi_ctx_of(comm);
    const int32_t lanes = x->level.lanes;
    const int64_t last = lanes <= 8 ? DPARI_MPI_DEALT : 8 * DPARI_MPI_DEALT / lanes / 8 * 8;
    int64_t *counts;
    int32_t varies;
    dpar_status status;
    char *in;
    x->world->dealt[0] = x->world->dealt[1] = last;
    if (x->level.inside == NULL || lanes == 1 || x->level.nodes == 1 ||
        comm->size > DPARI_MPI_TRADED) {
        return DPAR_OK;
    }
    counts = (int64_t *)dpari_mpi_buffers(x, comm->size * (8 + 2 * last), &status);
    if (status < 0) {
        return status;
    }
    in = (char *)(counts + comm->size);
    for (varies = 0; varies < 2; varies++) {
        int64_t bytes, found = -1;
        int32_t faster = 1;
        for (bytes = dpari_least(DPARI_MPI_DEALT_FIRST, last);
             status == DPAR_OK && faster && bytes <= last; bytes *= 8) {
            status = dpari_mpi_deal_time(comm, varies, bytes, in, counts, &faster);
            found = faster ? bytes : found;
        }
        x->world->dealt[varies] = found;
    }
    free(counts);
    x->records = 0; /* a report shows what the user called */
    return status;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_lanes(dpar_comm *comm)
{
    dpari_mpi_ctx *x = dpari_mpi_ctx_of(comm);
    const int64_t first = DPARI_MPI_LANES_FIRST, last = DPARI_MPI_LANES_LAST;
    int64_t bytes, found = 4 * last;
    dpar_status status;
    float *in;
    if (x->level.inside == NULL || x->level.lanes == 1 || x->level.nodes == 1) {
        return DPAR_OK;
    }
    in = (float *)dpari_mpi_buffers(x, 2 * last, &status);
    if (status < 0) {
        return status;
    }
    for (bytes = first; status == DPAR_OK && bytes <= last && found > last; bytes *= 4) {
        double alone = 0, lanes = 0;
        status = dpari_mpi_sum_time(comm, bytes, 2 * bytes, in, &alone);
        if (status == DPAR_OK) {
            status = dpari_mpi_sum_time(comm, bytes, 0, in, &lanes);
        }
        found = lanes < alone ? bytes : found;
    }
    free(in);
    x->world->lanes_from = found;
    x->records = 0; /* a report shows what the user called */
    return status;
}
