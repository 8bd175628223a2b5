/* SPDX-License-Identifier: MIT-0 */
/* Makes, splits and shrinks communicators over MPI.
 *
 * All ranks first compare their options, and find out which of them share memory (nodes.c). If all
 * ranks share one node's memory, the shared-memory engine's communicator is returned, and nothing
 * of this engine remains. Otherwise the first communicator makes the world, finds its nodes, and
 * measures which paths are faster (tuning.c). A split does the same without the measurements. Each
 * step that may fail on one rank is followed by a comparison of the results, so that all ranks fail
 * together. */
#include "mpi_make.h"

#include "../comm/group.h"
#include "../comm/job.h"
#include "../comm/launch_private.h"
#include "../comm/options.h"
#include "closing.h"
#include "engine_calls.h"
#include "error_text.h"
#include "mpi_private.h"
#include "mpi_types.h"
#include "nodes.h"
#include "notes.h"
#include "shrink.h"
#include "tuning.h"

static int32_t dpari_mpi_tag_most(MPI_Comm comm)
{
    void *value = NULL;
    int found = 0;
    if (MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found) != MPI_SUCCESS || !found) {
        return 32767;
    }
    return (int32_t) * (int *)value;
}

/* Makes a communicator of the world over *main, which it owns from now on, also on failure. */
static dpar_status dpari_mpi_make(dpari_mpi_world *world, MPI_Comm *main,
                                  const dpar_mpi_desc *options, const dpar_engine *engine,
                                  dpar_comm **out, dpar_why *why)
{
    int rank = 0, size = 1, code;
    dpari_mpi_ctx *context;
    MPI_Comm_rank(*main, &rank);
    MPI_Comm_size(*main, &size);
    context = (dpari_mpi_ctx *)calloc(1, sizeof *context + (size_t)size * sizeof *context->rows);
    if (context == NULL) {
        MPI_Comm_free(main);
        return dpari_say(DPAR_E_MEMORY, why, "no memory for a communicator of %d ranks (%ld bytes)",
                         (int32_t)size,
                         (int64_t)(sizeof *context + (size_t)size * sizeof *context->rows));
    }
    context->main = *main;
    MPI_Comm_set_errhandler(context->main, MPI_ERRORS_RETURN);
    code = MPI_Comm_dup(context->main, &context->side);
    if (code != MPI_SUCCESS) {
        (void)dpari_mpi_say(why, "MPI_Comm_dup", code);
        MPI_Comm_free(main);
        free(context);
        return DPAR_E_SYSTEM;
    }
    MPI_Comm_set_errhandler(context->side, MPI_ERRORS_RETURN);
    context->rows = (const void **)(void *)(context + 1);
    context->world = world;
    world->communicators++;
    context->older = world->open;
    world->open = context;
    context->options = *options;
    context->tag_most = dpari_mpi_tag_most(context->main);
    context->comm.rank = (int32_t)rank;
    context->comm.size = (int32_t)size;
    context->comm.timeout_s = options->timeout_s;
    context->comm.context = context;
    context->comm.engine = *engine;
    *out = &context->comm;
    return DPAR_OK;
}

/* Finds the nodes of a new communicator, and measures sizes if it is the world's first one. Closes
 * it on failure. */
static dpar_status dpari_mpi_complete(dpar_comm **out, dpar_why *why)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(*out);
    dpari_mpi_levels *levels = &context->level;
    dpar_status status = dpari_mpi_find_levels(*out);
    if (status >= 0 && context->world->host_of == NULL) {
        status = dpari_mpi_find_hosts(context);
    }
    if (status >= 0 && context->world->host != NULL) {
        const char *here = dpari_mpi_host(context, context->comm.rank);
        if (levels->inside != NULL) {
            dpari_group_call(levels->inside, levels->member + levels->begin[levels->node], here);
        }
        if ((*out)->node != NULL) {
            dpari_group_call((*out)->node, NULL, here);
        }
    }
    if (status >= 0 && context->world->communicators == 1) {
        status = dpari_mpi_find_at_once(context);
        if (status == DPAR_OK) {
            status = dpari_mpi_find_lanes(*out);
        }
        if (status == DPAR_OK) {
            status = dpari_mpi_find_dealt(*out);
        }
    }
    if (status < 0) {
        (void)dpari_repeat(status, why, (*out)->why.text);
        (void)dpari_mpi_close(*out);
        *out = NULL;
    }
    return status;
}

/* MPI_Comm_split has no deadline. Therefore a check and a barrier, which have one, precede it.
 * There are two, because a rank that calls after the others have timed out may find the first one
 * complete, and then waits in the second. */
