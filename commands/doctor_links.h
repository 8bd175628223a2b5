/* SPDX-License-Identifier: MIT-0 */
/* doctor_links - the nodes of a job and how fast messages between its ranks are, for doctor --join:
 * it finds out where the ranks are, measures links, and reports those that are far worse than
 * others. Each rank of a node is measured with the next rank of the node, and the first rank of a
 * node with that of the next node. The report depends only on the gathered data, so that tests can
 * present any job. doctor_machine.h must be included before. */
#ifndef DPAR_COMMANDS_DOCTOR_LINKS_H
#define DPAR_COMMANDS_DOCTOR_LINKS_H

#include "../helpers/clock.h"

/* Where a rank is, and how its machine is connected. All ranks exchange this. */
typedef struct links_place {
    char host[64];
    char boot[40]; /* boot_id of its kernel; "" if unknown */
    int share;     /* the lowest rank with which it shares memory */
    int socket;    /* the socket that all its cores are on; -1 if they are on several, or the
                      machine has only one */
    int sockets, cores;
    int allowed; /* cores that the rank may use */
    int gpus;
    long long memory, shm; /* bytes; shm is -1 if there is none */
    long port;             /* the fastest port, even if not in `ports`, Mb/s; 0 if unknown */
    char ports[100];       /* "eth0 25 Gb/s, ib0" */
} links_place;

enum {                 /* how two ranks reach each other, nearest first */
       LINKS_SOCKET,   /* shared memory, on one socket */
       LINKS_MEMORY,   /* shared memory */
       LINKS_UNSHARED, /* messages, although they are on one node */
       LINKS_BETWEEN,  /* messages between two nodes */
       LINKS_LEVELS
};

/* The speed of messages between two ranks. */
typedef struct links_link {
    int rank, peer;   /* peer is -1 if nothing was measured */
    double latency_s; /* time of 8 bytes in one direction, in seconds */
    double bytes_s;   /* rate of 1 MiB in one direction, in bytes per second */
} links_link;

/* The job. Nodes are numbered in the order of their first ranks. */
typedef struct links_job {
    int size, nodes, most; /* ranks, nodes, ranks of the fullest node */
    const links_place *place;
    int *node, *local;  /* [size] the node of each rank, and its position among those of the node */
    int *first, *ranks; /* [nodes] the first rank of each node, and its number of ranks */
    const links_link *link; /* [2 size] on rank 0: of each rank within its node, and to the next */
} links_job;

/* ---- nodes ----------------------------------------------------------------------------------- */

/* True if two ranks are on one node. Compares name and machine, because containers give one machine
 * several names, and two machines may have the same name ("localhost"). */
static inline int links_one_node(const links_place *a, const links_place *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0;
}

/* Numbers the nodes. `numbers` has place for 4 ints per rank. */
static inline void links_find_nodes(links_job *job, int *numbers)
{
    int r;
    job->node = numbers;
    job->local = job->node + job->size;
    job->first = job->local + job->size;
    job->ranks = job->first + job->size;
    job->nodes = job->most = 0;
    for (r = 0; r < job->size; r++) {
        int node = job->nodes - 1; /* most often it is the node of the rank before */
        while (node >= 0 && !links_one_node(&job->place[job->first[node]], &job->place[r])) {
            node--;
        }
        if (node < 0) {
            node = job->nodes++;
            job->first[node] = r;
            job->ranks[node] = 0;
        }
        job->node[r] = node;
        job->local[r] = job->ranks[node]++;
        job->most = job->ranks[node] > job->most ? job->ranks[node] : job->most;
    }
}

static inline int links_level(const links_job *job, int a, int b)
{
    const links_place *x = &job->place[a], *y = &job->place[b];
    if (x->share != y->share) {
        return job->node[a] == job->node[b] ? LINKS_UNSHARED : LINKS_BETWEEN;
    }
    return x->socket >= 0 && x->socket == y->socket ? LINKS_SOCKET : LINKS_MEMORY;
}

