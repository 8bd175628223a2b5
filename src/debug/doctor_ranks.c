/* SPDX-License-Identifier: MIT-0 */
/* Makes the report of dpar_doctor about all ranks of a communicator. First all ranks exchange a
 * record of fixed format (dpari_doctor_who), so that ranks of different versions of dpar can
 * recognise each other. Then they measure their links: each rank of a node with the next rank of
 * the node, and the first rank of a node with that of the next node. Rank 0 gathers the results and
 * the facts about all machines, and writes the report. Called by doctor.c.
 *
 * The report depends only on the exchanged data, so that tests can present any job. */
#include "doctor_ranks.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/os.h"
#include "checkup.h"

/* ---- nodes ----------------------------------------------------------------------------------- */

/* True if two ranks are on one node. Compares name and machine, because containers give one machine
 * several names, and two machines may have the same name ("localhost"). */
static int dpari_doctor_one_node(const dpari_doctor_who *a, const dpari_doctor_who *b)
{
    return dpari_same(a->host, b->host) && a->machine == b->machine;
}

DPARI_INTERNAL int64_t dpari_doctor_job_bytes(int32_t size)
{
    return size * (4 * (int64_t)sizeof(int32_t) + 1);
}

/* Nodes are numbered in the order of their first ranks. */
DPARI_INTERNAL void dpari_doctor_number_nodes(dpari_doctor_job *job, void *memory)
{
    int32_t r, k;
    job->node = (int32_t *)memory;
    job->local = job->node + job->size;
    job->first = job->local + job->size;
    job->ranks = job->first + job->size;
    job->mark = (char *)(void *)(job->ranks + job->size);
    job->nodes = job->most = 0;
    for (r = 0; r < job->size; r++) {
        for (k = 0; k < job->nodes; k++) { /* most often it is the node of the rank before */
            const int32_t node = job->nodes - 1 - k;
            if (dpari_doctor_one_node(&job->who[job->first[node]], &job->who[r])) {
                break;
            }
        }
        k = job->nodes - 1 - k;
        if (k < 0) {
            k = job->nodes++;
            job->first[k] = r;
            job->ranks[k] = 0;
        }
        job->node[r] = k;
        job->local[r] = job->ranks[k]++;
        job->most = job->ranks[k] > job->most ? job->ranks[k] : job->most;
    }
}

DPARI_INTERNAL int32_t dpari_doctor_level(const dpari_doctor_job *job, int32_t a, int32_t b)
{
    if (job->who[a].share >= 0 && job->who[a].share == job->who[b].share) {
        return job->who[a].socket >= 0 && job->who[a].socket == job->who[b].socket
                   ? DPARI_DOCTOR_SOCKET
                   : DPARI_DOCTOR_MEMORY;
    }
    return job->node[a] == job->node[b] ? DPARI_DOCTOR_UNSHARED : DPARI_DOCTOR_BETWEEN;
}

/* Returns rank number `local` of a node, or -1 if there is none. */
static int32_t dpari_doctor_at(const dpari_doctor_job *job, int32_t node, int32_t local)
{
    int32_t r;
    if (local < 0 || local >= job->ranks[node]) {
        return -1;
    }
    for (r = job->first[node]; job->node[r] != node || job->local[r] != local; r++) {
        ;
    }
    return r;
}

/* Returns the round in which the link from a node to the next one is measured. Nodes form a ring:
 * the even nodes measure first, then the odd ones, and then, if the number of nodes is odd, the
 * last one. */
static int32_t dpari_doctor_first_round(const dpari_doctor_job *job, int32_t node)
{
    return node == job->nodes - 1 && node % 2 == 0 ? 2 : node % 2;
}

DPARI_INTERNAL int32_t dpari_doctor_rounds(const dpari_doctor_job *job)
{
    int32_t between = 2 + job->nodes % 2;
    if (job->nodes <= 2) {
        between = job->nodes - 1;
    }
    return job->most - 1 + between;
}

DPARI_INTERNAL int32_t dpari_doctor_meets(const dpari_doctor_job *job, int32_t round, int32_t me)
{
    const int32_t node = job->node[me], local = job->local[me], late = round - (job->most - 1);
    int32_t next, last;
    if (late < 0 && local == round) {
        return dpari_doctor_at(job, node, local + 1);
    }
    if (late < 0) {
        return local == round + 1 ? dpari_doctor_at(job, node, local - 1) : -1;
    }
    next = (node + 1) % job->nodes;
    last = (node + job->nodes - 1) % job->nodes;
    if (local > 0) {
        return -1;
    }
    if (dpari_doctor_first_round(job, node) == late) {
        return job->first[next];
    }
    return dpari_doctor_first_round(job, last) == late ? job->first[last] : -1;
}

DPARI_INTERNAL int dpari_doctor_leads(const dpari_doctor_job *job, int32_t round, int32_t me)
{
    const int32_t late = round - (job->most - 1);
    return late < 0 ? job->local[me] == round
                    : dpari_doctor_first_round(job, job->node[me]) == late;
}

/* ---- naming ranks ---------------------------------------------------------------------------- */

enum { DPARI_DOCTOR_LINES = 24 }; /* the most lines WRONG, and lines about nodes: one screen */

typedef struct dpari_doctor_tally {
    dpar_text *out, none; /* the report, and a text that stores nothing */
    int32_t wrong;        /* number of lines WRONG */
} dpari_doctor_tally;

static void dpari_doctor_tally_init(dpari_doctor_tally *tally, dpar_text *out)
{
    dpar_text_init(&tally->none, NULL, 0);
    tally->out = out != NULL ? out : &tally->none;
    tally->wrong = 0;
}

