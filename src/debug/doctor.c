/* SPDX-License-Identifier: MIT-0 */
/* Makes the reports of dpar_doctor. The report about one process is that of checkup.c. For the
 * report about all ranks, they first exchange a record of fixed format (dpari_doctor_who), so that
 * ranks of different versions of dpar can recognise each other. Rank 0 then gathers the facts about
 * all processes, and what is wrong with each of them, and compares them.
 *
 * The comparison depends only on the gathered data, so that tests can present any job. */
#include "doctor.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/os.h"
#include "checkup.h"

/* The record that each rank first sends to all others. The layout of its 128 bytes is the same in
 * all versions of dpar from 0.2 on, so that ranks notice if their versions differ. */
typedef struct dpari_doctor_who {
    int32_t version;    /* DPAR_VERSION */
    int32_t rank_bytes; /* sizeof(dpari_doctor_rank) */
    uint64_t machine;   /* hash of the boot_id of its kernel; 0 if unknown */
    int32_t share;      /* the lowest rank with which it shares memory; -1 if the engine shares
                           none */
    int32_t unused;
    char host[64];
    int32_t padding[10];
} dpari_doctor_who;

/* What each rank then sends to rank 0. */
typedef struct dpari_doctor_rank {
    dpari_checkup facts;
    double timeout_s;
    char text[2048]; /* the lines about what is wrong with it */
} dpari_doctor_rank;

enum { DPARI_DOCTOR_LINES = 24 }; /* the most lines WRONG: one screen */

/* The job as its ranks describe it, and the report about it. rank is set only on rank 0. */
typedef struct dpari_doctor_job {
    int32_t size, nodes;
    const dpari_doctor_who *who;
    const dpari_doctor_rank *rank;
    int32_t *node;  /* [size] the node of each rank, which is the lowest of its ranks */
    int32_t *ranks; /* [size] the number of ranks of each node; 0 for ranks that are no node */
    char *mark;     /* [size] 1 for the ranks that a line is about */
    dpar_text *out; /* the report */
    dpar_text none; /* a text that stores nothing */
    int32_t wrong;  /* number of lines WRONG */
} dpari_doctor_job;

/* ---- nodes ----------------------------------------------------------------------------------- */

/* True if two ranks are on one node. Compares name and machine, because containers give one machine
 * several names, and two machines may have the same name ("localhost"). */
static int dpari_doctor_one_node(const dpari_doctor_who *a, const dpari_doctor_who *b)
{
    return dpari_same(a->host, b->host) && a->machine == b->machine;
}

/* Sets nodes, node and ranks. */
static void dpari_doctor_find_nodes(dpari_doctor_job *job)
{
    int32_t r, k;
    job->nodes = 0;
    for (r = 0; r < job->size; r++) {
        k = r - 1; /* most often the node of the rank before */
        while (k >= 0 && !dpari_doctor_one_node(&job->who[k], &job->who[r])) {
            k--;
        }
        job->node[r] = k < 0 ? r : job->node[k];
        job->ranks[r] = 0;
        job->ranks[job->node[r]]++;
        job->nodes += k < 0;
    }
}

/* Returns the first marked rank, or -1 if there is none. */
static int32_t dpari_doctor_first_marked(const dpari_doctor_job *job)
{
    int32_t r;
    for (r = 0; r < job->size; r++) {
        if (job->mark[r]) {
            return r;
        }
    }
    return -1;
}

/* ---- naming ranks ---------------------------------------------------------------------------- */

/* Appends the marked ranks: "0 to 3, 6, 9". */
static void dpari_doctor_put_runs(const dpari_doctor_job *job, dpar_text *out)
{
    int32_t r, end, said = 0;
    for (r = 0; r < job->size; r = end) {
        end = r + 1;
        if (!job->mark[r]) {
            continue;
        }
        while (end < job->size && job->mark[end]) {
            end++;
        }
        if (said == 4) {
            dpar_text_put(out, ", ...");
            return;
        }
        dpari_text_print(out, "%s%d", said++ > 0 ? ", " : "", r);
        if (end - r > 1) {
            dpari_text_print(out, "%s%d", end - r > 2 ? " to " : ", ", end - 1);
        }
    }
}

