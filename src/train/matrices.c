/* SPDX-License-Identifier: MIT-0 */
/* Whole matrices out of shards, and back.
 *
 * A rank packs its pieces, sorted by owner, then by matrix. One all-to-all brings them to the
 * owners, which receive them sorted by sender, then by matrix, and pack their own pieces between
 * those of lower and higher ranks. With the flat array of a zero1 the pieces of a matrix are then
 * contiguous, because a matrix that is cut is the last one of a share and the first one of the next
 * share. Such a matrix is used in place. With an fsdp, each rank has a piece of almost every
 * matrix, and an owner of several joins the pieces in another place. dpar_matrices_scatter does the
 * same copies in the other direction.
 *
 * All ranks compute the same owners from the same costs, and know the pieces of all ranks. */
#include "matrices.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/optimizer_private.h"
#include "../index/index_private.h"
#include "ddp_private.h"
#include "fsdp_place.h"
#include "update_private.h"

/* A matrix. */
typedef struct dpari_matrix {
    int32_t param, owner;
    double cost;
    int64_t count;          /* elements; 0 if it is frozen */
    int64_t start;          /* first element in the array that the ranks share */
    const dpari_flat *flat; /* how they share it */
    unsigned char *shard;   /* this rank's shard of the gradients in that array */
    int64_t place;          /* first element in `memory` where it is whole, for its owner */
} dpari_matrix;

struct dpar_matrices {
    dpar_comm *comm;
    dpar_zero1 *zero1;
    dpar_fsdp *fsdp;
    int32_t matrices;
    int32_t type;
    int32_t gathered; /* 1 between gather and scatter */
    int64_t each;     /* bytes of an element */
    dpari_flat flat;  /* with zero1: how ranks share the gradients */
    dpari_matrix *matrix;
    double *load; /* [ranks] cost of the matrices that each rank owns */
    /* [ranks] elements that are sent to each rank and received from it, and the first of them in
     * its part of `memory`. Own pieces are not sent but packed into the received part. */
    int64_t *sends, *receives, *sends_at, *receives_at;
    int64_t *at; /* [ranks] first element of the next piece, during a walk */
    /* The elements that are sent, those that are received, then matrices that are joined. */
    unsigned char *memory;
    int64_t received, joined, end; /* where the second and the third part begin, and the end */
};

/* Returns the piece of matrix k that a rank has. An empty piece has count 0. */
static DPARI_COLD dpar_piece dpari_matrices_piece(const dpar_matrices *m, int32_t k, int32_t rank)
{
    const dpari_matrix *matrix = &m->matrix[k];
    dpar_piece piece;
    dpari_zero(&piece, sizeof piece);
    if (matrix->count > 0) {
        (void)dpari_flat_piece(matrix->flat, matrix->start, matrix->count, rank, &piece);
    }
    return piece;
}

/* What a walk does with pieces. */
enum {
    DPARI_MATRICES_PLACE, /* decides where matrices will be whole */
    DPARI_MATRICES_TO,    /* copies to the shards or to the whole matrices */
    DPARI_MATRICES_FROM   /* copies from them */
};

/* Copies a piece between its packed place and its shard or whole matrix, as `what` says. */
static DPARI_COLD dpar_status dpari_matrices_copy(const dpar_matrices *m, unsigned char *packed,
                                                  unsigned char *other, int64_t count, int what)
{
    if (other == packed) {
        return DPAR_OK; /* the matrix is used where its pieces arrive */
    }
    if (what == DPARI_MATRICES_TO) {
        return dpari_do_copy(m->comm, other, packed, count * m->each);
    }
    return dpari_do_copy(m->comm, packed, other, count * m->each);
}

/* Walks over the pieces that this rank sends in gather, or with `owned` over those that it
 * receives, in the order of their memory for each peer. */