/* Appends the marked ranks of a node, or of all nodes if it is -1: "0 to 3, 6, 9". */
static void dpari_doctor_put_runs(const dpari_doctor_job *job, int32_t node, dpar_text *out)
{
    int32_t r, end, said = 0;
    for (r = 0; r < job->size; r = end) {
        end = r + 1;
        if (!job->mark[r] || (node >= 0 && job->node[r] != node)) {
            continue;
        }
        while (end < job->size && job->mark[end] && (node < 0 || job->node[end] == node)) {
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
    int32_t r, count = 0, first = -1, nodes = 0, node = -1;
    for (r = 0; r < job->size; r++) {
        if (job->mark[r]) {
            first = count++ == 0 ? r : first;
            nodes += nodes < 2 && job->node[r] != node;
            node = job->node[r];
        }
    }
    if (count == job->size && count > 1) {
        dpar_text_put(out, count == 2 ? "both" : "all ");
        if (count > 2) {
            dpari_text_int(out, count);
        }
        dpar_text_put(out, " ranks");
        return;
    }
    if (count > 4) {
        dpari_text_print(out, "%d ranks (", count);
    } else {
        dpar_text_put(out, count == 1 ? "rank " : "ranks ");
    }
    dpari_doctor_put_runs(job, -1, out);
    dpar_text_put(out, count > 4 ? ") on " : " on ");
    dpar_text_put(out, nodes == 1 ? job->who[first].host : "several nodes");
}

static void dpari_doctor_unmark(const dpari_doctor_job *job)
{
    dpari_zero(job->mark, (size_t)job->size);
}

/* Begins a line WRONG. After one screen of them, they are only counted. */
static dpar_text *dpari_doctor_complain(dpari_doctor_tally *tally)
{
    dpar_text *out = tally->wrong++ < DPARI_DOCTOR_LINES ? tally->out : &tally->none;
    dpar_text_put(out, "WRONG: ");
    return out;
}

/* Begins a line WRONG with the marked ranks as its subject. */
static dpar_text *dpari_doctor_accuse(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    dpar_text *out = dpari_doctor_complain(tally);
    dpari_doctor_put_marked(job, out);
    return out;
}

/* ---- what each rank reports about itself ----------------------------------------------------- */

static size_t dpari_doctor_line_length(const char *s, size_t most)
{
    size_t n = 0;
    while (n < most && s[n] != '\n') {
        n++;
    }
    return n;
}

/* True if two lines differ only in numbers. */
static int dpari_doctor_same_but_numbers(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0, k = 0;
    for (;;) {
        while (i < n && a[i] >= '0' && a[i] <= '9') {
            i++;
        }
        while (k < m && b[k] >= '0' && b[k] <= '9') {
            k++;
        }
        if (i == n || k == m) {
            return i == n && k == m;
        }
        if (a[i++] != b[k++]) {
            return 0;
        }
    }
}

/* Marks the ranks that have a line like [line, line + n). */
static void dpari_doctor_mark_sayers(const dpari_doctor_job *job, const char *line, size_t n)
{
    const char *at = job->text;
    int32_t r;
    for (r = 0; r < job->size; r++) {
        const char *end = at + job->chart[r].text_bytes;
        job->mark[r] = 0;
        while (at < end) {
            const size_t m = dpari_doctor_line_length(at, (size_t)(end - at));
            job->mark[r] = (char)(job->mark[r] || dpari_doctor_same_but_numbers(line, n, at, m));
            at += m + (at + m < end);
        }
    }
}

/* Writes the lines that the ranks wrote about themselves. Lines that differ only in numbers are
 * written once, with the ranks that have them. */
static void dpari_doctor_say_own(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    const char *seen[DPARI_DOCTOR_LINES], *at = job->text;
    size_t length[DPARI_DOCTOR_LINES];
    int32_t r, k, lines = 0;
    for (r = 0; r < job->size; r++) {
        const char *end = at + job->chart[r].text_bytes;
        while (at < end && lines < DPARI_DOCTOR_LINES) {
            const size_t n = dpari_doctor_line_length(at, (size_t)(end - at));
            size_t head = 0;
            for (k = 0; k < lines && !dpari_doctor_same_but_numbers(at, n, seen[k], length[k]);
                 k++) {
                ;
            }
            if (k == lines && n > 0) {
                dpar_text *out = tally->out;
                seen[lines] = at;
                length[lines++] = n;
                while (head < n && at[head] != ' ') { /* "WRONG:" or "note:" */
                    head++;
                }
                dpari_doctor_mark_sayers(job, at, n);
                if (at[0] == 'W') {
                    out = dpari_doctor_accuse(tally, job);
                } else {
                    dpari_text_slice(out, at, head);
                    dpari_text_char(out, ' ');
                    dpari_doctor_put_marked(job, out);
                }
                dpari_text_char(out, ':');
                dpari_text_slice(out, at + head, n - head);
                dpari_text_char(out, '\n');
            }
            at += n + (at + n < end);
        }
        at = end;
    }
}

/* ---- what is wrong with the ranks together --------------------------------------------------- */

static void dpari_doctor_put_version(dpar_text *out, int32_t version)
{
    dpari_text_print(out, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

DPARI_INTERNAL int32_t dpari_doctor_versions(const dpari_doctor_job *job, dpar_text *out)
{
    dpari_doctor_tally t;
    int32_t r, first = -1;
    dpari_doctor_tally_init(&t, out);
    for (r = 0; r < job->size; r++) {
        const dpari_doctor_who *a = &job->who[0], *b = &job->who[r];
        job->mark[r] = (char)(a->version != b->version || a->chart_bytes != b->chart_bytes);
        first = job->mark[r] && first < 0 ? r : first;
    }
    if (first >= 0) {
        dpar_text *to = dpari_doctor_accuse(&t, job);
        dpar_text_put(to, ": built with dpar ");
        dpari_doctor_put_version(to, job->who[first].version);
        dpar_text_put(to, ", rank 0 with ");
        dpari_doctor_put_version(to, job->who[0].version);
        dpari_text_print(to, "%s -> build all from one release; nothing else was checked\n",
                         job->who[first].version == job->who[0].version ? ", of another commit"
                                                                        : "");
    }
    return t.wrong;
}

/* Reports ranks of one node that do not share memory, because of MPI or the system. */
static void dpari_doctor_unshared(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t r, apart = 0;
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)(job->who[r].share != job->who[job->first[job->node[r]]].share);
        apart += job->mark[r];
    }
    if (apart > 0) {
        dpar_text *out = dpari_doctor_accuse(tally, job);
        dpari_text_print(
            out,
            "%s not share memory with the first rank of the same node -> see \"joined\" above; use "
            "one container per node (or --ipc=host) and one user, unset DPAR_MPI_FLAT and "
            "DPAR_MPI_NODE\n",
            apart == 1 ? ": does" : ": do");
    }
}

static int dpari_doctor_same_cpus(const dpari_doctor_chart *a, const dpari_doctor_chart *b)
{
    int32_t k;
    for (k = 0; k < DPARI_CPU_WORDS; k++) {
        if (a->cpus[k] != b->cpus[k]) {
            return 0;
        }
    }
    return 1;
}

static int32_t dpari_doctor_first_cpu(const uint64_t *mask)
{
    int32_t i = 0;
    while (i < 64 * DPARI_CPU_WORDS - 1 && !(mask[i / 64] >> (i % 64) & 1)) {
        i++;
    }
    return i;
}

/* Reports the ranks that are bound to the same cores as rank r if there are more of them than
 * cores. Returns 1 if it reported them. */
static int dpari_doctor_bound_together(dpari_doctor_tally *tally, const dpari_doctor_job *job,
                                       int32_t r)
{
    const dpari_doctor_chart *mine = &job->chart[r];
    const int32_t cores = dpari_doctor_bits(mine->cpus);
    int32_t i, count = 0;
    dpar_text *out;
    dpari_doctor_unmark(job);
    for (i = job->first[job->node[r]]; i < job->size; i++) {
        if (job->node[i] == job->node[r] && dpari_doctor_same_cpus(&job->chart[i], mine)) {
            if (i < r) {
                return 0; /* reported for rank i */
            }
            job->mark[i] = 1;
            count++;
        }
    }
    if (count <= cores || cores >= mine->cores) {
        return 0;
    }
    out = dpari_doctor_accuse(tally, job);
    if (cores == 1) {
        dpari_text_print(out, ": bound to one core, %d", dpari_doctor_first_cpu(mine->cpus));
    } else {
        dpari_text_print(out, ": bound to the same %d cores", cores);
    }
    dpari_text_print(out,
                     " of %d -> let the launcher bind each to its own (mpirun --bind-to core, srun "
                     "--cpu-bind=cores), or to none\n",
                     mine->cores);
    return 1;
}

/* Reports a node whose ranks may together use fewer cores than there are ranks. */
static void dpari_doctor_crowded(dpari_doctor_tally *tally, const dpari_doctor_job *job,
                                 int32_t node)
{
    uint64_t any[DPARI_CPU_WORDS];
    int32_t r, k, allowed;
    dpar_text *out;
    dpari_zero(any, sizeof any);
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)(job->node[r] == node);
        for (k = 0; k < DPARI_CPU_WORDS && job->mark[r]; k++) {
            any[k] |= job->chart[r].cpus[k];
        }
    }
    allowed = dpari_doctor_bits(any);
    if (allowed < job->ranks[node] && allowed < job->chart[job->first[node]].cores) {
        out = dpari_doctor_accuse(tally, job);
        dpari_text_print(
            out, ": may together use %d of %d cores -> let the launcher bind each to its own\n",
            allowed, job->chart[job->first[node]].cores);
    }
}