/* Appends the marked ranks: "rank 5 on n2", "ranks 4 to 7 on n2", "all 8 ranks" or "10 ranks (0 to
 * 3, 8, ...) on several nodes". */
static void dpari_doctor_put_marked(const dpari_doctor_job *job, dpar_text *out)
{
    const int32_t first = dpari_doctor_first_marked(job);
    int32_t r, count = 0, several = 0;
    for (r = first; r < job->size; r++) {
        count += job->mark[r];
        several |= job->mark[r] && job->node[r] != job->node[first];
    }
    if (count == job->size && count > 2) {
        dpari_text_print(out, "all %d ranks", count);
        return;
    }
    if (count == job->size && count == 2) {
        dpar_text_put(out, "both ranks");
        return;
    }
    if (count > 4) {
        dpari_text_print(out, "%d ranks (", count);
    } else {
        dpar_text_put(out, count == 1 ? "rank " : "ranks ");
    }
    dpari_doctor_put_runs(job, out);
    dpar_text_put(out, count > 4 ? ") on " : " on ");
    dpar_text_put(out, several ? "several nodes" : job->who[first].host);
}

/* Begins a line WRONG about the marked ranks. After one screen of them, they are only counted. */
static dpar_text *dpari_doctor_accuse(dpari_doctor_job *job)
{
    dpar_text *out = job->wrong++ < DPARI_DOCTOR_LINES ? job->out : &job->none;
    dpar_text_put(out, "WRONG: ");
    dpari_doctor_put_marked(job, out);
    return out;
}

/* ---- what each rank reports about itself ----------------------------------------------------- */

static size_t dpari_doctor_line_length(const char *line)
{
    size_t n = 0;
    while (line[n] != 0 && line[n] != '\n') {
        n++;
    }
    return n;
}

/* Returns the next line of a text, or the end of the text. */
static const char *dpari_doctor_next_line(const char *line)
{
    line += dpari_doctor_line_length(line);
    return line + (*line != 0);
}

/* True if two lines differ only in numbers. */
static int dpari_doctor_same_but_numbers(const char *a, const char *b)
{
    for (;;) {
        while (*a >= '0' && *a <= '9') {
            a++;
        }
        while (*b >= '0' && *b <= '9') {
            b++;
        }
        if (*a != *b || *a == '\n' || *a == 0) {
            return *a == *b;
        }
        a++;
        b++;
    }
}

/* True if rank r has such a line. */
static int dpari_doctor_says(const dpari_doctor_job *job, int32_t r, const char *line)
{
    const char *at = job->rank[r].text;
    while (*at != 0 && !dpari_doctor_same_but_numbers(at, line)) {
        at = dpari_doctor_next_line(at);
    }
    return *at != 0;
}

/* Writes the lines that the ranks wrote about themselves. Lines that differ only in numbers are
 * written once, with the ranks that have them. */
static void dpari_doctor_own(dpari_doctor_job *job)
{
    int32_t r, k;
    for (r = 0; r < job->size; r++) {
        const char *at = job->rank[r].text, *next;
        for (; *at != 0; at = next) {
            dpar_text *out;
            next = dpari_doctor_next_line(at);
            k = 0;
            while (k < r && !dpari_doctor_says(job, k, at)) {
                k++;
            }
            if (k < r) {
                continue; /* written for rank k */
            }
            for (k = 0; k < job->size; k++) {
                job->mark[k] = (char)dpari_doctor_says(job, k, at);
            }
            out = dpari_doctor_accuse(job);
            at += sizeof "WRONG:" - 1;
            dpari_text_char(out, ':');
            dpari_text_slice(out, at, dpari_doctor_line_length(at));
            dpari_text_char(out, '\n');
        }
    }
}

/* ---- what is wrong with the ranks together --------------------------------------------------- */