static DPARI_COLD dpar_status dpari_matrices_walk(dpar_matrices *m, int owned, int what)
{
    const int32_t self = m->comm->rank, size = m->comm->size;
    dpar_status st = DPAR_OK;
    int32_t rank, k;
    for (rank = 0; rank < size; rank++) {
        m->at[rank] =
            owned || rank == self ? m->received + m->receives_at[rank] : m->sends_at[rank];
    }
    for (k = 0; k < m->matrices; k++) {
        dpari_matrix *matrix = &m->matrix[k];
        const int32_t last = owned ? size - 1 : self;
        if (owned && matrix->owner != self) {
            continue;
        }
        for (rank = owned ? 0 : self; rank <= last && st == DPAR_OK; rank++) {
            const dpar_piece piece = dpari_matrices_piece(m, k, rank);
            int64_t *next = &m->at[owned ? rank : matrix->owner];
            const int64_t whole = matrix->place + piece.in_param;
            if (piece.count == 0) {
                continue;
            }
            if (what != DPARI_MATRICES_PLACE) {
                unsigned char *packed = m->memory + *next * m->each;
                unsigned char *other =
                    owned ? m->memory + whole * m->each : matrix->shard + piece.in_shard * m->each;
                st = dpari_matrices_copy(m, packed, other, piece.count, what);
            } else if (piece.in_param == 0) {
                matrix->place = *next;
            } else if (matrix->place < m->joined && whole != *next) {
                matrix->place = m->end; /* its pieces are not contiguous */
                m->end += matrix->count;
            }
            *next += piece.count;
        }
    }
    return st;
}

/* ---- made ------------------------------------------------------------------------------------ */

/* Checks the arguments. */
static DPARI_COLD dpar_status dpari_matrices_check(const dpar_comm *comm,
                                                   const dpar_matrices_desc *desc, dpar_why *why)
{
    int32_t k, params, low = 0;
    if (desc == NULL || desc->matrices < 0 || (desc->zero1 != NULL) == (desc->fsdp != NULL) ||
        (desc->zero1 != NULL ? desc->zero1->ddp->comm : desc->fsdp->shard) != comm) {
        return dpari_wrong(why,
                           "dpar_matrices_make: desc.matrices is %d, but must be 0 or more, and "
                           "desc must have either a zero1 or an fsdp, which was made on comm",
                           desc != NULL ? desc->matrices : 0);
    }
    params = desc->zero1 != NULL ? desc->zero1->ddp->params : desc->fsdp->params;
    for (k = 0; k < desc->matrices; k++) {
        const int32_t i = desc->param != NULL ? desc->param[k] : k;
        const double cost = desc->cost != NULL ? desc->cost[k] : 0.0;
        if (i < low || i >= params || !(cost >= 0.0) || !dpari_finite(cost)) {
            return dpari_optimizer_say(
                why,
                "dpar_matrices_make: param[%d] is %d and cost[%d] %.9g, but parameters must "
                "ascend, here from %d to %d, and costs must be 0 or more and finite",
                k, i, k, cost, low, params - 1);
        }
        low = i + 1;
    }
    return DPAR_OK;
}

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_matrices_facts(dpari_facts *facts, const void *given)
{
    const dpar_matrices *m = *(dpar_matrices *const *)given;
    int32_t k;
    dpari_fact(facts, "the number of matrices", 0, m->matrices);
    for (k = 0; k < m->matrices; k++) {
        dpari_fact(facts, "param[#]", k, m->matrix[k].param);
        dpari_fact_real(facts, "cost[#]", k, m->matrix[k].cost);
    }
}

/* Places the object and its tables. With room->at NULL, only counts bytes. */
static DPARI_COLD void dpari_matrices_tables(dpar_matrices *m, dpari_room *room)
{
    const int64_t ranks = m->comm->size;
    (void)dpari_room_take(room, 1, sizeof *m);
    m->matrix = (dpari_matrix *)dpari_room_take(room, m->matrices, sizeof *m->matrix);
    m->load = (double *)dpari_room_take(room, ranks, sizeof *m->load);
    m->sends = (int64_t *)dpari_room_take(room, ranks, sizeof *m->sends);
    m->receives = (int64_t *)dpari_room_take(room, ranks, sizeof *m->receives);
    m->sends_at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->sends_at);
    m->receives_at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->receives_at);
    m->at = (int64_t *)dpari_room_take(room, ranks, sizeof *m->at);
}

/* Gives the most expensive matrix that has no owner to the rank with the lowest cost, until all
 * have one. */