/* Reports ranks that are bound to the same cores, or not bound. Skips nodes with more ranks than
 * cores, because each rank reports that itself. */
static void dpari_doctor_binding(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t r, node, unbound = 0, sockets = 1;
    for (node = 0; node < job->nodes; node++) {
        int said = 0;
        if (job->ranks[node] > job->chart[job->first[node]].cores) {
            continue;
        }
        for (r = job->first[node]; r < job->size; r++) {
            said |= job->node[r] == node && dpari_doctor_bound_together(tally, job, r);
        }
        if (!said) {
            dpari_doctor_crowded(tally, job, node);
        }
    }
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)(job->ranks[job->node[r]] > 1 && job->chart[r].sockets > 1 &&
                              job->who[r].socket < 0);
        unbound += job->mark[r];
        sockets = job->mark[r] ? job->chart[r].sockets : sockets;
    }
    if (unbound > 0) {
        dpar_text *out = dpari_doctor_accuse(tally, job);
        dpari_text_print(out,
                         ": not bound, and may move away from their memory to another of %d "
                         "sockets -> mpirun --bind-to core, srun --cpu-bind=cores\n",
                         sockets);
    }
}

/* Reports nodes that run the same kernel. They are containers on one machine, and each of them
 * counts all cores of the machine. The line is only a note if the machine has a core for each rank.
 */
static void dpari_doctor_containers(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t r, k, first, count, others;
    for (first = 0; first < job->nodes; first++) {
        const dpari_doctor_who *a = &job->who[job->first[first]];
        const int32_t cores = job->chart[job->first[first]].cores;
        others = count = 0;
        for (r = 0; r < job->size; r++) {
            job->mark[r] = (char)(job->who[r].machine == a->machine);
            count += job->mark[r];
        }
        for (k = 0; k < job->nodes && others >= 0 && a->machine != 0; k++) {
            if (k != first && job->mark[job->first[k]]) {
                others = k < first ? -1 : others + 1; /* -1 if reported for node k */
            }
        }
        if (others > 0) {
            const int more = count > cores;
            dpar_text *out = more ? dpari_doctor_accuse(tally, job) : tally->out;
            if (!more) {
                dpar_text_put(out, "note: ");
                dpari_doctor_put_marked(job, out);
            }
            dpari_text_print(out,
                             ": on one machine, whose %d cores each of %d nodes counts as its own; "
                             "in one container they would share memory%s",
                             cores, others + 1,
                             more ? " -> start at most as many ranks as cores\n" : "\n");
        }
    }
}

/* Reports ranks of a node that have the same local rank, or would use the same device, with one
 * line per rank at most. */
static void dpari_doctor_twins(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t i, k;
    for (i = 0; i < job->size; i++) {
        for (k = job->first[job->node[i]]; k < i; k++) {
            const dpari_doctor_chart *a = &job->chart[k], *b = &job->chart[i];
            const int place = a->local_rank >= 0 && a->local_rank == b->local_rank;
            const int device = b->gpu[0] != 0 && dpari_same(a->gpu, b->gpu);
            dpar_text *out;
            if (job->node[k] != job->node[i] || (!place && !device)) {
                continue;
            }
            dpari_doctor_unmark(job);
            job->mark[i] = job->mark[k] = 1;
            out = dpari_doctor_accuse(tally, job);
            if (place) {
                dpari_text_print(out, ": both are local rank %d -> start them with one launcher\n",
                                 a->local_rank);
            } else {
                dpari_text_print(out,
                                 ": use the same GPU (%s) -> one rank per GPU: set local ranks 0, "
                                 "1, ... or CUDA_VISIBLE_DEVICES for each\n",
                                 b->gpu);
            }
            if (tally->wrong >= DPARI_DOCTOR_LINES) {
                return; /* the report shows no more lines */
            }
            break;
        }
    }
}