static dpar_status dpari_mpi_split(dpar_comm *comm, int32_t color, int32_t key, dpar_comm **out)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    MPI_Comm part = MPI_COMM_NULL;
    dpar_comm *node = NULL;
    dpar_call barrier;
    dpar_status status;
    dpar_why said;
    int code;
    memset(&barrier, 0, sizeof barrier);
    barrier.kind = DPAR_CALL_BARRIER;
    barrier.root = DPARI_SPLIT;
    status = dpari_mpi_run(comm, &barrier); /* after it, all earlier collectives have posted all
                                               their steps */
    if (status < 0) {
        return status;
    }
    code = MPI_Comm_split(context->main, color < 0 ? MPI_UNDEFINED : (int)color, (int)key, &part);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_failed(context, NULL, "split", code);
    }
    if (comm->node != NULL) {
        status = dpar_comm_split(comm->node, color, key, &node);
        said = comm->node->why;
        status = dpari_mpi_all_well(context, status, &said);
        if (status < 0) { /* it failed on this node or on another */
            dpari_mpi_close_part(node);
            if (part != MPI_COMM_NULL) {
                MPI_Comm_free(&part);
            }
            return status;
        }
    }
    if (part == MPI_COMM_NULL) {
        *out = NULL;
        return DPAR_OK;
    }
    status =
        dpari_mpi_make(context->world, &part, &context->options, &comm->engine, out, &comm->why);
    if (status < 0) {
        (void)dpar_comm_free(node);
        return status;
    }
    (*out)->timeout_s = comm->timeout_s;
    (*out)->node = node;
    return dpari_mpi_complete(out, &comm->why);
}

/* Shrinks a communicator of several nodes. On one node dpar_mpi_make returns a communicator of the
 * node's memory, which has its own shrink. */
static dpar_status dpari_mpi_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was, dpar_why *why)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    MPI_Comm part = MPI_COMM_NULL;
    dpar_status status = dpari_mpi_shrink_part(context, &part, why);
    if (status < 0) {
        return status;
    }
    status = dpar_mpi_make(part, &context->options, out, why);
    if (status >= 0) {
        dpari_mpi_shrink_map(context, part, was);
    }
    MPI_Comm_free(&part);
    return status;
}

static void dpari_mpi_table(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "mpi", 4);
    e->run = dpari_mpi_run;
    e->post = dpari_mpi_post;
    e->test = dpari_mpi_test;
    e->wait = dpari_mpi_wait;
    e->batch = dpari_mpi_batch;
    e->split = dpari_mpi_split;
    e->shrink = dpari_mpi_shrink;
    e->alloc = dpari_mpi_alloc;
    e->release = dpari_mpi_release;
    e->progress = dpari_mpi_progress;
    e->abort = dpari_mpi_abort;
    e->report = dpari_mpi_report;
    e->describe = dpari_mpi_describe;
    e->close = dpari_mpi_close;
}