static DPARI_COLD void dpari_matrices_divide(dpar_matrices *m)
{
    int32_t n, k, rank;
    for (n = 0; n < m->matrices; n++) {
        int32_t next = -1, least = 0;
        for (k = 0; k < m->matrices; k++) {
            const dpari_matrix *matrix = &m->matrix[k];
            if (matrix->owner < 0 && (next < 0 || matrix->cost > m->matrix[next].cost)) {
                next = k;
            }
        }
        for (rank = 1; rank < m->comm->size; rank++) {
            if (m->load[rank] < m->load[least]) {
                least = rank;
            }
        }
        m->matrix[next].owner = least;
        m->load[least] += m->matrix[next].cost;
    }
}

/* Computes what is sent and received, and where matrices will be. */
static DPARI_COLD void dpari_matrices_plan(dpar_matrices *m)
{
    const int32_t self = m->comm->rank;
    int32_t rank, k;
    for (k = 0; k < m->matrices; k++) {
        m->sends[m->matrix[k].owner] += dpari_matrices_piece(m, k, self).count;
        for (rank = 0; rank < m->comm->size && m->matrix[k].owner == self; rank++) {
            m->receives[rank] += dpari_matrices_piece(m, k, rank).count;
        }
    }
    m->sends[self] = 0;
    for (rank = 0; rank < m->comm->size; rank++) {
        m->sends_at[rank] = m->received;
        m->received += m->sends[rank];
        m->receives_at[rank] = m->joined;
        m->joined += m->receives[rank];
    }
    m->receives[self] = 0;
    m->joined += m->received;
    m->end = m->joined;
    (void)dpari_matrices_walk(m, 1, DPARI_MATRICES_PLACE);
}

/* Fills in the object and decides who owns what. */
static DPARI_COLD void dpari_matrices_fill(dpar_matrices *m, const dpar_matrices_desc *desc)
{
    const dpar_zero1 *zero1 = m->zero1;
    int32_t k;
    for (k = 0; k < m->matrices; k++) {
        const int32_t i = desc->param != NULL ? desc->param[k] : k;
        dpari_matrix *matrix = &m->matrix[k];
        matrix->param = i;
        matrix->owner = -1;
        if (zero1 != NULL) {
            m->type = zero1->ddp->desc.type;
            m->flat.ranks = m->comm->size;
            m->flat.total = zero1->ddp->elements;
            m->flat.shard = zero1->share;
            matrix->flat = &m->flat;
            matrix->start = zero1->ddp->start[i];
            matrix->count = zero1->ddp->count[i];
            matrix->shard = zero1->ddp->buffer + dpari_ddp_first(zero1) * dpar_type_bytes(m->type);
        } else if (!m->fsdp->unit[m->fsdp->home[i]].frozen) {
            matrix->flat = &m->fsdp->unit[m->fsdp->home[i]].flat;
            matrix->start = m->fsdp->start[i];
            matrix->count = m->fsdp->count[i];
            matrix->shard = dpari_fsdp_reduced_at(m->fsdp, m->fsdp->home[i], &m->type);
        }
        matrix->cost = desc->cost != NULL ? desc->cost[k] : (double)matrix->count;
    }
    m->each = dpar_type_bytes(m->type);
    dpari_matrices_divide(m);
    dpari_matrices_plan(m);
}