static void dpari_doctor_put_version(dpar_text *out, int32_t version)
{
    dpari_text_print(out, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* Reports versions of dpar that differ. Needs no facts. */
static void dpari_doctor_versions(dpari_doctor_job *job)
{
    const dpari_doctor_who *a = &job->who[0], *b;
    dpar_text *out;
    int32_t r;
    for (r = 0; r < job->size; r++) {
        b = &job->who[r];
        job->mark[r] = (char)(a->version != b->version || a->rank_bytes != b->rank_bytes);
    }
    r = dpari_doctor_first_marked(job);
    if (r < 0) {
        return;
    }
    b = &job->who[r];
    out = dpari_doctor_accuse(job);
    dpar_text_put(out, ": built with dpar ");
    dpari_doctor_put_version(out, b->version);
    dpar_text_put(out, ", rank 0 with ");
    dpari_doctor_put_version(out, a->version);
    dpari_text_print(out, "%s -> build all from one release; nothing else was checked\n",
                     a->version == b->version ? ", of another commit" : "");
}

/* Reports ranks of one node that do not share memory, because of MPI or the system. */
static void dpari_doctor_unshared(dpari_doctor_job *job)
{
    int32_t r, apart = 0;
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)(job->who[r].share != job->who[job->node[r]].share);
        apart += job->mark[r];
    }
    if (apart > 0) {
        dpar_text *out = dpari_doctor_accuse(job);
        dpari_text_print(
            out,
            "%s not share memory with the first rank of the same node -> see \"joined\" above; use "
            "one container per node (or --ipc=host) and one user, unset DPAR_MPI_FLAT and "
            "DPAR_MPI_NODE\n",
            apart == 1 ? ": does" : ": do");
    }
}

static int dpari_doctor_same_cpus(const uint64_t *a, const uint64_t *b)
{
    int32_t k = 0;
    while (k < DPARI_CPU_WORDS && a[k] == b[k]) {
        k++;
    }
    return k == DPARI_CPU_WORDS;
}

static int32_t dpari_doctor_first_cpu(const uint64_t *mask)
{
    int32_t i = 0;
    while (i < 64 * DPARI_CPU_WORDS - 1 && !(mask[i / 64] >> (i % 64) & 1)) {
        i++;
    }
    return i;
}

/* Reports ranks of the node of rank r that may together use fewer cores than there are ranks: those
 * that are bound to the same cores as rank r, or all of them if `all` is 1. Returns 1 if it
 * reported them. */
static int dpari_doctor_crowded(dpari_doctor_job *job, int32_t r, int all)
{
    const dpari_checkup *mine = &job->rank[r].facts;
    uint64_t any[DPARI_CPU_WORDS];
    int32_t i, k, count = 0, cores;
    dpar_text *out;
    dpari_zero(any, sizeof any);
    for (i = 0; i < job->size; i++) {
        const uint64_t *cpus = job->rank[i].facts.cpus;
        job->mark[i] =
            job->node[i] == job->node[r] && (all || dpari_doctor_same_cpus(cpus, mine->cpus));
        count += job->mark[i];
        for (k = 0; k < DPARI_CPU_WORDS && job->mark[i]; k++) {
            any[k] |= cpus[k];
        }
    }
    cores = dpari_doctor_bits(any);
    if (count <= cores || cores >= mine->cores) {
        return 0;
    }
    if (dpari_doctor_first_marked(job) < r) {
        return 1; /* reported for that rank */
    }
    out = dpari_doctor_accuse(job);
    if (all) {
        dpari_text_print(
            out, ": may together use %d of %d cores -> let the launcher bind each to its own\n",
            cores, mine->cores);
        return 1;
    }
    if (cores == 1) {
        dpari_text_print(out, ": bound to one core, %d", dpari_doctor_first_cpu(any));
    } else {
        dpari_text_print(out, ": bound to the same %d cores", cores);
    }
    dpari_text_print(out,
                     " of %d -> let the launcher bind each to its own (mpirun --bind-to core, srun "
                     "--cpu-bind=cores), or to none\n",
                     mine->cores);
    return 1;
}