/* Reports a /dev/shm that is smaller than an eighth of another rank's, and smaller than 1 GiB. Such
 * a size comes from the rank's container and not from the job. */
static void dpari_doctor_small_shm(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t r, first = -1, most = 0;
    dpar_text *out;
    for (r = 0; r < job->size; r++) {
        most = job->chart[r].shm > job->chart[most].shm ? r : most;
    }
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)(job->chart[r].shm < job->chart[most].shm / 8 &&
                              job->chart[r].shm < INT64_C(1) << 30);
        first = job->mark[r] && first < 0 ? r : first;
    }
    if (first < 0) {
        return;
    }
    out = dpari_doctor_accuse(tally, job);
    dpar_text_put(out, ": /dev/shm ");
    if (job->chart[first].shm < 0) {
        dpar_text_put(out, "does not exist");
    } else {
        dpar_text_put(out, "holds ");
        dpari_doctor_bytes(out, job->chart[first].shm);
    }
    dpari_text_print(out, ", that of rank %d on %s ", most, job->who[most].host);
    dpari_doctor_bytes(out, job->chart[most].shm);
    dpar_text_put(out, "; MPI and NCCL keep messages of a node there -> make it as large "
                       "(docker run --shm-size=1g)\n");
}

/* Reports an MPI or a deadline that differs from that of rank 0. */
static void dpari_doctor_differences(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    int32_t r, other = -1;
    for (r = 0; r < job->size; r++) {
        job->mark[r] = (char)!dpari_same(job->chart[r].mpi, job->chart[0].mpi);
        other = job->mark[r] && other < 0 ? r : other;
    }
    if (other >= 0) {
        dpar_text *out = dpari_doctor_accuse(tally, job);
        const char *there = job->chart[other].mpi[0] != 0 ? job->chart[other].mpi : "not loaded";
        const char *first = job->chart[0].mpi[0] != 0 ? job->chart[0].mpi : "not loaded";
        dpari_text_print(
            out,
            ": MPI is %s, on rank 0 %s -> the same MPI on all nodes (modules, LD_LIBRARY_PATH)\n",
            there, first);
    }
    other = -1;
    for (r = 0; r < job->size; r++) {
        job->mark[r] = job->chart[r].timeout_s < job->chart[0].timeout_s ||
                       job->chart[r].timeout_s > job->chart[0].timeout_s;
        other = job->mark[r] && other < 0 ? r : other;
    }
    if (other >= 0) {
        dpar_text *out = dpari_doctor_accuse(tally, job);
        dpari_text_print(
            out,
            ": the deadline is %.3g s, on rank 0 %.3g s (0 or less: none) -> set the same "
            "deadline (timeout_s, DPAR_TIMEOUT) on all\n",
            job->chart[other].timeout_s, job->chart[0].timeout_s);
    }
}

/* ---- how fast messages are ------------------------------------------------------------------- */

/* The measurements of one level. */
typedef struct dpari_doctor_speed {
    int32_t pairs;             /* number of links */
    int32_t slow, thin;        /* the links with the worst latency and the worst bandwidth */
    double latency_s, bytes_s; /* medians */
} dpari_doctor_speed;

static const dpari_doctor_link *dpari_doctor_measured(const dpari_doctor_job *job, int32_t level,
                                                      int32_t k)
{
    const dpari_doctor_chart *chart = &job->chart[k % job->size];
    const dpari_doctor_link *link = k < job->size ? &chart->within : &chart->between;
    return link->peer >= 0 && dpari_doctor_level(job, k % job->size, link->peer) == level ? link
                                                                                          : NULL;
}

/* Counts the links of the level that have a lower latency than link k, or a lower bandwidth if
 * `thin` is 1. Of equal links, those with a lower number count. */
static int32_t dpari_doctor_below(const dpari_doctor_job *job, int32_t level, int32_t k, int thin)
{
    const dpari_doctor_link *a = dpari_doctor_measured(job, level, k);
    int32_t i, n = 0;
    for (i = 0; i < 2 * job->size; i++) {
        const dpari_doctor_link *b = dpari_doctor_measured(job, level, i);
        if (b != NULL && i != k) {
            const double x = thin ? a->bytes_s : a->latency_s;
            const double y = thin ? b->bytes_s : b->latency_s;
            n += y < x || (!(x < y) && i < k);
        }
    }
    return n;
}

/* Computes the medians (the upper one of an even number) and finds the worst links. */
static dpari_doctor_speed dpari_doctor_speed_of(const dpari_doctor_job *job, int32_t level)
{
    dpari_doctor_speed s;
    int32_t k;
    dpari_zero(&s, sizeof s);
    for (k = 0; k < 2 * job->size; k++) {
        s.pairs += dpari_doctor_measured(job, level, k) != NULL;
    }
    for (k = 0; k < 2 * job->size; k++) {
        const dpari_doctor_link *link = dpari_doctor_measured(job, level, k);
        int32_t slower, wider;
        if (link == NULL) {
            continue;
        }
        slower = dpari_doctor_below(job, level, k, 0);
        wider = dpari_doctor_below(job, level, k, 1);
        s.latency_s = slower == s.pairs / 2 ? link->latency_s : s.latency_s;
        s.bytes_s = wider == s.pairs / 2 ? link->bytes_s : s.bytes_s;
        s.slow = slower == s.pairs - 1 ? k : s.slow;
        s.thin = wider == 0 ? k : s.thin;
    }
    return s;
}

static void dpari_doctor_put_latency(dpar_text *out, double seconds)
{
    if (seconds >= 999.5e-6) {
        dpari_text_print(out, "%.3g ms", seconds * 1e3);
    } else {
        dpari_text_print(out, "%.3g us", seconds * 1e6);
    }
}