/* Allocates the object. */
static DPARI_COLD dpar_status dpari_matrices_create(dpar_comm *comm, const dpar_matrices_desc *desc,
                                                    dpar_matrices **matrices, dpar_why *why)
{
    dpar_matrices head, *m;
    dpari_room room = dpari_room_of(NULL);
    dpar_status st = DPAR_E_MEMORY;
    int64_t bytes;
    void *memory = NULL;
    dpari_zero(&head, sizeof head);
    head.comm = comm;
    head.zero1 = desc->zero1;
    head.fsdp = desc->fsdp;
    head.matrices = desc->matrices;
    head.type = DPAR_U8; /* if no matrix has elements */
    dpari_matrices_tables(&head, &room);
    bytes = room.used;
    *matrices = m = (dpar_matrices *)dpari_object_alloc(comm, bytes);
    if (m != NULL) {
        room = dpari_room_of(m);
        *m = head;
        dpari_matrices_tables(m, &room);
        dpari_matrices_fill(m, desc);
        bytes = dpari_most(64, m->end * m->each);
        st = dpar_comm_alloc(comm, bytes, &memory);
        m->memory = (unsigned char *)memory;
    }
    return st == DPAR_OK ? st
                         : dpari_say(st, why, "dpar_matrices_make: no memory for %ld bytes", bytes);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_make(dpar_comm *comm, const dpar_matrices_desc *desc,
                                                   dpar_matrices **matrices, dpar_why *why)
{
    dpar_matrices *m = NULL;
    dpar_status st;
    if (comm == NULL || matrices == NULL) {
        return dpari_wrong(why, "dpar_matrices_make: comm and matrices must not be NULL");
    }
    why = dpari_why_of(comm, why);
    st = dpari_matrices_check(comm, desc, why);
    if (st == DPAR_OK) {
        st = dpari_matrices_create(comm, desc, &m, why);
    }
    st = dpari_agree_on(comm, st, "matrices", dpari_matrices_facts, &m, why);
    if (st != DPAR_OK) {
        (void)dpar_matrices_free(m);
        return st;
    }
    *matrices = m;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_free(dpar_matrices *matrices)
{
    if (matrices != NULL && matrices->memory != NULL) {
        dpar_comm_release(matrices->comm, matrices->memory);
    }
    dpari_object_release(matrices);
    return DPAR_OK;
}

DPAR_API DPARI_COLD int32_t dpar_matrices_owner(const dpar_matrices *matrices, int32_t k)
{
    return matrices != NULL && k >= 0 && k < matrices->matrices ? matrices->matrix[k].owner : -1;
}

DPAR_API DPARI_COLD void *dpar_matrices_at(const dpar_matrices *matrices, int32_t k)
{
    if (matrices == NULL || dpar_matrices_owner(matrices, k) != matrices->comm->rank ||
        matrices->matrix[k].count == 0) {
        return NULL;
    }
    return matrices->memory + matrices->matrix[k].place * matrices->each;
}

/* ---- moved ----------------------------------------------------------------------------------- */

/* Gathers the matrices, or scatters them with `back`. */
static DPARI_COLD dpar_status dpari_matrices_move(dpar_matrices *m, int back)
{
    const char *missing = NULL;
    unsigned char *received;
    dpar_call call;
    dpar_why why;
    dpar_status st;
    int32_t u, type;
    if (m == NULL) {
        return DPAR_E_ARG;
    }
    if (m->comm->status != DPAR_OK) {
        return m->comm->status;
    }
    if (m->zero1 != NULL && (m->zero1->ddp->under_way || !m->zero1->ddp->ended)) {
        missing = "dpar_zero1_norm";
    } else if (m->fsdp != NULL && m->fsdp->under_way) {
        missing = "dpar_fsdp_end";
    } else if (back && !m->gathered) {
        missing = "dpar_matrices_gather";
    }
    if (missing != NULL) {
        st = dpari_wrong(&why, "dpar_matrices_%s: call %s before", back ? "scatter" : "gather",
                         missing);
        return dpari_update_refuse(m->comm, NULL, NULL, st, &why);
    }
    for (u = 0; m->fsdp != NULL && u < m->fsdp->units; u++) {
        if (!m->fsdp->unit[u].frozen) {
            (void)dpari_fsdp_settled(m->fsdp, u, &type); /* zeroes gradients that count as 0 */
        }
    }
    st = dpari_matrices_walk(m, back, DPARI_MATRICES_FROM);
    if (st != DPAR_OK) {
        return st;
    }
    received = m->memory + m->received * m->each;
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_TO_ALL;
    call.type = m->type;
    call.variable_counts = 1;
    call.in = back ? received : m->memory;
    call.out = back ? m->memory : received;
    call.in_count = back ? m->receives : m->sends;
    call.in_first = back ? m->receives_at : m->sends_at;
    call.out_count = back ? m->sends : m->receives;
    call.out_first = back ? m->sends_at : m->receives_at;
    st = dpari_post_alike(m->comm, &call, (uint64_t)back, "dpar_matrices_gather or _scatter", NULL);
    if (st != DPAR_OK) {
        return st;
    }
    m->gathered = !back;
    return dpari_matrices_walk(m, !back, DPARI_MATRICES_TO);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_gather(dpar_matrices *matrices)
{
    return dpari_matrices_move(matrices, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_matrices_scatter(dpar_matrices *matrices)
{
    return dpari_matrices_move(matrices, 1);
}