/* Reports ranks that are bound to the same cores. Skips nodes with more ranks than cores, because
 * each rank reports that itself. */
static void dpari_doctor_binding(dpari_doctor_job *job)
{
    int32_t r, node;
    for (node = 0; node < job->size; node++) {
        int said = 0;
        if (job->ranks[node] == 0 || job->ranks[node] > job->rank[node].facts.cores) {
            continue;
        }
        for (r = node; r < job->size; r++) {
            said |= job->node[r] == node && dpari_doctor_crowded(job, r, 0);
        }
        if (!said) {
            (void)dpari_doctor_crowded(job, node, 1);
        }
    }
}

/* Reports nodes that run the same kernel. They are containers on one machine, and each of them
 * counts all cores of the machine. The line is only a note if the machine has a core for each rank.
 */
static void dpari_doctor_containers(dpari_doctor_job *job)
{
    int32_t r, node;
    for (node = 0; node < job->size; node++) {
        const uint64_t machine = job->who[node].machine;
        const int32_t cores = job->rank[node].facts.cores;
        int32_t ranks = 0, nodes = 0;
        dpar_text *out = job->out;
        for (r = 0; r < job->size; r++) {
            job->mark[r] = (char)(machine != 0 && job->who[r].machine == machine);
            ranks += job->mark[r];
            nodes += job->mark[r] && job->ranks[r] > 0;
        }
        if (job->ranks[node] == 0 || nodes < 2 || dpari_doctor_first_marked(job) < node) {
            continue;
        }
        if (ranks > cores) {
            out = dpari_doctor_accuse(job);
        } else {
            dpar_text_put(out, "note: ");
            dpari_doctor_put_marked(job, out);
        }
        dpari_text_print(out,
                         ": on one machine, whose %d cores each of %d nodes counts as its own; "
                         "in one container they would share memory%s",
                         cores, nodes,
                         ranks > cores ? " -> start at most as many ranks as cores\n" : "\n");
    }
}

/* Reports ranks of a node that have the same local rank, or would use the same GPU, with one line
 * per rank at most. */
static void dpari_doctor_twins(dpari_doctor_job *job)
{
    int32_t i, k;
    for (i = 0; i < job->size && job->wrong < DPARI_DOCTOR_LINES; i++) {
        const dpari_checkup *b = &job->rank[i].facts;
        for (k = job->node[i]; k < i; k++) {
            const dpari_checkup *a = &job->rank[k].facts;
            const int place = b->job.size > 1 && a->job.size > 1 && a->job.local_rank >= 0 &&
                              a->job.local_rank == b->job.local_rank;
            const int device = b->gpu[0] != 0 && dpari_same(a->gpu, b->gpu);
            dpar_text *out;
            if (job->node[k] != job->node[i] || (!place && !device)) {
                continue;
            }
            dpari_zero(job->mark, (size_t)job->size);
            job->mark[i] = job->mark[k] = 1;
            out = dpari_doctor_accuse(job);
            if (place) {
                dpari_text_print(out, ": both are local rank %d -> start them with one launcher\n",
                                 a->job.local_rank);
            } else {
                dpari_text_print(out,
                                 ": use the same GPU (%s) -> one rank per GPU: set local ranks 0, "
                                 "1, ... or CUDA_VISIBLE_DEVICES for each\n",
                                 b->gpu);
            }
            break;
        }
    }
}

/* Reports a /dev/shm that is smaller than an eighth of another rank's, and smaller than 1 GiB. Such
 * a size comes from the rank's container and not from the job. */
