/* SPDX-License-Identifier: MIT-0 */
/* Finds out which ranks share the memory of a node, and names the nodes.
 *
 * MPI_Comm_split_type reports the ranks of a node. Because containers and machines with the same
 * name deceive it, a rank then publishes a name that only processes of its node see, and the ranks
 * that do not see it are split off. The ranks that remain make a communicator of the shared-memory
 * engine, as a job that was started by dpar. All ranks then gather the lowest rank of each rank's
 * node, from which they compute the same tables of nodes and lanes. */
#include "nodes.h"

#include "../comm/job.h"
#include "../comm/launch.h"
#include "../comm/launch_private.h"
#include "../comm/options.h"
#include "../comm/os.h"
#include "error_text.h"
#include "notes.h"

DPARI_INTERNAL int dpari_mpi_env(const char *name)
{
    const char *text;
    dpari_site site;
    dpari_site_here(&site);
    text = dpari_site_env(&site, name);
    return text != NULL ? atoi(text) : 0;
}

/* Describes the ranks of a node as a job started by dpar, with an id that no other job has. */
static int dpari_mpi_name(MPI_Comm node, dpar_launcher_info *job)
{
    int rank = 0, size = 1;
    dpar_text t;
    memset(job, 0, sizeof *job);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    job->kind = DPAR_LAUNCHER_DPAR;
    job->rank = job->local_rank = (int32_t)rank;
    job->size = job->local_size = (int32_t)size;
    dpar_text_init(&t, job->id, sizeof job->id);
    dpari_text_say(&t, "node %ld %ld", (int64_t)getpid(), (int64_t)(MPI_Wtime() * 1e9));
    return MPI_Bcast(job->id, (int)sizeof job->id, MPI_CHAR, 0, node);
}

/* Returns the worst status of all ranks, and sets *why to the message of the rank that has it.
 * DPAR_E_PEER and DPAR_E_TIMEOUT count as less bad than other errors, because they usually follow
 * from another rank's failure. Collective. */
static dpar_status dpari_mpi_worst(MPI_Comm user, dpar_status mine, dpar_why *said, dpar_why *why)
{
    enum { CAUSE = 1000 };
    struct {
        int status, rank;
    } own, worst;
    int code;
    own.status = (int)mine;
    own.status -= mine < 0 && mine != DPAR_E_PEER && mine != DPAR_E_TIMEOUT ? (int)CAUSE : 0;
    MPI_Comm_rank(user, &own.rank);
    worst = own;
    code = MPI_Allreduce(&own, &worst, 1, MPI_2INT, MPI_MINLOC, user);
    worst.status += worst.status <= -CAUSE ? (int)CAUSE : 0;
    if (code == MPI_SUCCESS && worst.status < 0) {
        code = MPI_Bcast(said->text, (int)sizeof said->text, MPI_CHAR, worst.rank, user);
    }
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "comparing the results of all ranks", code);
    }
    if (worst.status < 0) {
        (void)dpari_repeat((dpar_status)worst.status, why, said->text);
    }
    return (dpar_status)worst.status;
}

DPARI_INTERNAL dpar_status dpari_mpi_all_well(dpari_mpi_ctx *context, dpar_status mine,
                                              dpar_why *said)
{
    dpar_why *why = &context->comm.why;
    const dpar_status status = dpari_mpi_worst(context->main, mine, said, why);
    return status < 0 ? dpari_mpi_break(context, status, why->text, 0) : status;
}

/* Makes the communicator of a node's memory, once the node's ranks are known. Fails on all ranks if
 * it fails on any. Collective. */
static dpar_status dpari_mpi_meet(MPI_Comm user, MPI_Comm own, const dpar_world_desc *options,
                                  dpar_comm **node, dpar_why *why)
{
    dpar_launcher_info job;
    dpar_world_desc o;
    dpar_comm *made = NULL;
    dpar_why said;
    dpar_status status = DPAR_OK;
    int code = dpari_mpi_name(own, &job);
    memset(&o, 0, sizeof o);
    if (options != NULL) {
        o = *options;
    }
    o.threads = 0;
    memset(&said, 0, sizeof said);
    if (code != MPI_SUCCESS) {
        status = dpari_mpi_say(&said, "MPI_Bcast", code);
    } else {
        status = dpari_job_try(&job, &o, &said);
    }
    status = dpari_mpi_worst(user, status, &said, why);
    if (status < 0) {
        return status;
    }
    status = dpari_job_join(&job, &o, &made, &said);
    status = dpari_mpi_worst(user, status, &said, why);
    if (status < 0) {
        (void)dpar_comm_free(made); /* it may have failed only on another node */
        return status;
    }
    *node = made;
    return DPAR_OK;
}