DPARI_STATIC_NOINLINE void dpari_doctor_put_rate(dpar_text *out, double bytes_s)
{
    dpari_text_print(out, "%.3g GB/s", bytes_s * 1e-9);
}

/* Appends "ranks 4 and 5 on n2" or "ranks 3 on n1 and 4 on n2". */
static void dpari_doctor_put_pair(const dpari_doctor_job *job, int32_t a, int32_t b, dpar_text *out)
{
    dpari_text_print(out, "ranks %d", a);
    if (job->node[a] != job->node[b]) {
        dpari_text_print(out, " on %s", job->who[a].host);
    }
    dpari_text_print(out, " and %d on %s", b, job->who[b].host);
}

static void dpari_doctor_say_level(const dpari_doctor_job *job, int32_t level, dpar_text *out)
{
    static const char name[DPARI_DOCTOR_LEVELS][24] = {"a socket, by memory", "a node, by memory",
                                                       "a node, by messages", "nodes"};
    const dpari_doctor_speed s = dpari_doctor_speed_of(job, level);
    const dpari_doctor_link *link;
    if (s.pairs == 0) {
        return;
    }
    dpari_doctor_head(out, level == DPARI_DOCTOR_BETWEEN ? "between" : "within");
    dpari_text_print(out, "%s: 8 B in ", name[level]);
    dpari_doctor_put_latency(out, s.latency_s);
    dpar_text_put(out, ", 1 MiB at ");
    dpari_doctor_put_rate(out, s.bytes_s);
    if (s.pairs == 1) {
        link = dpari_doctor_measured(job, level, s.slow);
        dpar_text_put(out, " (");
        dpari_doctor_put_pair(job, s.slow % job->size, link->peer, out);
        dpar_text_put(out, ")\n");
        return;
    }
    dpari_text_print(out, ", medians of %d pairs; worst ", s.pairs);
    link = dpari_doctor_measured(job, level, s.slow);
    dpari_doctor_put_latency(out, link->latency_s);
    dpar_text_put(out, " (");
    dpari_doctor_put_pair(job, s.slow % job->size, link->peer, out);
    dpar_text_put(out, "), ");
    link = dpari_doctor_measured(job, level, s.thin);
    dpari_doctor_put_rate(out, link->bytes_s);
    dpar_text_put(out, " (");
    dpari_doctor_put_pair(job, s.thin % job->size, link->peer, out);
    dpar_text_put(out, ")\n");
}

DPARI_INTERNAL void dpari_doctor_say_levels(const dpari_doctor_job *job, dpar_text *out)
{
    int32_t level;
    for (level = 0; level < DPARI_DOCTOR_LEVELS; level++) {
        dpari_doctor_say_level(job, level, out);
    }
}

/* True if the node of rank r has a core for each of its ranks. Otherwise its links are slow for
 * that reason. */
static int dpari_doctor_fits(const dpari_doctor_job *job, int32_t r)
{
    return job->ranks[job->node[r]] <= job->chart[r].cores;
}

/* Reports a link that is far worse than the others of its level: 8 times the latency, or a fifth of
 * the rate. Two measurements of one link do not differ so much. */
static void dpari_doctor_odd_links(dpari_doctor_tally *tally, const dpari_doctor_job *job,
                                   int32_t level)
{
    const dpari_doctor_speed s = dpari_doctor_speed_of(job, level);
    int32_t k;
    for (k = 0; k < 2 * job->size && s.pairs >= 3; k++) {
        const dpari_doctor_link *link = dpari_doctor_measured(job, level, k);
        const int32_t a = k % job->size;
        dpar_text *out;
        if (link == NULL || !dpari_doctor_fits(job, a) || !dpari_doctor_fits(job, link->peer) ||
            (link->latency_s <= 8 * s.latency_s && link->bytes_s >= s.bytes_s / 5)) {
            continue;
        }
        out = dpari_doctor_complain(tally);
        dpari_doctor_put_pair(job, a, link->peer, out);
        dpar_text_put(out, ": ");
        dpari_doctor_put_latency(out, link->latency_s);
        dpar_text_put(out, " and ");
        dpari_doctor_put_rate(out, link->bytes_s);
        dpari_text_print(out, ", the median of %d such pairs is ", s.pairs);
        dpari_doctor_put_latency(out, s.latency_s);
        dpar_text_put(out, " and ");
        dpari_doctor_put_rate(out, s.bytes_s);
        dpar_text_put(out, level == DPARI_DOCTOR_BETWEEN
                               ? " -> look at the cable, port and switch between them\n"
                               : " -> look for other programs on their cores\n");
    }
}

/* Reports nodes whose messages are far slower than their ports, because they use another port or a
 * detour. */
static void dpari_doctor_ports(dpari_doctor_tally *tally, const dpari_doctor_job *job)
{
    const dpari_doctor_speed s = dpari_doctor_speed_of(job, DPARI_DOCTOR_BETWEEN);
    const double mbits = s.bytes_s * 8e-6;
    int64_t least = INT64_MAX;
    int32_t r;
    dpar_text *out;
    for (r = 0; r < job->size; r++) {
        least = dpari_least(least, job->chart[r].port);
    }
    if (s.pairs == 0 || least <= 0 || mbits >= (double)least / 10) {
        return;
    }
    out = dpari_doctor_complain(tally);
    dpar_text_put(out, "between nodes ");
    dpari_doctor_put_rate(out, s.bytes_s);
    dpari_text_print(out,
                     " (%.3g Gb/s), where each has a port of %.3g Gb/s -> tell MPI which "
                     "(btl_tcp_if_include, UCX_NET_DEVICES, MPICH_OFI_NIC_POLICY)\n",
                     mbits * 1e-3, (double)least * 1e-3);
}

/* ---- the lines of the report ----------------------------------------------------------------- */