static void dpari_doctor_small_shm(dpari_doctor_job *job)
{
    int32_t r, most = 0;
    int64_t shm;
    dpar_text *out;
    for (r = 0; r < job->size; r++) {
        most = job->rank[r].facts.shm > job->rank[most].facts.shm ? r : most;
    }
    for (r = 0; r < job->size; r++) {
        shm = job->rank[r].facts.shm;
        job->mark[r] = (char)(shm < job->rank[most].facts.shm / 8 && shm < INT64_C(1) << 30);
    }
    r = dpari_doctor_first_marked(job);
    if (r < 0) {
        return;
    }
    shm = job->rank[r].facts.shm;
    out = dpari_doctor_accuse(job);
    dpar_text_put(out, shm < 0 ? ": /dev/shm does not exist" : ": /dev/shm holds ");
    if (shm >= 0) {
        dpari_doctor_bytes(out, shm);
    }
    dpari_text_print(out, ", that of rank %d on %s ", most, job->who[most].host);
    dpari_doctor_bytes(out, job->rank[most].facts.shm);
    dpar_text_put(out, "; MPI and NCCL keep messages of a node there -> make it as large "
                       "(docker run --shm-size=1g)\n");
}

static const char *dpari_doctor_loaded(const char *mpi)
{
    return mpi[0] != 0 ? mpi : "not loaded";
}

/* Reports an MPI or a deadline that differs from that of rank 0. */
static void dpari_doctor_differences(dpari_doctor_job *job)
{
    const dpari_doctor_rank *a = &job->rank[0], *b;
    int32_t r;
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)!dpari_same(job->rank[r].facts.mpi, a->facts.mpi);
    }
    r = dpari_doctor_first_marked(job);
    if (r >= 0) {
        dpari_text_print(
            dpari_doctor_accuse(job),
            ": MPI is %s, on rank 0 %s -> the same MPI on all nodes (modules, LD_LIBRARY_PATH)\n",
            dpari_doctor_loaded(job->rank[r].facts.mpi), dpari_doctor_loaded(a->facts.mpi));
    }
    for (r = 0; r < job->size; r++) {
        b = &job->rank[r];
        job->mark[r] = (char)(b->timeout_s < a->timeout_s || b->timeout_s > a->timeout_s);
    }
    r = dpari_doctor_first_marked(job);
    if (r >= 0) {
        dpari_text_print(
            dpari_doctor_accuse(job),
            ": the deadline is %.3g s, on rank 0 %.3g s (0 or less: none) -> set the same "
            "deadline (timeout_s, DPAR_TIMEOUT) on all\n",
            job->rank[r].timeout_s, a->timeout_s);
    }
}

static void dpari_doctor_compare(dpari_doctor_job *job)
{
    dpari_doctor_own(job);
    dpari_doctor_differences(job);
    dpari_doctor_small_shm(job);
    dpari_doctor_unshared(job);
    dpari_doctor_containers(job);
    dpari_doctor_binding(job);
    dpari_doctor_twins(job);
    if (job->wrong > DPARI_DOCTOR_LINES) {
        dpari_text_print(job->out, "... and %d more\n", job->wrong - DPARI_DOCTOR_LINES);
    }
}

/* ---- the report about all ranks -------------------------------------------------------------- */

/* Returns a hash of the boot_id, which is the same in all containers on one machine, and different
 * on other machines.
 */
static uint64_t dpari_doctor_boot(const dpari_site *site)
{
    char text[64];
    uint64_t h = 0;
    int64_t i, n = dpari_site_read(site, "/proc/sys/kernel/random/boot_id", text, sizeof text);
    for (i = 0; i < n; i++) {
        h = dpari_hash(h, text[i]);
    }
    return h;
}

/* Sets the record that all ranks exchange first. COLLECTIVE over the ranks that share memory. */
static dpar_status dpari_doctor_fill_who(const dpari_site *site, dpar_comm *world,
                                         dpari_doctor_who *who)
{
    char host[256];
    who->version = DPAR_VERSION;
    who->rank_bytes = (int32_t)sizeof(dpari_doctor_rank);
    who->machine = dpari_doctor_boot(site);
    dpari_doctor_host(host);
    dpari_copy_text(who->host, sizeof who->host, host, sizeof host);
    who->share = dpari_same(world->engine.name, "shm") ? 0 : -1;
    if (!dpari_same(world->engine.name, "mpi")) {
        return DPAR_OK;
    }
    who->share = world->rank;
    if (world->node != NULL) {
        dpar_status st =
            dpar_all_reduce(world->node, &world->rank, &who->share, 1, DPAR_I32, DPAR_MIN, NULL);
        if (st != DPAR_OK) {
            dpar_comm_abort(world, st, world->node->why.text);
        }
        return st;
    }
    return DPAR_OK;
}