/* Returns rank number `local` of a node, or -1 if there is none. */
static inline int links_at(const links_job *job, int node, int local)
{
    int r;
    for (r = 0; r < job->size; r++) {
        if (job->node[r] == node && job->local[r] == local) {
            return r;
        }
    }
    return -1;
}

/* Links are measured in rounds, in which each node takes part in at most one pair of ranks. Pairs
 * within nodes come first. */
static inline int links_rounds(const links_job *job)
{
    return job->most - 1 + (job->nodes > 2 ? 2 + job->nodes % 2 : job->nodes - 1);
}

/* Returns the round in which the link from a node to the next one is measured. Nodes form a ring:
 * the even nodes measure first, then the odd ones, and then, if the number of nodes is odd, the
 * last one. */
static inline int links_round_of(const links_job *job, int node)
{
    return job->most - 1 + (node == job->nodes - 1 && node % 2 == 0 ? 2 : node % 2);
}

/* Returns the rank with which `me` exchanges messages in a round, or -1. *leads is 1 if `me` is the
 * rank of its pair that measures the times. */
static inline int links_peer(const links_job *job, int round, int me, int *leads)
{
    const int node = job->node[me], local = job->local[me];
    const int before = (node + job->nodes - 1) % job->nodes;
    if (round < job->most - 1) {
        *leads = local == round;
        return local == round || local == round + 1 ? links_at(job, node, 2 * round + 1 - local)
                                                    : -1;
    }
    *leads = local == 0 && links_round_of(job, node) == round;
    if (*leads) {
        return job->first[(node + 1) % job->nodes];
    }
    return local == 0 && links_round_of(job, before) == round ? job->first[before] : -1;
}

/* ---- messages back and forth ----------------------------------------------------------------- */

enum { LINKS_TRIPS = 64, LINKS_BULK_TRIPS = 16, LINKS_BULK = 1 << 20 };

static inline int links_by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures half the time of a round trip of `bytes` bytes, as the median of several. The rank that
 * leads puts 1 into the first byte if another round trip follows. It stops after `most` round trips
 * (at most 64) or after 20 ms. */