DPARI_INTERNAL int32_t dpari_doctor_compare(const dpari_doctor_job *job, dpar_text *out)
{
    dpari_doctor_tally t;
    int32_t level;
    dpari_doctor_tally_init(&t, out);
    dpari_doctor_say_own(&t, job);
    dpari_doctor_differences(&t, job);
    dpari_doctor_small_shm(&t, job);
    dpari_doctor_unshared(&t, job);
    dpari_doctor_containers(&t, job);
    dpari_doctor_binding(&t, job);
    dpari_doctor_twins(&t, job);
    for (level = 0; level < DPARI_DOCTOR_LEVELS; level++) {
        dpari_doctor_odd_links(&t, job, level);
    }
    dpari_doctor_ports(&t, job);
    if (t.wrong > DPARI_DOCTOR_LINES) {
        dpari_text_print(out, "... and %d more\n", t.wrong - DPARI_DOCTOR_LINES);
    }
    return t.wrong;
}

/* Appends how the ranks of a node are bound: ", each bound to 1 core". */
static void dpari_doctor_put_bound(const dpari_doctor_job *job, int32_t node, dpar_text *out)
{
    int32_t r, least = INT32_MAX, most = 0;
    for (r = job->first[node]; r < job->size; r++) {
        if (job->node[r] == node) {
            const int32_t n = dpari_doctor_bits(job->chart[r].cpus);
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
    }
    if (least >= job->chart[job->first[node]].cores) {
        dpar_text_put(out, ", not bound");
        return;
    }
    dpari_text_print(out, "%s%d", job->ranks[node] > 1 ? ", each bound to " : ", bound to ", least);
    if (most > least) {
        dpari_text_print(out, " to %d", most);
    }
    dpar_text_put(out, most == 1 ? " core" : " cores");
}

/* Appends the part of a line that is the same for equal nodes: "on 64 cores of 2 sockets, ...". */
static void dpari_doctor_put_node(const dpari_doctor_job *job, int32_t node, dpar_text *out)
{
    const dpari_doctor_chart *chart = &job->chart[job->first[node]];
    dpari_text_print(out, " on %d%s", chart->cores, chart->cores == 1 ? " core" : " cores");
    if (chart->sockets > 0) {
        dpari_text_print(out, " of %d%s", chart->sockets,
                         chart->sockets == 1 ? " socket" : " sockets");
    }
    dpari_doctor_put_bound(job, node, out);
    dpar_text_put(out, ", memory ");
    dpari_text_int(out,
                   (chart->memory + (INT64_C(1) << 29)) >> 30); /* equal nodes differ by pages */
    dpar_text_put(out, " GiB, /dev/shm ");
    if (chart->shm < 0) {
        dpar_text_put(out, "none");
    } else {
        dpari_doctor_bytes(out, chart->shm);
    }
    if (chart->gpus > 0) {
        dpari_text_print(out, ", %d%s", chart->gpus, chart->gpus == 1 ? " GPU" : " GPUs");
    }
    dpari_text_print(out, "; %s\n", chart->ports[0] != 0 ? chart->ports : "no port is up");
}

static int dpari_doctor_same_node(const dpari_doctor_job *job, int32_t a, int32_t b)
{
    char x[300], y[300];
    dpar_text t;
    dpar_text_init(&t, x, sizeof x);
    dpari_doctor_put_node(job, a, &t);
    dpar_text_init(&t, y, sizeof y);
    dpari_doctor_put_node(job, b, &t);
    return job->ranks[a] == job->ranks[b] && dpari_same(x, y);
}

/* Writes a line for each node. If there are more than 8, consecutive equal nodes share a line. */
DPARI_INTERNAL void dpari_doctor_say_nodes(const dpari_doctor_job *job, dpar_text *out)
{
    int32_t node, end, r, lines = 0;
    for (node = 0; node < job->nodes; node = end) {
        end = node + 1;
        while (job->nodes > 8 && end < job->nodes && dpari_doctor_same_node(job, node, end)) {
            end++;
        }
        if (lines++ == DPARI_DOCTOR_LINES) {
            dpari_text_print(out, "... and %d more nodes\n", job->nodes - node);
            return;
        }
        dpari_doctor_head(out, job->who[job->first[node]].host);
        if (end - node > 1) {
            dpari_text_print(out, "to %s: %d nodes, on each %d%s",
                             job->who[job->first[end - 1]].host, end - node, job->ranks[node],
                             job->ranks[node] == 1 ? " rank" : " ranks");
        } else {
            for (r = 0; r < job->size; r++) {
                job->mark[r] = (char)(job->node[r] == node);
            }
            dpar_text_put(out, job->ranks[node] == 1 ? "rank " : "ranks ");
            dpari_doctor_put_runs(job, node, out);
        }
        dpari_doctor_put_node(job, node, out);
    }
}

/* ---- the chart of this rank ------------------------------------------------------------------ */

/* Finds the device that the rank would use, which is number local_rank of those that it sees. */
static void dpari_doctor_own_gpu(const dpari_site *site, const dpari_checkup *checkup,
                                 dpari_doctor_chart *chart)
{
    const char *list = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, checkup->gpus), skip;
    dpar_text t;
    if (checkup->gpus == 0 || visible == 0) {
        return;
    }
    skip = checkup->job.local_rank > 0 ? checkup->job.local_rank % visible : 0;
    dpar_text_init(&t, chart->gpu, sizeof chart->gpu);
    if (list == NULL) {
        dpari_text_int(&t, skip);
        return;
    }
    for (; skip > 0; list++) {
        skip -= *list == ',';
    }
    while (*list != 0 && *list != ',') {
        dpari_text_char(&t, *list++);
    }
}

/* Writes "eth0 25 Gb/s, ib0 200 Gb/s". Ports that do not fit into the text are left out, also the
 * fastest one. */
static void dpari_doctor_own_ports(const dpari_checkup *checkup, dpari_doctor_chart *chart)
{
    dpar_text t;
    int32_t i;
    dpar_text_init(&t, chart->ports, sizeof chart->ports);
    for (i = 0; i < checkup->links.count; i++) {
        char one[DPARI_DOCTOR_NAME + 24];
        dpar_text o;
        if (!dpari_doctor_is_network(checkup, i)) {
            continue;
        }
        chart->port = dpari_most(chart->port, checkup->speed[i]);
        dpar_text_init(&o, one, sizeof one);
        dpari_text_print(&o, "%s%s", t.used > 0 ? ", " : "", checkup->links.name[i]);
        if (checkup->speed[i] > 0) {
            dpari_text_print(&o, " %.4g Gb/s", (double)checkup->speed[i] * 1e-3);
        }
        if (t.used + o.used + 6 < t.capacity) {
            dpar_text_put(&t, one);
        } else if (chart->ports[t.used - 1] != '.') {
            dpar_text_put(&t, ", ...");
            t.capacity = t.used + 1; /* so that nothing is appended after the dots */
        }
    }
}