/* Seconds after which ranks time out that MPI reports to be on one node but that share no
 * memory. */
enum { DPARI_MPI_MEETING = 20 };

/* Makes *node: the ranks of this node, in the order of `own`. With DPAR_MPI_NODE=n, each node is
 * treated as several nodes of at most n ranks. Collective. */
static int dpari_mpi_node_of(MPI_Comm own, MPI_Comm *node)
{
    MPI_Comm whole = MPI_COMM_NULL;
    const int most = dpari_mpi_env("DPAR_MPI_NODE");
    int code = MPI_Comm_split_type(own, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &whole), rank = 0;
    if (code == MPI_SUCCESS) {
        MPI_Comm_rank(whole, &rank);
        code = MPI_Comm_split(whole, most > 0 ? rank / most : 0, 0, node);
        MPI_Comm_free(&whole);
    }
    return code;
}

/* Splits ranks that MPI reports to be on one node but that may be on several: in containers of one
 * machine, or on machines with the same name. The first rank publishes a name (dpari_os_show).
 * Ranks that see it are on its node, and the others repeat this among themselves. Collective over
 * *node, which becomes this rank's part of it. */
static int dpari_mpi_part_node(MPI_Comm *node)
{
    int code = MPI_SUCCESS, all = 0, sees = 0;
    while (code == MPI_SUCCESS && !sees) {
        MPI_Comm part = MPI_COMM_NULL;
        uint64_t shown[2] = {0, 0}; /* the name, and 1 if it was published */
        int rank = 0, fd = -1;
        MPI_Comm_rank(*node, &rank);
        if (rank == 0) {
            fd = dpari_os_show(&shown[0]);
            shown[1] = fd >= 0;
        }
        code = MPI_Bcast(shown, (int)sizeof shown, MPI_BYTE, 0, *node);
        sees = rank == 0 || shown[1] == 0 || dpari_os_sees(shown[0]);
        if (code == MPI_SUCCESS) { /* also waits until all ranks have looked for the name, before it
                                      is removed */
            code = MPI_Allreduce(&sees, &all, 1, MPI_INT, MPI_MIN, *node);
        }
        if (fd >= 0) {
            close(fd);
        }
        if (code == MPI_SUCCESS && !all) {
            code = MPI_Comm_split(*node, sees, 0, &part);
            MPI_Comm_free(node);
            *node = part;
        }
    }
    return code;
}

DPARI_INTERNAL dpar_comm *dpari_mpi_share(MPI_Comm own, const dpar_mpi_desc *o, int32_t *nodes,
                                          dpar_why *flat)
{
    MPI_Comm node = MPI_COMM_NULL;
    dpar_world_desc options;
    dpar_comm *made = NULL;
    int size = 0, here = 0, first = 0, all = 0;
    memset(flat, 0, sizeof *flat);
    memset(&options, 0, sizeof options);
    if (o->flat) {
        (void)dpari_repeat(DPAR_OK, flat, "flat = 1 or DPAR_MPI_FLAT is set");
        return NULL;
    }
    if (dpari_mpi_node_of(own, &node) != MPI_SUCCESS || dpari_mpi_part_node(&node) != MPI_SUCCESS) {
        (void)dpari_repeat(DPAR_OK, flat, "MPI cannot tell which ranks share memory");
        return NULL;
    }
    MPI_Comm_size(own, &size);
    MPI_Comm_rank(node, &here);
    first = here == 0;
    if (MPI_Allreduce(&first, &all, 1, MPI_INT, MPI_SUM, own) != MPI_SUCCESS ||
        (all == size && size > 1)) {
        (void)dpari_repeat(DPAR_OK, flat, "no two ranks are on the same node");
    } else {
        options.timeout_s = DPARI_MPI_MEETING;
        if (o->timeout_s > 0) {
            options.timeout_s = dpari_leastf(o->timeout_s, options.timeout_s);
        }
        (void)dpari_mpi_meet(own, node, &options, &made, flat);
    }
    MPI_Comm_free(&node);
    *nodes = (int32_t)all;
    if (made != NULL) {
        made->timeout_s = o->timeout_s;
    }
    return made;
}