static inline dpar_status links_trips(dpar_comm *comm, int peer, int leads, int bytes, int most,
                                      char *buffer, double *seconds)
{
    double took[LINKS_TRIPS], began = now(), at;
    int n = 0, more = 1;
    while (more) {
        dpar_status st = DPAR_OK;
        at = now();
        if (leads) {
            more = n + 1 < most && at - began < 20e-3;
            buffer[0] = (char)more;
            st = dpar_send(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
        }
        if (st == DPAR_OK) {
            st = dpar_recv(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
        }
        if (st == DPAR_OK && !leads) {
            more = buffer[0];
            st = dpar_send(comm, buffer, bytes, DPAR_U8, peer, 0, NULL);
        }
        if (st != DPAR_OK) {
            return st;
        }
        took[n] = now() - at;
        n += leads;
    }
    qsort(took, (size_t)n, sizeof *took, links_by_value);
    *seconds = leads ? took[n / 2] / 2 : 0.0;
    return DPAR_OK;
}

/* Measures the links of this rank, within[0] and to the next node [1], in rounds that are separated
 * by barriers. */
static inline dpar_status links_measure(dpar_comm *comm, const links_job *job, links_link *mine,
                                        char *buffer)
{
    const int rounds = links_rounds(job);
    int round;
    dpar_status st = dpar_barrier(comm, NULL);
    mine[0].peer = mine[1].peer = -1;
    for (round = 0; round < rounds && st == DPAR_OK; round++) {
        int leads = 0;
        const int peer = links_peer(job, round, comm->rank, &leads);
        double little = 0.0, bulk = 0.0;
        if (peer >= 0) {
            st = links_trips(comm, peer, leads, 8, LINKS_TRIPS, buffer, &little);
        }
        if (peer >= 0 && st == DPAR_OK) {
            st = links_trips(comm, peer, leads, LINKS_BULK, LINKS_BULK_TRIPS, buffer, &bulk);
        }
        if (leads && peer >= 0) {
            links_link *link = &mine[round >= job->most - 1];
            link->rank = comm->rank;
            link->peer = peer;
            link->latency_s = little;
            link->bytes_s = bulk > 0.0 ? LINKS_BULK / bulk : 0.0;
        }
        if (st == DPAR_OK) {
            st = dpar_barrier(comm, NULL);
        }
    }
    return st;
}

/* ---- the report ------------------------------------------------------------------------------ */

/* The links of one level. */
typedef struct links_speed {
    int pairs;                     /* number of links */
    const links_link *slow, *thin; /* those with the worst latency and the worst rate */
    double latency_s, bytes_s;     /* medians, the upper one of an even number */
} links_speed;

static inline int links_by_latency(const void *a, const void *b)
{
    const links_link *x = *(const links_link *const *)a, *y = *(const links_link *const *)b;
    const int order = (x->latency_s > y->latency_s) - (x->latency_s < y->latency_s);
    return order != 0 ? order : (x > y) - (x < y);
}

static inline int links_by_rate(const void *a, const void *b)
{
    const links_link *x = *(const links_link *const *)a, *y = *(const links_link *const *)b;
    const int order = (x->bytes_s > y->bytes_s) - (x->bytes_s < y->bytes_s);
    return order != 0 ? order : (x > y) - (x < y);
}

/* Computes the medians and finds the worst links. `sorted` has place for all links. */
static inline links_speed links_speed_of(const links_job *job, int level, const links_link **sorted)
{
    links_speed speed;
    size_t n = 0;
    int k;
    memset(&speed, 0, sizeof speed);
    for (k = 0; k < 2 * job->size; k++) {
        const links_link *link = &job->link[k];
        if (link->peer >= 0 && links_level(job, link->rank, link->peer) == level) {
            sorted[n++] = link;
        }
    }
    speed.pairs = (int)n;
    if (n > 0) {
        qsort(sorted, n, sizeof *sorted, links_by_latency);
        speed.latency_s = sorted[n / 2]->latency_s;
        speed.slow = sorted[n - 1];
        qsort(sorted, n, sizeof *sorted, links_by_rate);
        speed.bytes_s = sorted[n / 2]->bytes_s;
        speed.thin = sorted[0];
    }
    return speed;
}

/* Sets text to "8.1 us" or "2.3 ms". */
static inline const char *links_latency(double seconds, char text[32])
{
    const int ms = seconds >= 999.5e-6;
    snprintf(text, 32, "%.3g %s", seconds * (ms ? 1e3 : 1e6), ms ? "ms" : "us");
    return text;
}

/* Sets text to "ranks 4 and 5 on n2" or "ranks 3 on n1 and 4 on n2". */
static inline const char *links_pair(const links_job *job, const links_link *link, char text[200])
{
    const int a = link->rank, b = link->peer;
    if (job->node[a] == job->node[b]) {
        snprintf(text, 200, "ranks %d and %d on %s", a, b, job->place[b].host);
    } else {
        snprintf(text, 200, "ranks %d on %s and %d on %s", a, job->place[a].host, b,
                 job->place[b].host);
    }
    return text;
}

/* Writes a line about a level: medians, and the worst links. */
static inline void links_say_level(const links_job *job, int level, const links_speed *speed,
                                   doctor_lines *out)
{
    static const char *const name[LINKS_LEVELS] = {
        "within     a socket, by memory", "within     a node, by memory",
        "within     a node, by messages", "between    nodes"};
    char time[32], pair[200];
    doctor_print(out, "%s: 8 B in %s, 1 MiB at %.3g GB/s", name[level],
                 links_latency(speed->latency_s, time), speed->bytes_s * 1e-9);
    if (speed->pairs == 1) {
        doctor_print(out, " (%s)\n", links_pair(job, speed->slow, pair));
        return;
    }
    doctor_print(out, ", medians of %d pairs; worst %s (%s), ", speed->pairs,
                 links_latency(speed->slow->latency_s, time), links_pair(job, speed->slow, pair));
    doctor_print(out, "%.3g GB/s (%s)\n", speed->thin->bytes_s * 1e-9,
                 links_pair(job, speed->thin, pair));
}

/* True if the node of rank r has a core for each of its ranks. Otherwise its links are slow for
 * that reason. */
static inline int links_fits(const links_job *job, int r)
{
    return job->ranks[job->node[r]] <= job->place[r].cores;
}

/* Reports a link that is far worse than the others of its level: 8 times the latency, or a fifth of
 * the rate. Two measurements of one link do not differ so much. */
static inline void links_check_level(const links_job *job, int level, const links_speed *speed,
                                     const links_link *const *sorted, doctor_lines *out)
{
    char time[32], usual[32], pair[200];
    int k;
    for (k = 0; k < speed->pairs && speed->pairs >= 3; k++) {
        const links_link *link = sorted[k];
        if (!links_fits(job, link->rank) || !links_fits(job, link->peer) ||
            (link->latency_s <= 8 * speed->latency_s && link->bytes_s >= speed->bytes_s / 5)) {
            continue;
        }
        doctor_wrong(
            out, "%s: %s and %.3g GB/s, the median of %d such pairs is %s and %.3g GB/s -> %s",
            links_pair(job, link, pair), links_latency(link->latency_s, time), link->bytes_s * 1e-9,
            speed->pairs, links_latency(speed->latency_s, usual), speed->bytes_s * 1e-9,
            level == LINKS_BETWEEN ? "look at the cable, port and switch between them"
                                   : "look for other programs on their cores");
    }
}

/* Reports nodes whose messages are far slower than their ports, because they use another port or a
 * detour. */
static inline void links_check_ports(const links_job *job, double bytes_s, doctor_lines *out)
{
    const double mbits = bytes_s * 8e-6;
    long least = job->place[0].port;
    int r;
    for (r = 1; r < job->size; r++) {
        least = job->place[r].port < least ? job->place[r].port : least;
    }
    if (least > 0 && mbits < (double)least / 10) {
        doctor_wrong(out,
                     "between nodes %.3g GB/s (%.3g Gb/s), where each has a port of %.3g Gb/s -> "
                     "tell MPI which (btl_tcp_if_include, UCX_NET_DEVICES, MPICH_OFI_NIC_POLICY)",
                     bytes_s * 1e-9, mbits * 1e-3, (double)least * 1e-3);
    }
}

/* Sets text to what is the same for equal nodes: " on 64 cores of 2 sockets, each bound ...". */
static inline void links_describe(const links_job *job, int node, doctor_lines *text)
{
    const links_place *place = &job->place[job->first[node]];
    int r, least = place->allowed, most = 0;
    char shm[32];
    for (r = job->first[node]; r < job->size; r++) {
        if (job->node[r] == node) {
            const int n = job->place[r].allowed;
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
    }
    doctor_print(text, " on %d core%s", place->cores, place->cores == 1 ? "" : "s");
    if (place->sockets > 0) {
        doctor_print(text, " of %d socket%s", place->sockets, place->sockets == 1 ? "" : "s");
    }
    if (least >= place->cores) {
        doctor_print(text, ", not bound");
    } else if (most > least) {
        doctor_print(text, ", each bound to %d to %d cores", least, most);
    } else {
        doctor_print(text, ", %sbound to %d core%s", job->ranks[node] > 1 ? "each " : "", most,
                     most == 1 ? "" : "s");
    }
    doctor_print(text, ", memory %lld GiB, /dev/shm %s", /* equal nodes differ by pages */
                 (place->memory + (1LL << 29)) >> 30,
                 place->shm < 0 ? "none" : machine_bytes(place->shm, shm));
    if (place->gpus > 0) {
        doctor_print(text, ", %d GPU%s", place->gpus, place->gpus == 1 ? "" : "s");
    }
    doctor_print(text, "; %s\n", place->ports[0] != 0 ? place->ports : "no port is up");
}

static inline int links_same_node(const links_job *job, int a, int b)
{
    char x[400], y[400];
    doctor_lines one, other;
    doctor_lines_init(&one, x, sizeof x);
    doctor_lines_init(&other, y, sizeof y);
    links_describe(job, a, &one);
    links_describe(job, b, &other);
    return job->ranks[a] == job->ranks[b] && strcmp(x, y) == 0;
}

/* Appends the ranks of a node: "ranks 0 to 7", "ranks 0, 2" or "ranks 0, 8, ... 24". */
static inline void links_say_ranks(const links_job *job, int node, doctor_lines *out)
{
    const int count = job->ranks[node], first = job->first[node];
    const int last = links_at(job, node, count - 1);
    if (count == 1) {
        doctor_print(out, "rank %d", first);
    } else if (count == 2) {
        doctor_print(out, "ranks %d, %d", first, last);
    } else if (last - first + 1 == count) {
        doctor_print(out, "ranks %d to %d", first, last);
    } else {
        doctor_print(out, "ranks %d, %d, ... %d", first, links_at(job, node, 1), last);
    }
}

/* Writes a line for each node. If there are more than 8, consecutive equal nodes share a line. */
static inline void links_say_nodes(const links_job *job, doctor_lines *out)
{
    int node, end, lines = 0;
    for (node = 0; node < job->nodes; node = end) {
        end = node + 1;
        while (job->nodes > 8 && end < job->nodes && links_same_node(job, node, end)) {
            end++;
        }
        if (lines++ == DOCTOR_LINES) {
            doctor_print(out, "... and %d more nodes\n", job->nodes - node);
            return;
        }
        doctor_print(out, "%-10s ", job->place[job->first[node]].host);
        if (end - node > 1) {
            doctor_print(out, "to %s: %d nodes, on each %d rank%s",
                         job->place[job->first[end - 1]].host, end - node, job->ranks[node],
                         job->ranks[node] == 1 ? "" : "s");
        } else {
            links_say_ranks(job, node, out);
        }
        links_describe(job, node, out);
    }
}

/* Writes the facts about nodes and links, and what is wrong with links. `sorted` has place for all
 * links. */
static inline void links_report(const links_job *job, const links_link **sorted,
                                doctor_lines *facts, doctor_lines *wrong)
{
    int level;
    links_say_nodes(job, facts);
    for (level = 0; level < LINKS_LEVELS; level++) {
        const links_speed speed = links_speed_of(job, level, sorted);
        if (speed.pairs > 0) {
            links_say_level(job, level, &speed, facts);
            links_check_level(job, level, &speed, sorted, wrong);
        }
        if (speed.pairs > 0 && level == LINKS_BETWEEN) {
            links_check_ports(job, speed.bytes_s, wrong);
        }
    }
}

/* ---- the lines of each rank about its machine ------------------------------------------------ */

/* Returns the line of a text that differs from `line` only in numbers, or NULL. */
static inline const char *links_find_line(const char *text, const char *line)
{
    for (;;) {
        const char *a = text, *b = line;
        for (;;) {
            a += strspn(a, "0123456789");
            b += strspn(b, "0123456789");
            if (*a != *b || *a == '\n' || *a == 0) {
                break;
            }
            a++;
            b++;
        }
        if (*a == '\n' && *b == '\n') {
            return text;
        }
        text = strchr(text, '\n');
        if (text == NULL) {
            return NULL;
        }
        text++;
    }
}

enum { LINKS_TEXT = 4096 }; /* bytes of the lines of a rank */

/* Writes the lines of all ranks, each with the first rank that has it, and how many others have. */
static inline void links_merge(const links_job *job, const char (*text)[LINKS_TEXT],
                               doctor_lines *out)
{
    int r, k;
    for (r = 0; r < job->size; r++) {
        const char *line = text[r], *end;
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            const size_t head = strcspn(line, " "); /* "WRONG:" or "note:" */
            int others = 0, before = 0;
            for (k = 0; k < job->size && !before; k++) {
                const int has = k != r && links_find_line(text[k], line) != NULL;
                before = has && k < r;
                others += has;
            }
            if (before || (line[0] == 'W' && !doctor_count(out))) {
                continue; /* written for rank k, or only counted */
            }
            doctor_print(out, "%.*s ", (int)head, line);
            if (others + 1 == job->size) {
                doctor_print(out, job->size == 2 ? "both ranks" : "all %d ranks", job->size);
            } else {
                doctor_print(out, "rank %d on %s", r, job->place[r].host);
            }
            if (others > 0 && others + 1 < job->size) {
                doctor_print(out, " and %d more", others);
            }
            doctor_print(out, ":%.*s\n", (int)(end - line - (int)head), line + head);
        }
    }
}

/* ---- all ranks together ---------------------------------------------------------------------- */

/* Sets `ports` to "eth0 25 Gb/s, ib0 200 Gb/s". Ports that do not fit are left out, also the
 * fastest one. */
static inline void links_own_ports(const machine_facts *facts, links_place *place)
{
    size_t used = 0;
    int i, cut = 0;
    for (i = 0; i < facts->count; i++) {
        const machine_link *link = &facts->link[i];
        char one[64];
        if (!machine_is_network(link)) {
            continue;
        }
        place->port = link->speed > place->port ? link->speed : place->port;
        snprintf(one, sizeof one, "%s%s", used > 0 ? ", " : "", link->name);
        if (link->speed > 0) {
            snprintf(one + strlen(one), sizeof one - strlen(one), " %.4g Gb/s",
                     (double)link->speed * 1e-3);
        }
        if (!cut && used + strlen(one) + 6 < sizeof place->ports) {
            strcpy(place->ports + used, one);
            used += strlen(one);
        } else if (!cut) {
            strcpy(place->ports + used, ", ...");
            cut = 1;
        }
    }
}

/* Sets the place of this rank. Collective over the ranks that share memory. */
static inline dpar_status links_own_place(const machine_facts *facts, dpar_comm *world,
                                          links_place *place)
{
    int32_t share = strcmp(world->engine.name, "shm") == 0 ? 0 : world->rank;
    dpar_status st = DPAR_OK;
    memset(place, 0, sizeof *place);
    gethostname(place->host, sizeof place->host - 1);
    (void)machine_read("/proc/sys/kernel/random/boot_id", place->boot, sizeof place->boot);
    if (world->node != NULL) {
        st = dpar_all_reduce(world->node, &world->rank, &share, 1, DPAR_I32, DPAR_MIN, NULL);
    }
    place->share = share;
    place->sockets = facts->sockets;
    place->socket = facts->sockets > 1 ? facts->socket : -1;
    place->cores = facts->cores;
    place->allowed = facts->allowed;
    place->gpus = facts->gpus;
    place->memory = facts->memory;
    place->shm = facts->shm;
    links_own_ports(facts, place);
    return st;
}

/* Replaces the launcher's numbers by those of the job. */
static inline void links_correct(const links_job *job, int me, machine_facts *facts)
{
    int r;
    facts->ranks = job->ranks[job->node[me]];
    facts->spread = job->nodes > 1;
    facts->beside = 0;
    for (r = 0; r < job->size; r++) {
        facts->beside += job->node[r] != job->node[me] && job->place[me].boot[0] != 0 &&
                         strcmp(job->place[r].boot, job->place[me].boot) == 0;
    }
}

/* The memory of links_look. */
typedef struct links_memory {
    links_place *place;
    int *numbers;
    char (*text)[LINKS_TEXT]; /* of all ranks */
    links_link *link;
    const links_link **sorted;
    char *own;    /* [LINKS_TEXT] the lines of this rank */
    char *buffer; /* [LINKS_BULK] for messages */
} links_memory;

static inline int links_memory_make(links_memory *memory, size_t n)
{
    memory->place = (links_place *)calloc(n, sizeof *memory->place);
    memory->numbers = (int *)calloc(4 * n, sizeof *memory->numbers);
    memory->text = (char(*)[LINKS_TEXT])calloc(n, sizeof *memory->text);
    memory->link = (links_link *)calloc(2 * n, sizeof *memory->link);
    memory->sorted = (const links_link **)calloc(2 * n, sizeof *memory->sorted);
    memory->own = (char *)calloc(1, LINKS_TEXT);
    memory->buffer = (char *)calloc(1, LINKS_BULK);
    return memory->own != NULL && memory->buffer != NULL && memory->place != NULL &&
           memory->numbers != NULL && memory->text != NULL && memory->link != NULL &&
           memory->sorted != NULL;
}

static inline void links_memory_free(links_memory *memory)
{
    free(memory->place);
    free(memory->numbers);
    free(memory->text);
    free(memory->link);
    free((void *)memory->sorted);
    free(memory->own);
    free(memory->buffer);
}

/* Measures, and writes on rank 0 the facts and what is wrong. */
static inline dpar_status links_exchange(dpar_comm *world, machine_facts *facts,
                                         links_memory *memory, doctor_lines *says,
                                         doctor_lines *wrong)
{
    doctor_lines own;
    links_job job;
    links_link mine[2];
    links_place place;
    dpar_status st = links_own_place(facts, world, &place);
    if (st == DPAR_OK) {
        st = dpar_all_gather(world, &place, memory->place, sizeof place, DPAR_U8, NULL);
    }
    if (st != DPAR_OK) {
        return st;
    }
    memset(&job, 0, sizeof job);
    memset(mine, 0, sizeof mine);
    job.size = world->size;
    job.place = memory->place;
    job.link = memory->link;
    links_find_nodes(&job, memory->numbers);
    links_correct(&job, world->rank, facts);
    doctor_lines_init(&own, memory->own, LINKS_TEXT);
    machine_judge(facts, &own);
    st = links_measure(world, &job, mine, memory->buffer);
    if (st == DPAR_OK) {
        st = dpar_gather(world, mine, memory->link, sizeof mine, DPAR_U8, 0, NULL);
    }
    if (st == DPAR_OK) {
        st = dpar_gather(world, memory->own, memory->text, LINKS_TEXT, DPAR_U8, 0, NULL);
    }
    if (st == DPAR_OK && world->rank == 0) {
        links_merge(&job, (const char(*)[LINKS_TEXT])memory->text, wrong);
        links_report(&job, memory->sorted, says, wrong);
    }
    return st;
}

/* Measures the links of all ranks and checks their machines. Writes on rank 0 the facts and what is
 * wrong. Collective. */
static inline void links_look(dpar_comm *world, machine_facts *facts, doctor_lines *says,
                              doctor_lines *wrong)
{
    links_memory memory;
    dpar_status st = DPAR_E_MEMORY;
    const int made = links_memory_make(&memory, (size_t)world->size);
    if (dpar_min(world, made) > 0.0) {
        st = links_exchange(world, facts, &memory, says, wrong);
    }
    if (st != DPAR_OK && world->rank == 0) {
        doctor_wrong(wrong, "messages cannot be measured: %s -> see this message",
                     world->status < 0 ? world->why.text : "a rank has no memory for it");
    }
    links_memory_free(&memory);
}

#endif