/* Sets the chart of this rank, except timeout_s, text_bytes and the links. */
static void dpari_doctor_fill(const dpari_site *site, const dpari_checkup *checkup,
                              dpari_doctor_chart *chart)
{
    dpari_os_cpus(chart->cpus);
    chart->cores = checkup->cores;
    chart->sockets = checkup->sockets;
    chart->gpus = checkup->gpus;
    chart->local_rank = checkup->job.size > 1 ? checkup->job.local_rank : -1;
    chart->memory = checkup->memory;
    chart->shm = checkup->shm;
    dpari_copy_text(chart->mpi, sizeof chart->mpi, checkup->mpi, sizeof checkup->mpi);
    dpari_doctor_own_gpu(site, checkup, chart);
    dpari_doctor_own_ports(checkup, chart);
    chart->within.peer = chart->between.peer = -1;
}

/* ---- messages back and forth ----------------------------------------------------------------- */

enum { DPARI_DOCTOR_TRIPS = 64, DPARI_DOCTOR_BULK_TRIPS = 16, DPARI_DOCTOR_BULK = 1 << 20 };

/* Measures half the time of a round trip of `bytes` bytes, as the median of several. The rank that
 * leads puts 1 into the first byte if another round trip follows. It stops after `most` round trips
 * (at most 64) or after 20 ms. */