static void dpari_doctor_say_joined(const dpari_doctor_job *job, const dpari_checkup *checkup,
                                    dpar_comm *world)
{
    dpar_text *out = job->out;
    dpar_text_put(out, "dpar ");
    dpari_doctor_put_version(out, DPAR_VERSION);
    dpari_text_print(out, ": %d ranks on %d%s", job->size, job->nodes,
                     job->nodes == 1 ? " node\n" : " nodes\n");
    dpari_doctor_head(out, "launcher");
    dpar_text_put(out, dpari_launcher_name(checkup->job.kind));
    if (checkup->mpi[0] != 0) {
        dpari_text_print(out, ", MPI %s", checkup->mpi);
    }
    dpari_text_char(out, '\n');
    dpari_doctor_head(out, "joined");
    dpar_comm_describe(world, out);
    dpari_text_char(out, '\n');
}

/* If the launcher's numbers contradict each other, replaces them by the rank and size of the
 * communicator, which was made without them. */
static void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *checkup)
{
    if (checkup->job_status != DPAR_OK) {
        checkup->job_status = DPAR_OK;
        dpari_zero(&checkup->job, sizeof checkup->job);
        checkup->job.rank = world->rank;
        checkup->job.size = world->size;
        checkup->job.local_rank = checkup->job.local_size = -1;
        checkup->here = 1;
    }
}

/* Gathers all facts on rank 0, which writes the report. `mine` is the record of this rank, `ranks`
 * those of all on rank 0. */
static dpar_status dpari_doctor_gather(const dpari_site *site, dpar_comm *world,
                                       dpari_doctor_job *job, dpari_doctor_rank *mine,
                                       dpari_doctor_rank *ranks)
{
    dpar_text own;
    dpar_status st;
    mine->facts.here = job->ranks[job->node[world->rank]];
    mine->facts.nodes = job->nodes;
    mine->timeout_s = world->timeout_s;
    dpar_text_init(&own, mine->text, sizeof mine->text);
    (void)dpari_doctor_judge(site, &mine->facts, &own);
    st = dpar_gather(world, mine, ranks, (int64_t)sizeof *mine, DPAR_U8, 0, NULL);
    if (st == DPAR_OK && world->rank == 0) {
        job->rank = ranks;
        dpari_doctor_compare(job);
    }
    return st == DPAR_OK ? dpar_broadcast(world, &job->wrong, 1, DPAR_I32, 0, NULL) : st;
}