/* Fails with DPAR_E_ARG, and a message, if MPI is not running or `user` cannot be used. */
static dpar_status dpari_mpi_usable(MPI_Comm user, dpar_why *why)
{
    int yes = 0;
    MPI_Initialized(&yes);
    if (!yes) {
        return dpari_wrong(why, "MPI is not initialised: call MPI_Init first");
    }
    MPI_Finalized(&yes);
    if (yes) {
        return dpari_wrong(why, "MPI is finalised already");
    }
    if (user == MPI_COMM_NULL) {
        return dpari_wrong(why, "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(user, &yes);
    if (yes) {
        return dpari_wrong(why, "the communicator is an inter-communicator, which has two groups: "
                                "join them with MPI_Intercomm_merge");
    }
    return DPAR_OK;
}

/* Sets the deadline if the options do not: to DPAR_TIMEOUT, or 300 s if that is not set. */
static dpar_status dpari_mpi_deadline(dpar_mpi_desc *o, dpar_why *why)
{
    dpari_site site;
    dpar_world_desc chosen;
    dpar_status status = DPAR_OK;
    memset(&chosen, 0, sizeof chosen);
    if (!(o->timeout_s < 0 || o->timeout_s > 0)) {
        dpari_site_here(&site);
        status = dpari_timeout_here(&site, &chosen, why);
        o->timeout_s = chosen.timeout_s < 0 || chosen.timeout_s > 0 ? chosen.timeout_s : 300;
    }
    return status;
}

/* Compares the options of all ranks, and sets flat if any rank sets it. Ranks with different
 * options would call different MPI functions, or wait for ranks that have timed out. */
static dpar_status dpari_mpi_same_options(MPI_Comm comm, dpar_mpi_desc *o, dpar_why *why)
{
    const dpar_status own = dpari_mpi_deadline(o, why);
    const int32_t bits = (o->rank_order != 0) | (o->check != 0) << 1 | (o->blocking != 0) << 2;
    double v[6];
    dpar_text t;
    int code;
    v[0] = bits;
    v[1] = -bits;
    v[2] = o->flat != 0 || dpari_mpi_env("DPAR_MPI_FLAT") != 0;
    v[3] = o->timeout_s;
    v[4] = -o->timeout_s;
    v[5] = own < 0;
    code = MPI_Allreduce(MPI_IN_PLACE, v, 6, MPI_DOUBLE, MPI_MAX, comm);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "comparing the options", code);
    }
    if (v[5] > 0) {
        if (own == DPAR_OK) {
            (void)dpari_wrong(why, "DPAR_TIMEOUT of another rank is not a number of seconds");
        }
        return DPAR_E_ARG;
    }
    o->flat = v[2] > 0;
    if (v[0] + v[1] > 0) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "ranks pass different values of rank_order, check or blocking");
    }
    if (v[3] + v[4] > 0) {
        dpari_text_why(&t, why);
        dpari_text_print(
            &t, "ranks have different deadlines (timeout_s or DPAR_TIMEOUT), from %.6g to %.6g s",
            -v[4], v[3]);
        return DPAR_E_MISMATCH;
    }
    if (o->blocking && o->timeout_s >= 0) {
        return dpari_wrong(why, "blocking = 1 waits inside MPI, which has no deadline: set "
                                "timeout_s below 0 with it");
    }
    return DPAR_OK;
}

static dpari_mpi_world *dpari_mpi_new_world(dpar_why *why)
{
    dpari_mpi_world *world = (dpari_mpi_world *)calloc(1, sizeof *world);
    int code;
    if (world == NULL) {
        (void)dpari_say(DPAR_E_MEMORY, why, "no memory for a communicator (%ld bytes)",
                        (int64_t)sizeof *world);
        return NULL;
    }
    world->lanes_from = DPARI_MPI_LANES;
    world->dealt[0] = -1; /* not used before it is measured */
    world->dealt[1] = -1;
    world->all = MPI_GROUP_NULL;
    code = dpari_mpi_make_ops(world);
    if (code != MPI_SUCCESS) {
        (void)dpari_mpi_say(why, "MPI_Op_create", code);
        free(world);
        return NULL;
    }
    return world;
}

DPAR_API dpar_status dpar_mpi_make(MPI_Comm user, const dpar_mpi_desc *desc, dpar_comm **comm,
                                   dpar_why *why)
{
    dpar_mpi_desc chosen;
    dpari_mpi_world *world;
    dpar_engine engine;
    MPI_Comm own = MPI_COMM_NULL;
    dpar_comm *node;
    dpar_why flat;
    int32_t nodes = 0;
    dpar_status status = dpari_mpi_usable(user, why);
    int code;
    if (status == DPAR_OK && comm == NULL) {
        status = dpari_wrong(why, "dpar_mpi_make: out, which receives the result, is NULL");
    }
    if (status < 0) {
        return status;
    }
    memset(&chosen, 0, sizeof chosen);
    if (desc != NULL) {
        chosen = *desc;
    }
    code = MPI_Comm_dup(user, &own);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    status = dpari_mpi_same_options(own, &chosen, why);
    node = status >= 0 ? dpari_mpi_share(own, &chosen, &nodes, &flat) : NULL;
    if (node != NULL) { /* while MPI blocks, operations in the node's memory would not advance */
        chosen.blocking = 0;
    }
    if (node != NULL && nodes == 1) {
        MPI_Comm_free(&own);
        *comm = node;
        return DPAR_OK;
    }
    world = status >= 0 ? dpari_mpi_new_world(why) : NULL;
    if (world == NULL) {
        (void)dpar_comm_free(node);
        MPI_Comm_free(&own);
        return status < 0 ? status : (dpar_status)DPAR_E_SYSTEM;
    }
    world->flat = flat;
    dpari_mpi_table(&engine);
    status = dpari_mpi_make(world, &own, &chosen, &engine, comm, why);
    if (status < 0) {
        (void)dpar_comm_free(node);
        world->communicators = 1;
        dpari_mpi_leave_world(world, 1);
        return status;
    }
    (*comm)->node = world->node = node;
    return dpari_mpi_complete(comm, why);
}