/* Sets the fields of `levels` from first[r], the lowest rank of r's node. The ranks of a node keep
 * their order. */
static void dpari_mpi_sort_nodes(dpari_mpi_levels *levels, const int *first, int32_t n)
{
    int32_t r, k;
    levels->nodes = 0;
    for (r = 0; r < n; r++) {
        levels->node_of[r] = first[r] == r ? levels->nodes++ : levels->node_of[first[r]];
    }
    levels->begin = levels->member + n;
    levels->lane = levels->begin + levels->nodes + 1;
    memset(levels->begin, 0, (size_t)(levels->nodes + 1) * sizeof *levels->begin);
    for (r = 0; r < n; r++) { /* begin[k + 1] counts the ranks of node k */
        levels->lane_of[r] = levels->begin[levels->node_of[r] + 1]++;
    }
    levels->lanes = n;
    levels->even = 1;
    for (k = 0; k < levels->nodes; k++) {
        levels->lanes = (int32_t)dpari_least(levels->lanes, levels->begin[k + 1]);
        levels->even &= levels->begin[k + 1] == levels->begin[1];
        levels->begin[k + 1] += levels->begin[k];
    }
    levels->in_order = 1;
    for (r = 0; r < n; r++) {
        const int32_t at = levels->begin[levels->node_of[r]] + levels->lane_of[r];
        levels->member[at] = r;
        levels->in_order &= at == r;
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_find_levels(dpar_comm *comm)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_levels *levels = &context->level;
    const size_t n = (size_t)comm->size;
    int mine = (int)comm->rank, *first;
    dpar_status status;
    dpar_why said;
    int32_t k, lane;
    if (comm->node == NULL) {
        return DPAR_OK;
    }
    status = dpar_broadcast(comm->node, &mine, 1, DPAR_I32, 0, NULL);
    said = comm->node->why;
    first = (int *)malloc(n * sizeof *first);
    levels->node_of = (int32_t *)malloc((5 * n + 1) * sizeof *levels->node_of);
    if (first == NULL || levels->node_of == NULL) {
        status = dpari_say(DPAR_E_MEMORY, &said, "no memory for the nodes of %d ranks (%ld bytes)",
                           comm->size,
                           (int64_t)(n * sizeof *first + (5 * n + 1) * sizeof *levels->node_of));
    }
    status = dpari_mpi_all_well(context, status, &said);
    if (status >= 0) {
        status =
            dpari_mpi_failed(context, NULL, "finding the nodes",
                             MPI_Allgather(&mine, 1, MPI_INT, first, 1, MPI_INT, context->main));
    }
    if (status >= 0) {
        levels->lane_of = levels->node_of + n;
        levels->member = levels->lane_of + n;
        dpari_mpi_sort_nodes(levels, first, comm->size);
    }
    free(first);
    if (status < 0) {
        return status;
    }
    levels->node = levels->node_of[comm->rank];
    lane = levels->lane_of[comm->rank];
    for (k = 0; k < levels->nodes; k++) {
        levels->lane[k] = levels->begin[k] + lane < levels->begin[k + 1]
                              ? levels->member[levels->begin[k] + lane]
                              : -1;
    }
    if (levels->nodes == comm->size) {
        return DPAR_OK;
    }
    status = dpar_comm_split(comm->node, 0, 0, &levels->inside);
    said = comm->node->why;
    status = dpari_mpi_all_well(context, status, &said);
    if (status >= 0) {
        levels->inside->timeout_s = -1; /* `comm` has the deadline */
    }
    return status;
}

/* Sets *first, which holds this rank, to the lowest rank of its node. Collective. */
static int dpari_mpi_first_here(const dpari_mpi_ctx *context, int *first)
{
    MPI_Comm node = MPI_COMM_NULL;
    int code;
    if (context->level.node_of != NULL) {
        *first = (int)context->level.member[context->level.begin[context->level.node]];
        return MPI_SUCCESS;
    }
    code = dpari_mpi_node_of(context->main, &node);
    if (code == MPI_SUCCESS) {
        code = MPI_Bcast(first, 1, MPI_INT, 0, node);
        MPI_Comm_free(&node);
    }
    return code;
}

/* Numbers the nodes in the order of their lowest ranks: of[r], which held the lowest rank of r's
 * node, becomes the number of that node. Sets count[r] to the bytes of the name that rank r sends,
 * and begin[r] to the offset at which they are stored. Returns the number of nodes. */
static int32_t dpari_mpi_number_hosts(int *of, int *count, int *begin, int32_t n)
{
    int32_t r, hosts = 0;
    for (r = 0; r < n; r++) {
        const int first = of[r] == r;
        begin[r] = (int)hosts * DPARI_MPI_NAME;
        count[r] = first ? (int)DPARI_MPI_NAME : 0;
        of[r] = first ? (int)hosts : of[of[r]];
        hosts += first;
    }
    return hosts;
}

static void dpari_mpi_host_here(char *name, int number)
{
    char words[MPI_MAX_PROCESSOR_NAME + 1];
    int length = 0;
    dpar_text t;
    memset(name, 0, DPARI_MPI_NAME);
    memset(words, 0, sizeof words);
    dpar_text_init(&t, name, DPARI_MPI_NAME - 8);
    if (MPI_Get_processor_name(words, &length) == MPI_SUCCESS) {
        dpar_text_put(&t, words);
    }
    if (dpari_mpi_env("DPAR_MPI_NODE") > 0) { /* simulated nodes have the same name, so number
                                                 them */
        dpar_text_init(&t, name + strlen(name), 8);
        dpari_text_say(&t, "#%d", (int32_t)number);
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_find_hosts(dpari_mpi_ctx *context)
{
    dpari_mpi_world *world = context->world;
    const int32_t n = context->comm.size;
    const char *finding = "finding the nodes";
    int *count = (int *)malloc((size_t)n * 2 * sizeof *count), first = (int)context->comm.rank,
        code;
    int32_t hosts = 0;
    char name[DPARI_MPI_NAME];
    dpar_status status = DPAR_OK;
    dpar_why said;
    memset(&said, 0, sizeof said);
    world->host_of = (int32_t *)malloc((size_t)n * sizeof *world->host_of);
    if (count == NULL || world->host_of == NULL) {
        status = dpari_say(DPAR_E_MEMORY, &said, "no memory for the nodes of %d ranks (%ld bytes)",
                           n, n * (int64_t)(2 * sizeof *count + sizeof *world->host_of));
    }
    code = dpari_mpi_first_here(context, &first);
    if (code == MPI_SUCCESS) {
        status = dpari_mpi_all_well(context, status, &said);
    } else {
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    if (status >= 0) {
        code = MPI_Allgather(&first, 1, MPI_INT, world->host_of, 1, MPI_INT, context->main);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    if (status >= 0) {
        hosts = dpari_mpi_number_hosts(world->host_of, count, count + n, n);
    }
    if (hosts > 1) {
        world->host = (char(*)[DPARI_MPI_NAME])calloc((size_t)hosts, DPARI_MPI_NAME);
        if (world->host == NULL) {
            status =
                dpari_say(DPAR_E_MEMORY, &said, "no memory for the names of %d nodes (%ld bytes)",
                          hosts, (int64_t)hosts * DPARI_MPI_NAME);
        }
        status = dpari_mpi_all_well(context, status, &said);
        dpari_mpi_host_here(name, world->host_of[context->comm.rank]);
    }
    if (hosts > 1 && status >= 0) {
        code = MPI_Allgatherv(name, count[context->comm.rank], MPI_CHAR, world->host, count,
                              count + n, MPI_CHAR, context->main);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    free(count);
    if (status >= 0) {
        code = MPI_Comm_group(context->main, &world->all);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    return status;
}