/* Exchanges who the ranks are, and then what they found. */
static dpar_status dpari_doctor_exchange(const dpari_site *site, dpar_comm *world,
                                         dpari_doctor_job *job, dpari_doctor_rank *mine,
                                         dpari_doctor_rank *ranks, dpari_doctor_who *who)
{
    dpar_status st = dpari_doctor_fill_who(site, world, &who[world->rank]);
    if (st == DPAR_OK) {
        st = dpar_all_gather(world, &who[world->rank], who, (int64_t)sizeof *who, DPAR_U8, NULL);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_doctor_find_nodes(job);
    if (world->rank == 0) {
        dpari_doctor_say_joined(job, &mine->facts, world);
    }
    dpari_doctor_versions(job);
    return job->wrong == 0 ? dpari_doctor_gather(site, world, job, mine, ranks) : DPAR_OK;
}

/* Makes the whole report, in `out` of rank 0. Returns on all ranks the number of things that are
 * wrong, or -1 if the communicator broke; world->why then has the reason. */
static int32_t dpari_doctor_together(const dpari_site *site, dpari_doctor_rank *mine,
                                     dpar_comm *world, dpar_text *out)
{
    const int64_t n = world->size, gathered = world->rank == 0 ? n : 0;
    const int64_t bytes = gathered * (int64_t)sizeof *mine +
                          n * (int64_t)(sizeof(dpari_doctor_who) + 2 * sizeof(int32_t) + 1);
    dpari_doctor_rank *ranks = (dpari_doctor_rank *)dpari_os_pages(bytes);
    dpari_doctor_who *who = (dpari_doctor_who *)(void *)(ranks + gathered);
    int64_t sent[DPAR_CALL_COUNT];
    dpari_doctor_job job;
    dpar_status st;
    int32_t k;
    if (ranks == NULL) {
        dpar_why why;
        (void)dpari_say(DPAR_E_SYSTEM, &why,
                        "dpar_doctor: rank %d has no memory for the report (%ld bytes)",
                        world->rank, bytes);
        dpar_comm_abort(world, DPAR_E_SYSTEM, why.text);
        return -1;
    }
    for (k = 0; k < DPAR_CALL_COUNT; k++) {
        sent[k] = world->sent[k];
    }
    dpari_zero(&job, sizeof job);
    job.size = world->size;
    job.who = who;
    job.node = (int32_t *)(void *)(who + n);
    job.ranks = job.node + n;
    job.mark = (char *)(void *)(job.ranks + n);
    job.out = world->rank == 0 ? out : &job.none;
    st = dpari_doctor_exchange(site, world, &job, mine, ranks, who);
    for (k = 0; k < DPAR_CALL_COUNT; k++) {
        world->sent[k] = sent[k];
    }
    dpari_os_unmap(ranks, bytes);
    return st == DPAR_OK ? job.wrong : -1;
}

/* ---- the public function --------------------------------------------------------------------- */

/* Writes the report of this rank about itself if the communicator broke while the ranks were
 * compared. Returns the number of things that are wrong. */
static int32_t dpari_doctor_not_compared(const dpari_site *site, const dpari_checkup *checkup,
                                         const dpar_comm *world, dpar_text *out)
{
    const int32_t wrong = dpari_doctor_judge(site, checkup, out);
    dpari_text_print(out, "WRONG: the ranks cannot be compared: %s -> see dpar_comm_report\n",
                     world->why.text);
    return wrong + 1;
}

DPAR_API DPARI_COLD int32_t dpar_doctor(dpar_comm *world, dpar_text *out)
{
    const int together = world != NULL && world->size > 1;
    dpari_site here;
    dpari_doctor_rank *mine = (dpari_doctor_rank *)dpari_os_pages((int64_t)sizeof *mine);
    int32_t wrong;
    if (mine == NULL) {
        if (together) {
            dpar_comm_abort(world, DPAR_E_SYSTEM, "dpar_doctor: a rank has no page of memory left");
        }
        dpar_text_put(out, "WRONG: no page of memory is left -> end other programs\n");
        return 1;
    }
    dpari_site_here(&here);
    dpari_doctor_look(&here, &mine->facts);
    if (world != NULL) {
        dpari_doctor_joined(world, &mine->facts);
    }
    if (together) {
        wrong = dpari_doctor_together(&here, mine, world, out);
        if (wrong >= 0 && world->rank > 0) {
            dpari_os_unmap(mine, (int64_t)sizeof *mine);
            return wrong;
        }
        if (wrong < 0) {
            wrong = dpari_doctor_not_compared(&here, &mine->facts, world, out);
        }
    } else {
        dpari_doctor_say(&here, &mine->facts, world, out);
        wrong = dpari_doctor_judge(&here, &mine->facts, out);
    }
    if (wrong == 0) {
        dpar_text_put(out, "nothing is wrong\n");
    } else {
        dpari_text_print(out, wrong == 1 ? "%d thing is wrong\n" : "%d things are wrong\n", wrong);
    }
    dpari_os_unmap(mine, (int64_t)sizeof *mine);
    return wrong;
}