static dpar_status dpari_doctor_trips(dpar_comm *comm, int32_t peer, int leads, int64_t bytes,
                                      int32_t most, char *buffer, double *seconds)
{
    double took[DPARI_DOCTOR_TRIPS], began = dpari_os_now(), at;
    int32_t n = 0, i, more = 1;
    while (more) {
        dpar_status st;
        at = dpari_os_now();
        if (leads) {
            more = n + 1 < most && at - began < 20e-3;
            buffer[0] = (char)more;
            st = dpar_send(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
            if (st == DPAR_OK) {
                st = dpar_recv(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
            }
        } else {
            st = dpar_recv(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
            if (st == DPAR_OK) {
                st = dpar_send(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
            }
            more = buffer[0];
        }
        if (st != DPAR_OK) {
            return st;
        }
        at = dpari_os_now() - at;
        for (i = leads ? n++ : 0; i > 0 && took[i - 1] > at; i--) {
            took[i] = took[i - 1];
        }
        took[i] = at;
    }
    *seconds = leads ? took[n / 2] / 2 : 0.0;
    return DPAR_OK;
}

/* Measures the links of this rank, in rounds that are separated by barriers. */
static dpar_status dpari_doctor_measure(dpar_comm *comm, const dpari_doctor_job *job,
                                        dpari_doctor_chart *mine, char *buffer)
{
    const int32_t rounds = dpari_doctor_rounds(job);
    int32_t round;
    dpar_status st = dpar_barrier(comm, NULL);
    for (round = 0; round < rounds && st == DPAR_OK; round++) {
        const int32_t peer = dpari_doctor_meets(job, round, comm->rank);
        if (peer >= 0) {
            const int leads = dpari_doctor_leads(job, round, comm->rank);
            dpari_doctor_link got;
            double bulk = 0.0;
            got.peer = peer;
            st = dpari_doctor_trips(comm, peer, leads, 8, DPARI_DOCTOR_TRIPS, buffer,
                                    &got.latency_s);
            if (st == DPAR_OK) {
                st = dpari_doctor_trips(comm, peer, leads, DPARI_DOCTOR_BULK,
                                        DPARI_DOCTOR_BULK_TRIPS, buffer, &bulk);
            }
            got.bytes_s = bulk > 0.0 ? (double)DPARI_DOCTOR_BULK / bulk : 0.0;
            if (leads) {
                *(round < job->most - 1 ? &mine->within : &mine->between) = got;
            }
        }
        if (st == DPAR_OK) {
            st = dpar_barrier(comm, NULL);
        }
    }
    return st;
}

/* ---- the whole report ------------------------------------------------------------------------ */

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
static dpar_status dpari_doctor_fill_who(const dpari_site *site, const dpari_checkup *checkup,
                                         dpar_comm *world, dpari_doctor_who *who)
{
    char host[256];
    who->version = DPAR_VERSION;
    who->chart_bytes = (int32_t)sizeof(dpari_doctor_chart);
    who->machine = dpari_doctor_boot(site);
    who->socket = checkup->sockets > 1 ? checkup->socket : -1;
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

static void dpari_doctor_say_joined(const dpari_checkup *checkup, const dpari_doctor_job *job,
                                    dpar_comm *world, dpar_text *out)
{
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

/* The memory of a rank for the report. */
typedef struct dpari_doctor_room {
    dpari_doctor_who *who;      /* [size] */
    void *nodes;                /* memory for dpari_doctor_number_nodes */
    char *own;                  /* [DPARI_DOCTOR_OWN] lines of this rank about itself */
    char *buffer;               /* [DPARI_DOCTOR_BULK] for messages */
    dpari_doctor_chart *charts; /* [size] on rank 0 */
    dpari_doctor_chart *chart;  /* of this rank */
    int64_t *count;             /* [size] on rank 0, bytes of each rank's own lines */
    int64_t bytes;              /* bytes of all these arrays, which begin at base */
    char *base;
} dpari_doctor_room;
enum { DPARI_DOCTOR_OWN = 8192 };

static int64_t dpari_doctor_take(int64_t *used, int64_t bytes)
{
    const int64_t at = *used;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

static int dpari_doctor_room_make(dpari_doctor_room *m, int32_t n, int root)
{
    int64_t used = 0;
    const int64_t who = dpari_doctor_take(&used, n * (int64_t)sizeof *m->who);
    const int64_t nodes = dpari_doctor_take(&used, dpari_doctor_job_bytes(n));
    const int64_t own = dpari_doctor_take(&used, DPARI_DOCTOR_OWN);
    const int64_t buffer = dpari_doctor_take(&used, DPARI_DOCTOR_BULK);
    const int64_t chart = dpari_doctor_take(&used, (int64_t)sizeof *m->chart);
    const int64_t charts = dpari_doctor_take(&used, root ? n * (int64_t)sizeof *m->chart : 0);
    const int64_t count = dpari_doctor_take(&used, root ? n * (int64_t)sizeof *m->count : 0);
    m->bytes = used;
    m->base = (char *)dpari_os_pages(used);
    if (m->base == NULL) {
        return 0;
    }
    m->who = (dpari_doctor_who *)(void *)(m->base + who);
    m->nodes = m->base + nodes;
    m->own = m->base + own;
    m->buffer = m->base + buffer;
    m->chart = (dpari_doctor_chart *)(void *)(m->base + chart);
    m->charts = (dpari_doctor_chart *)(void *)(m->base + charts);
    m->count = (int64_t *)(void *)(m->base + count);
    return 1;
}

/* Writes the lines of this rank about itself. */
static void dpari_doctor_own_text(const dpari_site *site, const dpari_checkup *checkup,
                                  dpari_doctor_room *m)
{
    dpar_text t;
    dpar_text_init(&t, m->own, DPARI_DOCTOR_OWN);
    dpari_doctor_note(checkup, &t);
    (void)dpari_doctor_judge(site, checkup, &t);
    m->chart->text_bytes = dpari_least((int64_t)t.used, DPARI_DOCTOR_OWN - 1);
}

/* Gathers all charts and lines on rank 0, which writes the report. */
DPARI_STATIC_NOINLINE dpar_status dpari_doctor_report(dpar_comm *world, dpari_doctor_job *job,
                                                      dpari_doctor_room *m, dpar_text *out,
                                                      int32_t *wrong)
{
    char *text = NULL;
    int64_t bytes = 0;
    int32_t r;
    dpar_status st =
        dpar_gather(world, m->chart, m->charts, (int64_t)sizeof *m->chart, DPAR_U8, 0, NULL);
    for (r = 0; r < world->size && world->rank == 0 && st == DPAR_OK; r++) {
        m->count[r] = m->charts[r].text_bytes;
        bytes += m->count[r];
    }
    if (bytes > 0) {
        text = (char *)dpari_os_pages(bytes);
        if (text == NULL) {
            dpar_comm_abort(world, DPAR_E_SYSTEM,
                            "dpar_doctor: rank 0 has no memory for the lines of other ranks");
            return DPAR_E_SYSTEM;
        }
    }
    if (st == DPAR_OK) {
        st = dpar_gather_v(world, m->own, m->chart->text_bytes, text, m->count, NULL, DPAR_U8, 0,
                           NULL);
    }
    if (st == DPAR_OK && world->rank == 0) {
        job->chart = m->charts;
        job->text = text;
        dpari_doctor_say_nodes(job, out);
        dpari_doctor_say_levels(job, out);
        *wrong = dpari_doctor_compare(job, out);
    }
    if (text != NULL) {
        dpari_os_unmap(text, bytes);
    }
    return st == DPAR_OK ? dpar_broadcast(world, wrong, 1, DPAR_I32, 0, NULL) : st;
}

DPARI_INTERNAL void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *checkup)
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

/* Replaces the launcher's numbers of nodes and of ranks on this node by those of the job, and
 * counts the ranks in other containers on this machine. */
static void dpari_doctor_correct(const dpari_doctor_job *job, const dpar_comm *world,
                                 dpari_checkup *checkup)
{
    const dpari_doctor_who *mine = &job->who[world->rank];
    int32_t r;
    checkup->here = job->ranks[job->node[world->rank]];
    checkup->nodes = job->nodes;
    for (r = 0; r < job->size && mine->machine != 0; r++) {
        checkup->beside +=
            job->node[r] != job->node[world->rank] && job->who[r].machine == mine->machine;
    }
}

DPARI_INTERNAL int32_t dpari_doctor_together(const dpari_site *site, dpari_checkup *checkup,
                                             dpar_comm *world, dpar_text *out)
{
    int64_t sent[DPAR_CALL_COUNT];
    dpari_doctor_job j;
    dpari_doctor_room m;
    int32_t wrong = 0, k;
    dpar_status st;
    dpari_zero(&m, sizeof m);
    if (!dpari_doctor_room_make(&m, world->size, world->rank == 0)) {
        dpar_why why;
        (void)dpari_say(DPAR_E_SYSTEM, &why,
                        "dpar_doctor: rank %d has no memory for the report (%ld bytes)",
                        world->rank, m.bytes);
        dpar_comm_abort(world, DPAR_E_SYSTEM, why.text);
        return -1;
    }
    for (k = 0; k < DPAR_CALL_COUNT; k++) {
        sent[k] = world->sent[k];
    }
    dpari_zero(&j, sizeof j);
    j.size = world->size;
    j.who = m.who;
    st = dpari_doctor_fill_who(site, checkup, world, &m.who[world->rank]);
    if (st == DPAR_OK) {
        st = dpar_all_gather(world, &m.who[world->rank], m.who, (int64_t)sizeof *m.who, DPAR_U8,
                             NULL);
    }
    if (st == DPAR_OK) {
        dpari_doctor_number_nodes(&j, m.nodes);
        if (world->rank == 0) {
            dpari_doctor_say_joined(checkup, &j, world, out);
        }
        wrong = dpari_doctor_versions(&j, world->rank == 0 ? out : NULL);
    }
    if (st == DPAR_OK && wrong == 0) {
        dpari_doctor_correct(&j, world, checkup);
        dpari_doctor_fill(site, checkup, m.chart);
        m.chart->timeout_s = world->timeout_s;
        dpari_doctor_own_text(site, checkup, &m);
        st = dpari_doctor_measure(world, &j, m.chart, m.buffer);
        if (st == DPAR_OK) {
            st = dpari_doctor_report(world, &j, &m, out, &wrong);
        }
    }
    for (k = 0; k < DPAR_CALL_COUNT; k++) {
        world->sent[k] = sent[k];
    }
    dpari_os_unmap(m.base, m.bytes);
    return st == DPAR_OK ? wrong : -1;
}
