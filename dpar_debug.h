/* SPDX-License-Identifier: MIT-0 */
/* dpar_debug.h - finds faults: reports what this machine allows, and checks halo exchanges.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * A correct code on a healthy machine does not need this header. This program prints what dpar sees on the machine,
 * and what is wrong with it:
 *
 *     #include "dpar_debug.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         static char text[20000];
 *         dpar_text report;
 *         dpar_text_init(&report, text, sizeof text);
 *         dpar_doctor(NULL, &report);                     returns how many things are wrong
 *         puts(text);
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_halo.h")
#error dpar_debug.h needs dpar_halo.h beside it, of the same release
#endif
#endif
#include "dpar_halo.h"
#endif
#if DPAR_VERSION != 200
#error dpar_debug.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_DEBUG_H
#define DPAR_DEBUG_H

/* ==== debug/doctor.h ==== */

/* doctor - reports what dpar sees on this machine, how its ranks reach each other, how fast, and
 * what is wrong. commands/doctor.c runs it for any job, and a program may run it on its own
 * communicator:
 *
 *     static char text[65536];
 *     dpar_text t;
 *     dpar_text_init(&t, text, sizeof text);
 *     if (dpar_doctor(world, &t) > 0 && world->rank == 0) {
 *         puts(text);
 *     } */

/* Writes a report about this machine and job, with a line "WRONG: ... -> what to do" for each thing
 * that is wrong. Returns the number of these lines.
 *
 * world: NULL, or a communicator of one rank, for a report about this process: launcher and its
 *        numbers, cores, memory, limits, how ranks would share memory, network interfaces and GPUs.
 *        The text has at most about 10 KB. Local.
 *
 *        Otherwise the report is about all ranks of world, on any engine. The call is then
 *        collective, and no other operation on world may be in progress. Rank 0 gets the text, at
 *        most about 20 KB with any number of ranks. The other ranks get no text, but the same
 *        result.
 *
 *     joined     how ranks communicate, as dpar_comm_describe writes it
 *     n1         ranks 0 to 7 on 64 cores of 2 sockets, each bound to 1 core, memory, /dev/shm,
 *                ports that are up with their speed; if there are more than 8 nodes, equal
 *                neighbours share a line
 *     within     a socket or a node: the time of 8 B and the rate of 1 MiB in one direction, as
 *     between    halves of a round trip; medians, and the worst pair. Each rank is measured with
 *                the next one of its node, and the first rank of a node with that of the next
 *                node, one pair per node at a time, with messages from private memory
 *     WRONG:     "rank 5 on n2: /dev/shm holds 64.0 MiB, that of rank 0 on n1 23.5 GiB; ..."
 *
 * These are WRONG:
 *
 *  - what the report about a single process calls WRONG, on any rank;
 *  - ranks of a node that do not share memory;
 *  - more ranks than cores, ranks bound to the same cores, or unbound ranks on a machine of several
 *    sockets;
 *  - a version of dpar, an MPI or a deadline that differs between ranks;
 *  - two ranks that use the same GPU;
 *  - a link with 8 times the latency of the others or a fifth of their rate, and nodes at a tenth
 *    of the rate of their ports.
 *
 * The communicator's `sent` does not change. If a rank fails during the call, the communicator
 * breaks; the text of each rank then says what is wrong with this rank and why the communicator
 * broke.
 *
 * The call forks a child to find out what the kernel allows. It takes tenths of a second, and about
 * 5 ms per rank of the fullest node, or 40 ms if messages are slow. Each rank uses 1 MiB of memory
 * and 150 bytes per rank of world, and rank 0 a kilobyte per rank. */
DPAR_API int32_t dpar_doctor(dpar_comm *world, dpar_text *out);

/* ==== debug/halo_check.h ==== */

/* halo_check - checks whether a halo exchange (halo_exchange.h) brought the right values, for tests
 * and for debugging. A correct code does not need it.
 *
 *     dpar_halo_plan_check(x, DPAR_HALO_POISON, &why);          halos become NaN
 *     dpar_halo_plan_exchange(x);
 *     st = dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why);   no NaN is left
 *     st = dpar_halo_plan_check(x, DPAR_HALO_WRONG, &why);      each cell has its owner's value
 *     ... steps ...
 *     st = dpar_halo_plan_check(x, DPAR_HALO_STALE, &why);      no exchange was forgotten */

/* Kinds of checks. 0 is no check. */
enum {
    /* Sets all halo cells that an exchange fills to NaN (integers: all bits 1) and checks nothing.
     * Local. */
    DPAR_HALO_POISON = 1,
    /* Fails with DPAR_E_ARG if a halo cell that an exchange fills is still NaN; the message names
     * field, cell and rank. For fields whose own values have no NaN. Local. */
    DPAR_HALO_UNFILLED,
    /* Fails with DPAR_E_MISMATCH on all ranks if an exchange would change the bits of a value: a
     * halo is stale, or with a plan of shared points a copy differs from its owner's. The message
     * names field, point, both ranks and both values of the first one. Halos change during the
     * check and are restored afterwards. Collective. Costs an exchange, and memory from
     * dpar_comm_alloc for two copies of the halos. */
    DPAR_HALO_STALE,
    /* Fails with DPAR_E_MISMATCH on all ranks if a halo cell differs from its owner's, and names
     * the first one. Unlike exchanges it uses no transfer lists. Rank 0 gathers the own points of
     * each field by plain messages and arranges them as a serial code would. It compares the halos
     * of all ranks with them cell by cell, with indices by the rules of halo.h. Collective. Slow,
     * and allocates memory for the whole grid on rank 0 with dpar_comm_alloc. */
    DPAR_HALO_WRONG
};
/* Checks the fields of a plan between two exchanges. Returns DPAR_OK if nothing is wrong.
 *
 * what: DPAR_HALO_POISON, ... DPAR_HALO_WRONG. The first two cost O(halo cells).
 *
 * Fails as described above for each check. Fails with DPAR_E_ARG if plan is NULL, there is no such
 * check, or an exchange is in progress. Fields in a device's memory are also DPAR_E_ARG if all
 * halos are sent by messages, because nothing then waits for the device. Other errors are those of
 * the communicator. */
DPAR_API dpar_status dpar_halo_plan_check(dpar_halo_plan *plan, int32_t what, dpar_why *why);

/* Writes a table of the data that a rank sends to each peer in each exchange; nothing if plan is
 * NULL. Its columns are the peer, the way (method), hops, pieces (boxes), bytes, bytes that the
 * peer reads directly, and runs of memory. Hops are the distance in blocks, the largest along any
 * mesh axis, so that a neighbour has 1.
 *
 * With dpar_halo_plan_desc.timers it adds the times of the phases, in microseconds per exchange.
 * One more line follows for each field that is packed because it is not in registered memory,
 * although there are peers that share memory with this rank. Registered memory comes from
 * dpar_comm_alloc of the plan's communicator, or of one that was split from the same communicator.
 * Local. O(peers x pieces). */
DPAR_API void dpar_halo_plan_report(const dpar_halo_plan *plan, dpar_text *out);

#endif /* DPAR_DEBUG_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_DEBUG_IMPLEMENTATION)) && \
    !defined(DPAR_DEBUG_IMPLEMENTATION_DONE)
#define DPAR_DEBUG_IMPLEMENTATION_DONE

/* ==== halo/halo_view.h ==== */

/* halo_view - what the reports and checks of dpar_debug.h read of a plan. Private. */

/* Checks that no exchange is in progress and that the CPU may read the plan's arrays. */
DPARI_INTERNAL dpar_status dpari_hx_may_look(const dpar_halo_plan *plan, dpar_why *why);
/* Returns box k of the halo cells that a forward exchange fills, or NULL if there is no box k. */
DPARI_INTERNAL const dpari_hx_item *dpari_hx_received(const dpar_halo_plan *plan, int64_t k);
/* Returns the address at which the CPU can read the cells of a box, and their steps. Cells in the
 * memory of a device are first copied. Returns NULL if that fails. */
DPARI_INTERNAL const unsigned char *dpari_hx_look_at(const dpar_halo_plan *plan,
                                                     const dpari_hx_item *it, const int64_t **step);
/* Sets all cells of a box to one element of at most 8 bytes. */
DPARI_INTERNAL void dpari_hx_fill_cells(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                        const uint64_t *element);
/* Returns the owner of the cell that a box has at here[]. */
DPARI_INTERNAL int32_t dpari_hx_owner(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                      const int64_t *here);
/* Returns the address of a point of this rank's local box, and sets its strides in elements. */
DPARI_INTERNAL const unsigned char *dpari_hx_point(const dpar_halo_plan *plan, int32_t field,
                                                   const int64_t *at, int64_t *stride);
/* True if a part of a field (DPARI_HX_OWN, DPARI_HX_HALOS) is packed only because it is not in
 * registered memory, from which peers that share memory could read it directly. */
DPARI_INTERNAL int dpari_hx_unreached(const dpar_halo_plan *plan, int32_t field, int32_t part);
/* Writes the number of exchanges and, if the plan has timers, how long each took. */
DPARI_INTERNAL void dpari_hx_put_exchanges(const dpar_halo_plan *plan, dpar_text *out);

/* ==== debug/checkup.h ==== */

/* checkup - private: the facts that dpar_doctor collects about a machine and a job, and what is
 * wrong with them. Collecting the facts is separate from checking them, so that tests can present
 * any machine. */

enum { DPARI_DOCTOR_NAMES = 32, DPARI_DOCTOR_NAME = 24 };

/* The names in a system directory. Longer names are cut. */
typedef struct dpari_names {
    int32_t count;
    char name[DPARI_DOCTOR_NAMES][DPARI_DOCTOR_NAME];
} dpari_names;

/* The facts about a machine and a job. */
typedef struct dpari_checkup {
    dpar_launcher_info job;
    dpar_status job_status; /* result of dpari_job_here, whose message is in job_why */
    dpar_why job_why;
    int32_t nodes;                         /* nodes of the job; 0 if unknown */
    int32_t here;                          /* ranks of the job on this node */
    int32_t beside;                        /* ranks in other containers on this machine */
    int32_t cores;                         /* cores of the machine */
    int32_t allowed;                       /* cores that this process may use */
    double quota;                          /* cores that the cgroup grants; 0 if unlimited */
    int64_t memory, memory_free;           /* bytes; 0 if unknown */
    int64_t memory_limit;                  /* limit of the cgroup in bytes; 0 if none */
    int64_t shm, shm_free;                 /* bytes of /dev/shm; -1 if there is none */
    int32_t memfd;                         /* 1 if memfd_create works */
    int32_t cma;                           /* 0 if process_vm_readv works, otherwise errno */
    int32_t yama;                          /* ptrace_scope; -1 if there is no such file */
    int64_t page;                          /* bytes */
    char huge[24];                         /* setting of huge pages for shared memory */
    char load[16];                         /* load of the last minute as text; "" if unknown */
    int32_t runnable;                      /* threads that run or wait for a core; -1 if unknown */
    int64_t addresses, locked, open_files; /* ulimit -v, -l (bytes), -n; -1 if unlimited */
    int64_t file_bytes;                    /* ulimit -f in bytes; -1 if unlimited */
    int32_t gpus;                          /* NVIDIA GPUs of the machine */
    int32_t infiniband, slingshot;         /* 1 if the machine has such a card */
    dpari_names links;                     /* network interfaces */
    uint32_t up;                           /* bit i is set if interface i is up */
    int64_t speed[DPARI_DOCTOR_NAMES];     /* speed of each interface in Mb/s; 0 if unknown */
    int32_t sockets;                       /* sockets of the machine; 0 if unknown */
    int32_t socket;                        /* socket of the allowed cores; -1 if on several */
    char mpi[48];                          /* file of the loaded MPI library; "" if none */
} dpari_checkup;

/* Return the cores that the cgroups of this process grant (0 if all), and their limit on memory in
 * bytes (0 if none). */
DPARI_INTERNAL double dpari_doctor_quota(const dpari_site *site);
DPARI_INTERNAL int64_t dpari_doctor_memory_limit(const dpari_site *site);
/* Sets the facts that are read from files. */
DPARI_INTERNAL void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup);
/* Writes a line "note: ..." if /dev/shm is large enough for dpar, but not for other libraries. */
DPARI_INTERNAL void dpari_doctor_note(const dpari_checkup *checkup, dpar_text *out);
/* Writes a line "WRONG: ... -> ..." for each thing that is wrong. Returns how many there are. */
DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out);
/* Collects the facts about the machine and the job of this process. Forks a child. */
DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup);
/* Counts the sockets, and finds the socket of the CPUs in the mask `cpus`. Reads checkup->cores. */
DPARI_INTERNAL void dpari_doctor_sockets(const dpari_site *site, const uint64_t *cpus,
                                         dpari_checkup *checkup);
/* Sets `name` to the host name. */
DPARI_INTERNAL void dpari_doctor_host(char name[256]);

/* True if ranks of the job are on other nodes too. */
DPARI_INTERNAL int dpari_doctor_spread(const dpari_checkup *checkup);
/* True if interface i connects this machine to others: it is up and not a bridge or tunnel of this
 * machine. */
DPARI_INTERNAL int dpari_doctor_is_network(const dpari_checkup *checkup, int32_t i);
/* Returns the number of devices in `list`, the value of CUDA_VISIBLE_DEVICES, or `gpus` if it is
 * NULL. */
DPARI_INTERNAL int32_t dpari_doctor_visible(const char *list, int32_t gpus);
/* Returns the number of CPUs in a mask. */
DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask);

/* Writes the first word of a line, and spaces up to the column at which its text begins. */
DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title);
/* Appends "47.2 GiB", or "unlimited" for a negative number. */
DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes);

/* ==== debug/doctor_ranks.h ==== */

/* doctor_ranks - private: what the ranks of a communicator exchange for dpar_doctor, how fast
 * messages between them are, and what is wrong with the ranks together. The report depends only on
 * the exchanged data, so that tests can present any job. */

/* The record that each rank first sends to all others. The layout of its 128 bytes is the same in
 * all versions of dpar from 0.2 on, so that ranks notice if their versions differ. */
typedef struct dpari_doctor_who {
    int32_t version;     /* DPAR_VERSION */
    int32_t chart_bytes; /* sizeof(dpari_doctor_chart) */
    uint64_t machine;    /* hash of the boot_id of its kernel; 0 if unknown */
    int32_t share;       /* the lowest rank with which it shares memory; -1 if the engine shares
                            none */
    int32_t socket;      /* the socket that all its cores are on; -1 if they are on several, or the
                            machine has only one */
    char host[64];
    int32_t padding[10];
} dpari_doctor_who;

enum {                        /* how two ranks reach each other, nearest first */
       DPARI_DOCTOR_SOCKET,   /* shared memory, on one socket */
       DPARI_DOCTOR_MEMORY,   /* shared memory */
       DPARI_DOCTOR_UNSHARED, /* messages, although they are on one node */
       DPARI_DOCTOR_BETWEEN,  /* messages between two nodes */
       DPARI_DOCTOR_LEVELS
};

/* The speed of messages between this rank and a peer. */
typedef struct dpari_doctor_link {
    int32_t peer;     /* -1 if nothing was measured */
    double latency_s; /* time of 8 bytes in one direction, in seconds */
    double bytes_s;   /* rate of 1 MiB in one direction, in bytes per second */
} dpari_doctor_link;

/* The facts and measurements that each rank then sends to rank 0. */
typedef struct dpari_doctor_chart {
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t cores, sockets, gpus;
    int32_t local_rank; /* -1 if unknown */
    int64_t memory, shm;
    int64_t port;       /* the fastest port, even if not in `ports`, Mb/s; 0 if unknown */
    int64_t text_bytes; /* bytes of the lines that the rank writes about itself */
    double timeout_s;
    dpari_doctor_link within, between; /* to the next rank of its node, and to the next node */
    char gpu[44];    /* the device it would use, as in CUDA_VISIBLE_DEVICES; "" if none */
    char ports[100]; /* "eth0 25 Gb/s, ib0" */
    char mpi[48];
} dpari_doctor_chart;

/* The job as its ranks describe it. chart and text are set only on rank 0. */
typedef struct dpari_doctor_job {
    int32_t size, nodes, most; /* ranks, nodes, ranks of the fullest node */
    const dpari_doctor_who *who;
    const dpari_doctor_chart *chart;
    const char *text;       /* the lines that each rank writes about itself, rank after rank */
    int32_t *node, *local;  /* [size] the node of each rank, and its position among the ranks of the
                               node */
    int32_t *first, *ranks; /* [nodes] the first rank of each node, and its number of ranks */
    char *mark;             /* [size] 1 for the ranks that a line is about */
} dpari_doctor_job;

/* Returns the bytes of node, local, first, ranks and mark for `size` ranks. */
DPARI_INTERNAL int64_t dpari_doctor_job_bytes(int32_t size);
/* Numbers the nodes, and places node, local, first, ranks and mark in `memory`. */
DPARI_INTERNAL void dpari_doctor_number_nodes(dpari_doctor_job *job, void *memory);
/* Returns how two ranks reach each other, DPARI_DOCTOR_x. */
DPARI_INTERNAL int32_t dpari_doctor_level(const dpari_doctor_job *job, int32_t a, int32_t b);
/* Links are measured in rounds, in which each node takes part in at most one pair of ranks. Pairs
 * within nodes come first. dpari_doctor_rounds returns the number of rounds. dpari_doctor_meets
 * returns the rank with which `me` exchanges messages in a round, or -1. dpari_doctor_leads returns
 * 1 if `me` is the rank of its pair that measures the times. */
DPARI_INTERNAL int32_t dpari_doctor_rounds(const dpari_doctor_job *job);
DPARI_INTERNAL int32_t dpari_doctor_meets(const dpari_doctor_job *job, int32_t round, int32_t me);
DPARI_INTERNAL int dpari_doctor_leads(const dpari_doctor_job *job, int32_t round, int32_t me);

/* Write the lines about the nodes, and about the speed of each level. */
DPARI_INTERNAL void dpari_doctor_say_nodes(const dpari_doctor_job *job, dpar_text *out);
DPARI_INTERNAL void dpari_doctor_say_levels(const dpari_doctor_job *job, dpar_text *out);
/* Writes what is wrong with each rank, and with the ranks together. Returns the number of lines
 * WRONG. */
DPARI_INTERNAL int32_t dpari_doctor_compare(const dpari_doctor_job *job, dpar_text *out);
/* Writes a line if versions of dpar differ. Returns the number of lines. Needs no charts. */
DPARI_INTERNAL int32_t dpari_doctor_versions(const dpari_doctor_job *job, dpar_text *out);

/* If the launcher's numbers contradict each other, replaces them by the rank and size of the
 * communicator, which was made without them. */
DPARI_INTERNAL void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *checkup);
/* Makes the whole report, in `out` of rank 0. COLLECTIVE. Returns on all ranks the number of things
 * that are wrong, or -1 if the communicator broke; world->why then has the reason. checkup: the
 * facts of this rank; its numbers of nodes and of ranks on this node become those of the
 * communicator. */
DPARI_INTERNAL int32_t dpari_doctor_together(const dpari_site *site, dpari_checkup *checkup,
                                             dpar_comm *world, dpar_text *out);

/* ==== halo/halo_view.c ==== */

/* Shows the boxes of a plan to the reports and checks of halo_check.c in dpar_debug.h. */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_may_look(const dpar_halo_plan *plan, dpar_why *why)
{
    if (!plan) {
        return dpari_wrong(why, "dpar_halo_plan_check: the plan is NULL");
    }
    if (plan->x.active) {
        return dpari_wrong(why, "dpar_halo_plan_check: halo exchange %ld has not ended",
                           plan->x.count);
    }
    if (plan->in_order) {
        return dpari_wrong(why,
                           "dpar_halo_plan_check: %d fields are in the memory of a device and all "
                           "their halos are sent by messages; nothing waits for that memory",
                           plan->fields);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD const dpari_hx_item *dpari_hx_received(const dpar_halo_plan *plan,
                                                                 int64_t k)
{
    int32_t s;
    for (s = 0; s < plan->forward; s++) {
        const dpari_hx_step *step = &plan->step[s];
        if (k < step->s - step->r) {
            return &plan->item[step->r + k];
        }
        k -= step->s - step->r;
    }
    return NULL;
}

DPARI_INTERNAL DPARI_COLD const unsigned char *
dpari_hx_look_at(const dpar_halo_plan *plan, const dpari_hx_item *it, const int64_t **step)
{
    dpar_mem_box b;
    if (!dpari_hx_mem(&plan->field[it->field])) {
        *step = it->own_step;
        return plan->part[it->mine] + it->mine_at;
    }
    *step = it->dense;
    if (!plan->look) {
        return NULL;
    }
    dpari_hx_box_of(plan, it, plan->look, 0, &b);
    return dpari_hx_move_box(&plan->field[it->field], &b) == DPAR_OK ? plan->look : NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_fill_cells(const dpar_halo_plan *plan,
                                                   const dpari_hx_item *it, const uint64_t *element)
{
    const dpar_halo_field *field = &plan->field[it->field];
    uint64_t here[1];
    unsigned char *from = dpari_hx_mem(field) ? plan->look : (unsigned char *)here;
    dpar_mem_box b;
    dpari_hx_box_of(plan, it, from, 1, &b);
    dpari_zero(b.from_stride, sizeof b.from_stride);
    dpari_kern_copy(from, element, (int64_t)sizeof *element, 0);
    (void)dpari_hx_move_box(field, &b);
}

/* In an exchange dim by dim, the rank that sends a corner is not its owner, so the owner is found
 * in the transfer lists. */
DPARI_INTERNAL DPARI_COLD int32_t dpari_hx_owner(const dpar_halo_plan *plan,
                                                 const dpari_hx_item *it, const int64_t *here)
{
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_status st = plan->step[0].number < 0
                         ? DPAR_DONE
                         : dpar_halo_first(&w, plan->field[it->field].halo, plan->comm->rank,
                                           DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL);
    while (st == DPAR_OK && dpar_halo_next(&w, &t)) {
        int32_t d;
        for (d = 0; d < t.dims; d++) {
            const int64_t at = it->local[d] + here[d] - t.mine[d];
            if (at < 0 || at >= t.extent[d]) {
                break;
            }
        }
        if (d == t.dims) {
            return t.peer;
        }
    }
    return it->peer < 0 ? plan->comm->rank : plan->x.peer[it->peer].rank;
}

DPARI_INTERNAL DPARI_COLD const unsigned char *
dpari_hx_point(const dpar_halo_plan *plan, int32_t field, const int64_t *at, int64_t *stride)
{
    const dpar_halo_field *f = &plan->field[field];
    dpari_hx_spot spot;
    int32_t d;
    dpari_hx_place(&plan->array[field], at, dpari_hx_components(f), &spot);
    for (d = 0; d <= f->halo->grid.dims; d++) {
        stride[d] = spot.stride[d];
    }
    return plan->part[2 * field + spot.part] + spot.at * dpar_type_bytes(f->type);
}

DPARI_INTERNAL DPARI_COLD int dpari_hx_unreached(const dpar_halo_plan *plan, int32_t field,
                                                 int32_t part)
{
    const int32_t method = plan->options.method;
    const unsigned char *at = plan->part[2 * field + part];
    return plan->x.shared > 0 && at && !dpari_hx_mem(&plan->field[field]) &&
           (method == DPAR_HALO_AUTO || method == DPAR_HALO_DIRECT) &&
           dpari_ref(plan->x.world, at, 1) == 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_put_exchanges(const dpar_halo_plan *plan, dpar_text *out)
{
    dpari_text_print(out, "  %ld exchanges", plan->x.count);
    if (plan->options.timers) {
        dpar_text_put(out, ", each: ");
        dpari_exchange_put_times(&plan->x, out);
    }
    dpari_text_char(out, '\n');
}

/* ==== debug/checkup.c ==== */

/* Collects facts about this process and machine for dpar_doctor, mostly from /proc and /sys, and
 * decides in a second step what is wrong with them (dpari_doctor_judge). The steps are separate so
 * that tests can present any machine. doctor.c and doctor_ranks.c write the reports. */

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if !defined(MAP_ANONYMOUS) /* as in os.h: -std=c99 has hidden it */
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* ---- reading the machine --------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE int dpari_doctor_begins(const char *s, const char *with)
{
    size_t i = 0;
    while (with[i] != 0 && s[i] == with[i]) {
        i++;
    }
    return with[i] == 0;
}

/* Returns the number at s, after blanks, or -1 if there is none, as in "max". */
static int64_t dpari_doctor_number(const char *s)
{
    int64_t v = 0;
    while (*s == ' ' || *s == '\t') {
        s++;
    }
    if (*s < '0' || *s > '9') {
        return -1;
    }
    for (; *s >= '0' && *s <= '9'; s++) {
        v = v < INT64_MAX / 10 - 10 ? v * 10 + (*s - '0') : INT64_MAX;
        if (v == INT64_MAX) {
            break;
        }
    }
    return v;
}

/* Returns the number in a file, or -1 if there is no file or no number. */
static int64_t dpari_doctor_file(const dpari_site *site, const char *path)
{
    char text[64];
    return dpari_site_read(site, path, text, sizeof text) > 0 ? dpari_doctor_number(text) : -1;
}

/* Returns the number after `key` in a text of lines "key: number kB", in bytes, or 0 if there is
 * none. */
static DPARI_COLD int64_t dpari_doctor_line(const char *text, const char *key)
{
    size_t i, n = dpari_length(key);
    for (i = 0; text[i] != 0; i++) {
        if ((i == 0 || text[i - 1] == '\n') && dpari_doctor_begins(text + i, key)) {
            int64_t v = dpari_doctor_number(text + i + n);
            return v > 0 ? v * 1024 : 0;
        }
    }
    return 0;
}

/* Lists the names in a directory. */
static DPARI_COLD void dpari_doctor_list(const dpari_site *site, const char *path,
                                         dpari_names *names)
{
    char full[256];
    dpar_text t;
    DIR *at;
    struct dirent *entry;
    names->count = 0;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    at = opendir(full);
    while (at != NULL && names->count < DPARI_DOCTOR_NAMES && (entry = readdir(at)) != NULL) {
        if (entry->d_name[0] != '.') {
            dpari_copy_text(names->name[names->count++], DPARI_DOCTOR_NAME, entry->d_name,
                            DPARI_DOCTOR_NAME);
        }
    }
    if (at != NULL) {
        closedir(at);
    }
}

/* True if the comma-separated list [s, s + n) contains the word. */
static DPARI_COLD int dpari_doctor_lists(const char *s, size_t n, const char *word)
{
    size_t i = 0, k;
    for (k = 0; k <= n; k++) {
        if (k == n || s[k] == ',') {
            if (dpari_spells(s + i, k - i, word)) {
                return 1;
            }
            i = k + 1;
        }
    }
    return 0;
}

/* The longest path of a group and the longest list of groups, in bytes. The path of a container in
 * Kubernetes has about 250 characters, and version 1 lists one for each of 13 controllers.
 * dpari_site_read takes paths of 511 characters. If a path is longer, only groups above it are
 * checked.
 */
enum { DPARI_DOCTOR_PATH = 512 - 64, DPARI_DOCTOR_GROUPS = 16 * 512 };

/* Finds the path of this process in the hierarchy of a controller ("" for version 2), in a file
 * with lines "4:cpu,cpuacct:/a/b". Returns 0 if there is none. */
static DPARI_COLD int dpari_doctor_group(const dpari_site *site, const char *controller, char *path,
                                         size_t room)
{
    char text[DPARI_DOCTOR_GROUPS];
    size_t i = 0, a, b, end;
    if (dpari_site_read(site, "/proc/self/cgroup", text, sizeof text) <= 0) {
        return 0;
    }
    while (text[i] != 0) {
        for (a = i; text[a] != 0 && text[a] != ':' && text[a] != '\n';) {
            a++;
        }
        for (b = a + (text[a] == ':'); text[b] != 0 && text[b] != ':' && text[b] != '\n';) {
            b++;
        }
        for (end = b; text[end] != 0 && text[end] != '\n';) {
            end++;
        }
        if (text[a] == ':' && text[b] == ':' &&
            (controller[0] == 0 ? b == a + 1
                                : dpari_doctor_lists(text + a + 1, b - a - 1, controller))) {
            dpari_copy_text(path, room, text + b + 1, end - b - 1);
            return 1;
        }
        i = end + (text[end] == '\n');
    }
    return 0;
}

/* Calls `value` for a group and for each group above it. Returns the least positive result, or 0 if
 * there is none. */
static DPARI_COLD double
dpari_doctor_least(const dpari_site *s, const char *base, const char *group,
                   double (*value)(const dpari_site *s, const char *folder))
{
    char path[DPARI_DOCTOR_PATH], folder[DPARI_DOCTOR_PATH + 32];
    double least = 0.0, v;
    size_t n;
    dpar_text t;
    dpari_copy_text(path, sizeof path, group, sizeof path);
    n = dpari_length(path);
    for (;;) {
        while (n > 0 && path[n - 1] == '/') {
            path[--n] = 0;
        }
        dpar_text_init(&t, folder, sizeof folder);
        dpari_text_print(&t, "%s%s", base, path);
        v = value(s, folder);
        least = v > 0.0 && (least <= 0.0 || v < least) ? v : least;
        if (n == 0) {
            return least;
        }
        while (n > 0 && path[n - 1] != '/') {
            path[--n] = 0;
        }
    }
}

/* Reads the file `name` in a folder. Returns the bytes, or -1. */
static DPARI_COLD int64_t dpari_doctor_in(const dpari_site *site, const char *folder,
                                          const char *name, char *text, size_t room)
{
    char path[DPARI_DOCTOR_PATH + 64];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "%s%s", folder, name);
    return dpari_site_read(site, path, text, room);
}

/* Return the limits of one group on cores and memory, in cgroups of version 2 and 1, or 0 if there
 * is none. */
static DPARI_COLD double dpari_doctor_cpu_2(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t quota, period = -1;
    size_t i = 0;
    if (dpari_doctor_in(site, folder, "/cpu.max", text, sizeof text) <= 0) {
        return 0.0;
    }
    quota = dpari_doctor_number(text);
    while (text[i] != 0 && text[i] != ' ') {
        i++;
    }
    period = dpari_doctor_number(text + i);
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static DPARI_COLD double dpari_doctor_cpu_1(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t quota = -1, period = -1;
    if (dpari_doctor_in(site, folder, "/cpu.cfs_quota_us", text, sizeof text) > 0) {
        quota = dpari_doctor_number(text);
    }
    if (dpari_doctor_in(site, folder, "/cpu.cfs_period_us", text, sizeof text) > 0) {
        period = dpari_doctor_number(text);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0.0;
}

static DPARI_COLD double dpari_doctor_memory_2(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(site, folder, "/memory.max", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

static DPARI_COLD double dpari_doctor_memory_1(const dpari_site *site, const char *folder)
{
    char text[64];
    int64_t n = dpari_doctor_in(site, folder, "/memory.limit_in_bytes", text, sizeof text);
    return n > 0 ? (double)dpari_doctor_number(text) : 0.0;
}

DPARI_INTERNAL DPARI_COLD double dpari_doctor_quota(const dpari_site *site)
{
    char group[DPARI_DOCTOR_PATH];
    double one = 0.0, two = 0.0;
    if (dpari_doctor_group(site, "cpu", group, sizeof group)) {
        one = dpari_doctor_least(site, "/sys/fs/cgroup/cpu", group, dpari_doctor_cpu_1);
    }
    if (dpari_doctor_group(site, "", group, sizeof group)) {
        two = dpari_doctor_least(site, "/sys/fs/cgroup", group, dpari_doctor_cpu_2);
    }
    return one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_doctor_memory_limit(const dpari_site *site)
{
    char group[DPARI_DOCTOR_PATH];
    double one = 0.0, two = 0.0, least;
    if (dpari_doctor_group(site, "memory", group, sizeof group)) {
        one = dpari_doctor_least(site, "/sys/fs/cgroup/memory", group, dpari_doctor_memory_1);
    }
    if (dpari_doctor_group(site, "", group, sizeof group)) {
        two = dpari_doctor_least(site, "/sys/fs/cgroup", group, dpari_doctor_memory_2);
    }
    least = one > 0.0 && two > 0.0 ? dpari_leastf(one, two) : dpari_mostf(one, two);
    return least > 0.0 && least < 4e18 ? (int64_t)least : 0; /* version 1 has 2^63 for no limit */
}

/* Sets `word` to the word in brackets in a file like "always [never] force". */
static void dpari_doctor_choice(const dpari_site *site, const char *path, char *word, size_t room)
{
    char text[128];
    size_t a = 0, b;
    word[0] = 0;
    if (dpari_site_read(site, path, text, sizeof text) <= 0) {
        return;
    }
    while (text[a] != 0 && text[a] != '[') {
        a++;
    }
    for (b = a; text[b] != 0 && text[b] != ']'; b++) {
        ;
    }
    if (text[b] == ']') {
        dpari_copy_text(word, room, text + a + 1, b - a - 1);
    }
}

static int32_t dpari_doctor_gpus(const dpari_site *site)
{
    dpari_names names;
    int32_t i, n = 0;
    dpari_doctor_list(site, "/proc/driver/nvidia/gpus", &names);
    if (names.count > 0) {
        return names.count;
    }
    dpari_doctor_list(site, "/dev", &names); /* "nvidia0", not "nvidiactl" */
    for (i = 0; i < names.count; i++) {
        n += dpari_doctor_begins(names.name[i], "nvidia") && names.name[i][6] >= '0' &&
             names.name[i][6] <= '9';
    }
    return n;
}

/* Reads a file of a network interface. Returns the bytes, or -1. */
static int64_t dpari_doctor_link_file(const dpari_site *site, const char *link, const char *file,
                                      char *text, size_t room)
{
    char path[96];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/sys/class/net/%s%s", link, file);
    return dpari_site_read(site, path, text, room);
}

static void dpari_doctor_links(const dpari_site *site, dpari_checkup *checkup)
{
    dpari_names cards;
    int32_t i;
    dpari_doctor_list(site, "/sys/class/net", &checkup->links);
    for (i = 0; i < checkup->links.count; i++) {
        char text[16];
        if (dpari_doctor_link_file(site, checkup->links.name[i], "/operstate", text, sizeof text) >
                0 &&
            (dpari_doctor_begins(text, "up") || dpari_doctor_begins(text, "unknown"))) {
            checkup->up |= (uint32_t)1 << i;
        }
        /* "-1" or an error if the driver does not know the speed */
        if (dpari_doctor_link_file(site, checkup->links.name[i], "/speed", text, sizeof text) > 0) {
            checkup->speed[i] = dpari_most(dpari_doctor_number(text), 0);
        }
        checkup->slingshot =
            checkup->slingshot || dpari_doctor_begins(checkup->links.name[i], "hsn");
    }
    dpari_doctor_list(site, "/sys/class/cxi", &cards);
    checkup->slingshot = checkup->slingshot || cards.count > 0;
    dpari_doctor_list(site, "/sys/class/infiniband", &cards);
    checkup->infiniband = cards.count > 0;
}

/* Returns the threads of the machine that run or wait for a core, including this one: the 3 in
 * "0.41 0.50 0.37 3/911 4023". Returns -1 if unknown. */
static int32_t dpari_doctor_runnable(const dpari_site *site, char *load, size_t room)
{
    char text[96];
    size_t i, blanks = 0;
    load[0] = 0;
    if (dpari_site_read(site, "/proc/loadavg", text, sizeof text) <= 0) {
        return -1;
    }
    for (i = 0; text[i] != 0 && blanks < 3; i++) {
        if (text[i] == ' ' && blanks++ == 0) {
            dpari_copy_text(load, room, text, i);
        }
    }
    return (int32_t)dpari_least(dpari_doctor_number(text + i), INT64_C(1) << 20);
}

/* Takes the least of five readings within 20 ms, so that brief activity does not count. */
static void dpari_doctor_load(const dpari_site *site, dpari_checkup *checkup)
{
    int32_t look;
    checkup->runnable = dpari_doctor_runnable(site, checkup->load, sizeof checkup->load);
    for (look = 1; look < 5 && checkup->runnable > 0; look++) {
        int32_t now;
        dpari_os_sleep(5e-3);
        now = dpari_doctor_runnable(site, checkup->load, sizeof checkup->load);
        checkup->runnable = now < checkup->runnable ? now : checkup->runnable;
    }
}

/* Returns the socket of a CPU, or -1 if unknown. */
static int32_t dpari_doctor_socket(const dpari_site *site, int32_t cpu)
{
    char path[96];
    dpar_text t;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    return (int32_t)dpari_least(dpari_doctor_file(site, path), INT32_MAX);
}

/* The numbers of CPUs have gaps if some CPUs are turned off, which ends the search after 2 x cores.
 */
DPARI_INTERNAL void dpari_doctor_sockets(const dpari_site *site, const uint64_t *cpus,
                                         dpari_checkup *checkup)
{
    int32_t seen[64], cpu, k, found = 0, own = -1, several = 0;
    checkup->sockets = 0;
    for (cpu = 0; cpu < 64 * DPARI_CPU_WORDS && found < checkup->cores; cpu++) {
        const int32_t socket = dpari_doctor_socket(site, cpu);
        if (socket < 0) {
            if (cpu >= 2 * checkup->cores) {
                break;
            }
            continue;
        }
        found++;
        for (k = 0; k < checkup->sockets && seen[k] != socket; k++) {
            ;
        }
        if (k == checkup->sockets && k < 64) {
            seen[checkup->sockets++] = socket;
        }
        if (cpus[cpu / 64] >> (cpu % 64) & 1) {
            several = several || (own >= 0 && own != socket);
            own = socket;
        }
    }
    checkup->socket = several ? -1 : own;
}

/* Finds the file of the MPI that this process has loaded, whose name ends with its version.
 * /proc/self/maps has lines "7f7a41101000-7f7a411c8000 r-xp 00029000 fe:00 14884988
 * /usr/lib/libmpi.so.40.30.4". Bindings (libmpi_mpifh.so) do not count. */
static void dpari_doctor_mpi(const dpari_site *site, dpari_checkup *checkup)
{
    const int64_t room = INT64_C(1) << 18;
    char *text = (char *)dpari_os_pages(room);
    int64_t i, begin = 0, bytes;
    checkup->mpi[0] = 0;
    if (text == NULL) {
        return;
    }
    bytes = dpari_site_read(site, "/proc/self/maps", text, (size_t)room);
    for (i = 0; i < bytes && checkup->mpi[0] == 0; i++) {
        const char *name = text + begin;
        if (text[i] == '/') {
            begin = i + 1;
        } else if (text[i] == '\n') {
            if ((dpari_doctor_begins(name, "libmpi.") || dpari_doctor_begins(name, "libmpich") ||
                 dpari_doctor_begins(name, "libmpi_cray") ||
                 dpari_doctor_begins(name, "libmpi_gnu"))) {
                dpari_copy_text(checkup->mpi, sizeof checkup->mpi, name, (size_t)(i - begin));
            }
            begin = i + 1;
        }
    }
    dpari_os_unmap(text, room);
}

DPARI_INTERNAL void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup)
{
    char text[4096];
    if (dpari_site_read(site, "/proc/meminfo", text, sizeof text) > 0) {
        checkup->memory = dpari_doctor_line(text, "MemTotal:");
        checkup->memory_free = dpari_doctor_line(text, "MemAvailable:");
    }
    checkup->quota = dpari_doctor_quota(site);
    checkup->memory_limit = dpari_doctor_memory_limit(site);
    checkup->yama = (int32_t)dpari_doctor_file(site, "/proc/sys/kernel/yama/ptrace_scope");
    dpari_doctor_choice(site, "/sys/kernel/mm/transparent_hugepage/shmem_enabled", checkup->huge,
                        sizeof checkup->huge);
    checkup->gpus = dpari_doctor_gpus(site);
    dpari_doctor_links(site, checkup);
    dpari_doctor_mpi(site, checkup);
    dpari_doctor_load(site, checkup);
}

/* ---- querying the system --------------------------------------------------------------------- */

DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask)
{
    int32_t i, n = 0;
    for (i = 0; i < 64 * DPARI_CPU_WORDS; i++) {
        n += (int32_t)(mask[i / 64] >> (i % 64) & 1);
    }
    return n;
}

/* Returns a limit in bytes or files, or -1 if there is none. */
static int64_t dpari_doctor_ulimit(int which)
{
    struct rlimit limit;
    /* glibc has a type of its own for `which` */
#if defined(__GLIBC__) && !defined(__cplusplus)
    int got = getrlimit((__rlimit_resource_t)which, &limit);
#elif defined(__GLIBC__)
    int got = getrlimit(static_cast<__rlimit_resource_t>(which), &limit);
#else
    int got = getrlimit(which, &limit);
#endif
    return got != 0 || limit.rlim_cur == RLIM_INFINITY || (uint64_t)limit.rlim_cur > INT64_MAX
               ? -1
               : (int64_t)limit.rlim_cur;
}

/* Checks whether a process may read a sibling's memory: a child tries to read this process, which
 * is the direction that stricter rules forbid. Returns 0, or the error. */
static int32_t dpari_doctor_try_cma(void)
{
    int32_t *answer =
        (int32_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t probe = UINT64_C(0x6470617264706172);
    int32_t got = ENOSYS;
    pid_t parent = getpid(), child;
    if ((void *)answer == MAP_FAILED) {
        return ENOMEM;
    }
    *answer = ENOSYS;
    child = fork();
    if (child == 0) {
        dpari_os_target target;
        target.pid = (int32_t)parent;
        target.at = (uint64_t)(uintptr_t)&probe;
        target.word = probe;
        probe = 0; /* only the memory of the parent still has the word */
        *answer = 0;
        if (dpari_os_read_peer(&target, NULL, 0, 0) != 0) {
            *answer = errno != 0 ? errno : EPERM;
        }
        _exit(0);
    }
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    got = child > 0 ? *answer : EAGAIN;
    munmap(answer, 4096);
    return got;
}

DPARI_INTERNAL void dpari_doctor_host(char name[256])
{
    name[0] = 0;
    gethostname(name, 255);
    name[255] = 0;
}

/* Returns the number of ranks of the job on this node, as the launcher reports it, or 1 if unknown.
 */
static int32_t dpari_doctor_here(const dpari_checkup *checkup)
{
    if (checkup->job_status != DPAR_OK) {
        return 1;
    }
    if (checkup->job.local_size > 0) {
        return checkup->job.local_size;
    }
    return checkup->nodes <= 1 ? checkup->job.size : 1;
}

DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup)
{
    uint64_t cpus[DPARI_CPU_WORDS];
    struct statvfs shm;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int fd;
    dpari_zero(checkup, sizeof *checkup);
    checkup->job_status = dpari_job_here(&checkup->job, &checkup->nodes, &checkup->job_why);
    checkup->here = dpari_doctor_here(checkup);
    dpari_doctor_files(site, checkup);
    dpari_os_cpus(cpus);
    checkup->allowed = dpari_doctor_bits(cpus);
    checkup->cores = cores > checkup->allowed ? (int32_t)cores : checkup->allowed;
    dpari_doctor_sockets(site, cpus, checkup);
    checkup->memory = checkup->memory > 0 ? checkup->memory : dpari_os_memory();
    checkup->shm = checkup->shm_free = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        checkup->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
        checkup->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    }
#if defined(__linux__) && defined(SYS_memfd_create)
    fd = (int)syscall(SYS_memfd_create, "dpar", 1U);
#else
    fd = -1;
#endif
    checkup->memfd = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
    checkup->cma = dpari_doctor_try_cma();
    checkup->page = dpari_os_page();
    checkup->addresses = dpari_doctor_ulimit((int)RLIMIT_AS);
#if defined(RLIMIT_MEMLOCK)
    checkup->locked = dpari_doctor_ulimit((int)RLIMIT_MEMLOCK);
#else
    checkup->locked = -1;
#endif
    checkup->open_files = dpari_doctor_ulimit((int)RLIMIT_NOFILE);
    checkup->file_bytes = dpari_doctor_ulimit((int)RLIMIT_FSIZE);
}

/* ---- text ------------------------------------------------------------------------------------ */

DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title)
{
    dpari_text_print(out, "%s ", title);
    dpari_text_column(out, 11);
}

DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes)
{
    static const char unit[5][5] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double v = (double)bytes;
    int32_t k = 0;
    if (bytes < 0) {
        dpar_text_put(out, "unlimited");
        return;
    }
    for (; v >= 1024.0 && k < 4; k++) {
        v /= 1024.0;
    }
    dpari_text_fixed(out, v, k > 0 ? 1 : 0);
    dpar_text_put(out, unit[k]);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

typedef struct dpari_doctor {
    const dpari_site *site;
    const dpari_checkup *c;
    dpar_text *out;
    int32_t wrong; /* number of lines so far */
} dpari_doctor;

/* Writes a line about something that is wrong. */
static DPARI_PRINTF(2, 3) void dpari_doctor_wrong(dpari_doctor *doctor, const char *form, ...)
{
    va_list list;
    dpar_text_put(doctor->out, "WRONG: ");
    va_start(list, form);
    dpari_text_print_list(doctor->out, form, &list);
    va_end(list);
    dpar_text_put(doctor->out, "\n");
    doctor->wrong++;
}

/* Converts bytes to whole MiB. */
static int64_t dpari_doctor_mib(int64_t bytes)
{
    return bytes >> 20;
}

/* True if ranks of the job are on other nodes too. */
DPARI_INTERNAL int dpari_doctor_spread(const dpari_checkup *checkup)
{
    return checkup->job.size > 1 &&
           (checkup->nodes > 1 ||
            (checkup->job.local_size > 0 && checkup->job.local_size < checkup->job.size));
}

/* True if NCCL_SOCKET_IFNAME selects an interface. It is a list of prefixes of names. "^" before
 * the list selects all others, and "=" makes them whole names. */
static int dpari_doctor_takes(const char *list, const char *link)
{
    const int not_these = list[0] == '^', whole = list[not_these] == '=';
    size_t begin = (size_t)(not_these + whole), k;
    for (k = begin;; k++) {
        if (list[k] == ',' || list[k] == 0) {
            size_t n = k - begin, i = 0;
            while (i < n && link[i] == list[begin + i]) {
                i++;
            }
            if (n > 0 && i == n && (!whole || link[n] == 0)) {
                return !not_these;
            }
            begin = k + 1;
        }
        if (list[k] == 0) {
            return not_these;
        }
    }
}

/* NCCL could take such an interface for the network. */
DPARI_INTERNAL int dpari_doctor_is_network(const dpari_checkup *checkup, int32_t i)
{
    const char *name = checkup->links.name[i];
    return (checkup->up >> i & 1) && !dpari_same(name, "lo") &&
           !dpari_doctor_begins(name, "docker") && !dpari_doctor_begins(name, "veth") &&
           !dpari_doctor_begins(name, "virbr") && !dpari_doctor_begins(name, "br-") &&
           !dpari_doctor_begins(name, "ifb") && !dpari_doctor_begins(name, "cali") &&
           !dpari_doctor_begins(name, "flannel");
}

static void dpari_doctor_network(dpari_doctor *doctor)
{
    const char *list = dpari_site_env(doctor->site, "NCCL_SOCKET_IFNAME");
    int32_t i, networks = 0, taken = 0, taken_networks = 0, loop = 0;
    const char *first = "";
    for (i = 0; i < doctor->c->links.count; i++) {
        const char *name = doctor->c->links.name[i];
        int takes = list != NULL && dpari_doctor_takes(list, name);
        if (dpari_doctor_is_network(doctor->c, i)) {
            first = networks++ == 0 ? name : first;
        }
        taken += takes;
        loop += takes && dpari_same(name, "lo");
        taken_networks += takes && !dpari_same(name, "lo");
    }
    if (list != NULL && list[0] != 0 && taken == 0) {
        dpari_doctor_wrong(doctor,
                           "NCCL_SOCKET_IFNAME=%s names no interface of this machine -> name one "
                           "of those under \"network\" above",
                           list);
    } else if (loop > 0 && taken_networks == 0 && dpari_doctor_spread(doctor->c)) {
        dpari_doctor_wrong(doctor,
                           "NCCL_SOCKET_IFNAME=%s is this machine's own loopback, but the job has "
                           "ranks on other nodes -> name the interface between the nodes",
                           list);
    } else if (list == NULL && networks > 1 && doctor->c->gpus > 0 &&
               dpari_doctor_spread(doctor->c) && !doctor->c->slingshot) {
        dpari_doctor_wrong(doctor,
                           "%d network interfaces are up and NCCL_SOCKET_IFNAME does not say "
                           "which joins the nodes -> export NCCL_SOCKET_IFNAME=%s (or another)",
                           networks, first);
    }
}

/* Checks one setting that Slingshot needs. want: the beginning of a correct value; "" accepts any.
 * advice: the value to export. */
static void dpari_doctor_setting(dpari_doctor *doctor, const char *name, const char *want,
                                 const char *advice)
{
    const char *text = dpari_site_env(doctor->site, name);
    dpar_text t;
    char line[200];
    if (text != NULL && dpari_doctor_begins(text, want)) {
        return;
    }
    dpar_text_init(&t, line, sizeof line);
    dpar_text_put(&t, name);
    if (text != NULL) {
        dpari_text_print(&t, " is %s", text);
    } else {
        dpar_text_put(&t, " is not set");
    }
    dpari_text_print(&t, " -> export %s=%s", name, advice);
    dpari_doctor_wrong(doctor, "on Slingshot with GPUs, %s", line);
}

/* Checks the settings with which sites run NCCL on HPE Slingshot 11 (Derecho, Isambard-AI). */
static void dpari_doctor_slingshot(dpari_doctor *doctor)
{
    if (!doctor->c->slingshot || doctor->c->gpus == 0) {
        return;
    }
    dpari_doctor_setting(doctor, "NCCL_SOCKET_IFNAME", "hsn",
                         "hsn (otherwise NCCL uses Ethernet, which is slow or hangs)");
    dpari_doctor_setting(doctor, "NCCL_NET", "AWS Libfabric",
                         "\"AWS Libfabric\" (otherwise NCCL uses sockets and does not report it)");
    dpari_doctor_setting(doctor, "FI_CXI_DISABLE_HOST_REGISTER", "1", "1");
    dpari_doctor_setting(doctor, "FI_MR_CACHE_MONITOR", "userfaultfd",
                         "userfaultfd (the default deadlocks NCCL)");
    dpari_doctor_setting(doctor, "FI_CXI_DEFAULT_CQ_SIZE", "", "131072");
    dpari_doctor_setting(doctor, "NCCL_CROSS_NIC", "1", "1");
    dpari_doctor_setting(doctor, "NCCL_NET_GDR_LEVEL", "", "PHB");
    /* PALS_APID shows Cray's MPI, also under Slurm and Flux */
    if (doctor->c->job.kind == DPAR_LAUNCHER_PALS ||
        dpari_site_env(doctor->site, "PALS_APID") != NULL) {
        dpari_doctor_setting(doctor, "MPICH_GPU_SUPPORT_ENABLED", "1", "1");
        dpari_doctor_setting(doctor, "MPICH_OFI_NIC_POLICY", "GPU", "GPU");
    }
}

DPARI_INTERNAL int32_t dpari_doctor_visible(const char *list, int32_t gpus)
{
    int32_t n = 1, i;
    if (list == NULL) {
        return gpus;
    }
    for (i = 0; list[i] != 0; i++) {
        n += list[i] == ',';
    }
    return i == 0 ? 0 : n;
}

static void dpari_doctor_devices(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const char *list = dpari_site_env(doctor->site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, checkup->gpus);
    if (checkup->gpus == 0 || checkup->job_status != DPAR_OK) {
        return;
    }
    if (checkup->job.size > 1 && checkup->job.local_rank < 0) {
        dpari_doctor_wrong(doctor,
                           "%s does not say the local rank, so no rank knows which of %d GPUs is "
                           "its own -> start with a launcher that does, or set DPAR_LOCAL_RANK in "
                           "addition to DPAR_RANK and DPAR_SIZE",
                           dpari_launcher_name(checkup->job.kind), checkup->gpus);
    }
    /* if only one is visible, it may be a different one for each rank */
    if (checkup->here > visible && (visible > 1 || (list == NULL && visible == 1))) {
        dpari_doctor_wrong(
            doctor,
            "%d ranks of this node see %d GPUs%s: some share one -> start %d ranks per "
            "node, or show each rank its own",
            checkup->here, visible, list != NULL ? " (CUDA_VISIBLE_DEVICES)" : "", visible);
    }
    if (checkup->here > 1 && checkup->shm >= 0 && checkup->shm < INT64_C(1) << 30) {
        dpari_doctor_wrong(doctor,
                           "/dev/shm holds %ld MiB and NCCL keeps its buffers between GPUs "
                           "there -> docker run --shm-size=1g or more",
                           dpari_doctor_mib(checkup->shm));
    }
}

/* Returns the number of ranks that will share memory on this node. A single process may still
 * launch ranks, so it counts as two. */
static int32_t dpari_doctor_ranks(const dpari_checkup *checkup)
{
    return checkup->here > 1 ? checkup->here : 2;
}

/* Bytes of shared memory that a rank uses before it allocates any: 2 * 256 KiB of staging memory in
 * its first communicator, and at most 80 KiB of tables (1024 ranks). */
#define DPARI_DOCTOR_SHARED (INT64_C(640) << 10)
/* Bytes of memory that a rank uses at the start: shared memory, and the private memory of its
 * process. */
#define DPARI_DOCTOR_RANK (INT64_C(2) << 20)
/* Bytes of /dev/shm that MPI uses per rank: Open MPI 4.1 has files of 4 MiB, MPICH 4 over UCX of
 * 4.2 MiB. */
#define DPARI_DOCTOR_MPI (INT64_C(4) << 20)

/* Returns the least bytes of the shared file for one rank. Its part of the file is as large as the
 * memory; if a limit forbids that, the part is halved until it fits, but not below 64 MiB. The
 * bytes of the rank's record are added. */
static int64_t dpari_doctor_addresses(const dpari_checkup *checkup)
{
    const int64_t least = INT64_C(64) << 20;
    int64_t heap = checkup->memory > least ? (checkup->memory + 65535) / 65536 * 65536 : least;
    while (heap / 2 / 65536 * 65536 >= least) {
        heap = heap / 2 / 65536 * 65536;
    }
    return heap + 16384;
}

static void dpari_doctor_memory(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const int64_t ranks = dpari_doctor_ranks(checkup), shared = ranks * DPARI_DOCTOR_SHARED + 65536;
    const int64_t file = ranks * dpari_doctor_addresses(checkup) + 65536;
    if (!checkup->memfd && checkup->shm_free < shared) {
        dpari_doctor_wrong(
            doctor,
            "/dev/shm has %ld KiB free, %ld ranks share memory through it and take %ld "
            "KiB at the start -> make it larger (docker run --shm-size=1g)",
            checkup->shm_free < 0 ? 0 : checkup->shm_free >> 10, ranks, shared >> 10);
    }
    if (checkup->mpi[0] != 0 && checkup->here > 1 &&
        checkup->shm < 2 * checkup->here * DPARI_DOCTOR_MPI) {
        dpari_doctor_wrong(
            doctor,
            "/dev/shm holds %ld MiB, and %s takes some %ld MiB of it for each of %d ranks "
            "before the first message -> make it larger (docker run --shm-size=1g)",
            checkup->shm < 0 ? 0 : dpari_doctor_mib(checkup->shm), checkup->mpi,
            dpari_doctor_mib(DPARI_DOCTOR_MPI), checkup->here);
    }
    if (checkup->file_bytes >= 0 && checkup->file_bytes < file) {
        dpari_doctor_wrong(doctor,
                           "ulimit -f is %ld KiB: the memory that %ld ranks share counts as a file "
                           "of %ld KiB, however little of it is used -> ulimit -f unlimited",
                           checkup->file_bytes >> 10, ranks, file >> 10);
    }
    if (checkup->memory_limit > 0 && checkup->memory_limit < checkup->here * DPARI_DOCTOR_RANK) {
        dpari_doctor_wrong(
            doctor,
            "the cgroup grants %ld KiB to %d ranks, which take %ld KiB each to begin "
            "with -> raise its memory limit",
            checkup->memory_limit >> 10, checkup->here, DPARI_DOCTOR_RANK >> 10);
    }
    if (checkup->addresses >= 0 && checkup->addresses / (checkup->here + 1) < checkup->memory) {
        dpari_doctor_wrong(doctor,
                           "ulimit -v is %ld MiB: shared memory takes addresses for all %d ranks, "
                           "and gets fewer -> ulimit -v unlimited",
                           dpari_doctor_mib(checkup->addresses), checkup->here);
    }
    if (checkup->locked >= 0 && (checkup->infiniband || checkup->slingshot)) {
        dpari_doctor_wrong(doctor,
                           "ulimit -l is %ld KiB, too little for network cards that access memory "
                           "directly -> ulimit -l unlimited",
                           checkup->locked >> 10);
    }
    if (checkup->open_files >= 0 && checkup->open_files < 2 * (int64_t)checkup->here + 64) {
        dpari_doctor_wrong(doctor,
                           "ulimit -n is %ld: %d ranks meet through files and need %ld -> raise it",
                           checkup->open_files, checkup->here, 2 * (int64_t)checkup->here + 64);
    }
}

static void dpari_doctor_cores(dpari_doctor *doctor)
{
    const dpari_checkup *checkup = doctor->c;
    const int32_t ranks = checkup->here + checkup->beside;
    if (checkup->here > checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d ranks run on %d cores, so that they wait for cores, not for data -> "
                           "start at most %d here",
                           checkup->here, checkup->cores, checkup->cores);
    } else if (checkup->quota > 0.0 && checkup->quota < (double)checkup->here) {
        dpari_doctor_wrong(doctor,
                           "the cgroup grants %ld hundredths of a core to %d ranks, which are then "
                           "stopped part of the time -> raise its CPU limit, or start fewer",
                           (int64_t)(checkup->quota * 100.0 + 0.5), checkup->here);
    }
    if (checkup->runnable - ranks >= checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d threads want a core besides %s and there are %d cores, so that "
                           "messages wait for a core -> end the other programs",
                           checkup->runnable - ranks, ranks > 1 ? "those of the ranks" : "this one",
                           checkup->cores);
    }
}

/* Containers have a /dev/shm of at least 64 MiB by default. */
DPARI_INTERNAL void dpari_doctor_note(const dpari_checkup *checkup, dpar_text *out)
{
    const int complained = checkup->here > 1 && checkup->shm >= 0 && checkup->job_status == DPAR_OK;
    if (checkup->gpus == 0 || checkup->shm >= INT64_C(64) << 20 || complained) {
        return;
    }
    dpari_text_print(out,
                     "note: /dev/shm holds %ld KiB; NCCL between GPUs and the data loaders of "
                     "torch keep buffers there -> docker run --shm-size=1g or more\n",
                     checkup->shm < 0 ? 0 : checkup->shm >> 10);
}

DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out)
{
    dpari_doctor d;
    d.site = site;
    d.c = checkup;
    d.out = out;
    d.wrong = 0;
    if (checkup->job_status != DPAR_OK) {
        dpari_doctor_wrong(&d, "%s -> dpar_init will fail with this message",
                           checkup->job_why.text);
    }
    dpari_doctor_cores(&d);
    dpari_doctor_memory(&d);
    dpari_doctor_devices(&d);
    dpari_doctor_network(&d);
    dpari_doctor_slingshot(&d);
    return d.wrong;
}

/* ==== debug/doctor_ranks.c ==== */

/* Makes the report of dpar_doctor about all ranks of a communicator. First all ranks exchange a
 * record of fixed format (dpari_doctor_who), so that ranks of different versions of dpar can
 * recognise each other. Then they measure their links: each rank of a node with the next rank of
 * the node, and the first rank of a node with that of the next node. Rank 0 gathers the results and
 * the facts about all machines, and writes the report. Called by doctor.c.
 *
 * The report depends only on the exchanged data, so that tests can present any job. */

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

/* ==== debug/doctor.c ==== */

/* Writes the report of dpar_doctor about this process, and calls doctor_ranks.c for the report
 * about all ranks. */

#include <errno.h>

/* ---- the facts ------------------------------------------------------------------------------- */

static void dpari_doctor_say_job(const dpari_checkup *checkup, dpar_text *out)
{
    const dpar_launcher_info *j = &checkup->job;
    dpari_doctor_head(out, "launcher");
    if (checkup->job_status != DPAR_OK) {
        dpar_text_put(out, "its numbers contradict each other, see below\n");
        return;
    }
    dpari_text_print(out, "%s: rank %d of %d, local rank ", dpari_launcher_name(j->kind), j->rank,
                     j->size);
    if (j->local_rank >= 0) {
        dpari_text_int(out, j->local_rank);
    } else {
        dpar_text_put(out, "unknown");
    }
    dpar_text_put(out, " of ");
    if (j->local_size >= 0) {
        dpari_text_int(out, j->local_size);
    } else {
        dpar_text_put(out, "unknown");
    }
    dpari_text_print(out, ", job %s\n", j->id);
}

static void dpari_doctor_say_memory(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "cores");
    dpari_text_print(out, "%d, this process may use %d", checkup->cores, checkup->allowed);
    if (checkup->quota > 0.0) {
        dpari_text_print(out, ", its cgroup grants %.2f", checkup->quota);
    }
    dpari_text_char(out, '\n');
    if (checkup->runnable >= 0) {
        dpari_doctor_head(out, "load");
        dpari_text_print(out,
                         "%d runnable on %d cores (including this one), %s over the last minute\n",
                         checkup->runnable, checkup->cores, checkup->load);
    }
    dpari_doctor_head(out, "memory");
    dpari_doctor_bytes(out, checkup->memory);
    dpar_text_put(out, ", free ");
    dpari_doctor_bytes(out, checkup->memory_free);
    if (checkup->memory_limit > 0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_doctor_bytes(out, checkup->memory_limit);
    }
    dpari_text_print(out, "; pages of %ld B, huge ones for shared memory: %s\n", checkup->page,
                     checkup->huge[0] != 0 ? checkup->huge : "unknown");
}

static void dpari_doctor_say_limits(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "limits");
    dpar_text_put(out, "addresses ");
    dpari_doctor_bytes(out, checkup->addresses);
    dpar_text_put(out, ", locked ");
    dpari_doctor_bytes(out, checkup->locked);
    dpari_text_print(out, ", open files %ld, files ", checkup->open_files);
    dpari_doctor_bytes(out, checkup->file_bytes);
    dpar_text_put(out, "; /dev/shm ");
    if (checkup->shm < 0) {
        dpar_text_put(out, "does not exist");
    } else {
        dpari_doctor_bytes(out, checkup->shm);
        dpar_text_put(out, ", free ");
        dpari_doctor_bytes(out, checkup->shm_free);
    }
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_network(const dpari_site *site, const dpari_checkup *checkup,
                                     dpar_text *out)
{
    const char *text;
    int32_t i;
    dpari_doctor_head(out, "network");
    for (i = 0; i < checkup->links.count; i++) {
        dpar_text_put(out, i > 0 ? ", " : "");
        dpar_text_put(out, checkup->links.name[i]);
        dpar_text_put(out, (checkup->up >> i & 1) ? "" : " (down)");
    }
    text = dpari_site_env(site, "NCCL_SOCKET_IFNAME");
    if (text != NULL) {
        dpari_text_print(out, "; NCCL_SOCKET_IFNAME=%s", text);
    } else {
        dpar_text_put(out, "; NCCL_SOCKET_IFNAME is not set");
    }
    dpar_text_put(out, checkup->slingshot ? "; Slingshot" : "");
    dpar_text_put(out, checkup->infiniband ? "; InfiniBand\n" : "\n");
    dpari_doctor_head(out, "GPUs");
    dpari_text_int(out, checkup->gpus);
    text = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    if (text != NULL) {
        dpari_text_print(out, "; CUDA_VISIBLE_DEVICES=%s", text);
    }
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_use(const dpari_checkup *checkup, const dpar_comm *world,
                                 dpar_text *out)
{
    dpari_doctor_head(out, "will use");
    if (world != NULL) {
        dpari_text_print(out, "engine %s (as this communicator does); ", world->engine.name);
    } else if (checkup->job_status != DPAR_OK) {
        dpar_text_put(out, "nothing as long as the launcher's numbers contradict each other; ");
    } else if (dpari_doctor_spread(checkup)) {
        dpar_text_put(out, "engine mpi (dpar_mpi.h), because shared memory joins only one node; ");
    } else {
        dpar_text_put(out, checkup->here > 1 ? "engine shm; " : "engine shm, one rank; ");
    }
    dpar_text_put(out, checkup->memfd ? "nameless memory (memfd); " : "files in /dev/shm; ");
    if (checkup->cma == 0) {
        dpar_text_put(out, "reads other ranks' memory (CMA); ");
    } else {
        dpar_text_put(out, "cannot read other ranks' memory (");
        if (checkup->yama > 0) {
            dpari_text_print(out, "yama ptrace_scope is %d", checkup->yama);
        } else {
            dpari_os_error(out, checkup->cma);
            dpar_text_put(out, checkup->cma == EPERM ? ": seccomp or another user?" : "");
        }
        dpar_text_put(out, "); ");
    }
    dpar_text_put(out, checkup->here > checkup->allowed && checkup->here > 1
                           ? "waits spin, yield, then sleep\n"
                           : "waits spin, then sleep\n");
}

static void dpari_doctor_say_here(const dpari_site *site, const dpari_checkup *checkup,
                                  const dpar_comm *world, dpar_text *out)
{
    char host[256];
    dpari_doctor_host(host);
    dpari_text_print(out, "dpar %d.%d.%d on %s\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
                     DPAR_VERSION_PATCH, host);
    dpari_doctor_say_job(checkup, out);
    dpari_doctor_say_memory(checkup, out);
    dpari_doctor_say_limits(checkup, out);
    dpari_doctor_say_network(site, checkup, out);
    dpari_doctor_say_use(checkup, world, out);
    dpari_doctor_note(checkup, out);
}

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
    dpari_checkup *checkup = (dpari_checkup *)dpari_os_pages((int64_t)sizeof *checkup);
    int32_t wrong = -1;
    if (checkup == NULL) {
        if (together) {
            dpar_comm_abort(world, DPAR_E_SYSTEM, "dpar_doctor: a rank has no page of memory left");
        }
        dpar_text_put(out, "WRONG: no page of memory is left -> end other programs\n");
        return 1;
    }
    dpari_site_here(&here);
    dpari_doctor_look(&here, checkup);
    if (world != NULL) {
        dpari_doctor_joined(world, checkup);
    }
    if (together) {
        wrong = dpari_doctor_together(&here, checkup, world, out);
        if (wrong < 0) {
            wrong = dpari_doctor_not_compared(&here, checkup, world, out);
        } else if (world->rank > 0) {
            dpari_os_unmap(checkup, (int64_t)sizeof *checkup);
            return wrong;
        }
    } else {
        dpari_doctor_say_here(&here, checkup, world, out);
        wrong = dpari_doctor_judge(&here, checkup, out);
    }
    if (wrong == 0) {
        dpar_text_put(out, "nothing is wrong\n");
    } else {
        dpari_text_print(out, wrong == 1 ? "%d thing is wrong\n" : "%d things are wrong\n", wrong);
    }
    dpari_os_unmap(checkup, (int64_t)sizeof *checkup);
    return wrong;
}

/* ==== debug/halo_check.c ==== */

/* Writes reports of a halo exchange, and checks its results.
 *
 * Stale halos are found by comparing them with the results of a new exchange. Wrong halos are found
 * by an independent computation: rank 0 assembles each whole field from the own points, and the
 * owner of each halo cell is computed from the rules of halo.h, without the transfer lists that
 * exchanges use. */

/* ---- reports --------------------------------------------------------------------------------- */

/* Returns the name of a method, DPAR_HALO_x. */
static const char *dpari_hx_way(int32_t way)
{
    switch (way) {
    case DPAR_HALO_MESSAGES: return "message";
    case DPAR_HALO_PACKED: return "packed";
    case DPAR_HALO_DIRECT: return "direct";
    default: return "auto";
    }
}

/* Names the fields that are packed because they are not in registered memory. */
static void dpari_hx_put_unreached(dpar_text *out, const dpar_halo_plan *plan)
{
    int32_t i;
    for (i = 0; i < 2 * plan->fields; i++) {
        if (!dpari_hx_unreached(plan, i / 2, i % 2)) {
            continue;
        }
        dpari_text_print(out,
                         i % 2 ? "  the halos of field %d are packed: they are"
                               : "  field %d is packed: it is",
                         i / 2);
        dpar_text_put(out, " not in memory of dpar_comm_alloc of this communicator\n");
    }
}

DPAR_API DPARI_COLD void dpar_halo_plan_report(const dpar_halo_plan *plan, dpar_text *out)
{
    dpari_hx_traffic t;
    int32_t k, c;
    if (!plan || !out) {
        return;
    }
    dpari_text_print(out, "halo exchange of rank %d, %d field%s", plan->comm->rank, plan->fields,
                     plan->fields == 1 ? "" : "s");
    dpar_text_put(out, plan->options.ordered ? ", dim by dim\n" : "\n");
    dpar_text_put(out, "  to rank   way       hops   pieces        bytes       direct         "
                       "runs\n");
    for (k = 0; dpari_hx_traffic_of(plan, k, &t); k++) {
        int64_t column[6];
        static const int32_t place[6] = {4, 22, 31, 44, 57, 70};
        column[0] = t.peer;
        column[1] = t.hops;
        column[2] = t.pieces;
        column[3] = t.bytes;
        column[4] = t.direct;
        column[5] = t.runs;
        for (c = 0; c < 6; c++) {
            dpari_text_column(out, (size_t)place[c]);
            dpari_text_int(out, column[c]);
            if (c == 0) {
                dpari_text_column(out, 12);
                dpar_text_put(out, t.peer == plan->comm->rank ? "copy" : dpari_hx_way(t.way));
            }
        }
        dpari_text_char(out, '\n');
    }
    dpari_hx_put_exchanges(plan, out);
    dpari_hx_put_unreached(out, plan);
}

/* ---- checks POISON and UNFILLED -------------------------------------------------------------- */

/* Stores a value that no code computes: a quiet NaN, or an integer with all bits set. */
static void dpari_hx_poison_of(int32_t type, unsigned char *element)
{
    const uint64_t f64 = UINT64_C(0x7ff8) << 48;
    const uint32_t f32 = 0x7fc00000u;
    const uint16_t bf16 = 0x7fc0, f16 = 0x7e00;
    memset(element, 0xff, 8);
    switch (type) {
    case DPAR_F64: memcpy(element, &f64, 8); break;
    case DPAR_F32:
    case DPAR_TF32: memcpy(element, &f32, 4); break;
    case DPAR_BF16: memcpy(element, &bf16, 2); break;
    case DPAR_F16: memcpy(element, &f16, 2); break;
    default: break;
    }
}

/* True for any NaN, or for the integer with all bits set. */
DPARI_STATIC_NOINLINE int dpari_hx_is_poison(int32_t type, const unsigned char *at)
{
    unsigned char element[8];
    double d;
    float f;
    uint16_t h;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d != d;
    case DPAR_F32:
    case DPAR_TF32: memcpy(&f, at, 4); return f != f;
    case DPAR_BF16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7f80;
    case DPAR_F16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7c00;
    default: break;
    }
    memset(element, 0xff, 8);
    return memcmp(at, element, (size_t)dpar_type_bytes(type)) == 0;
}

/* Sets all halo cells that an exchange fills to the value of dpari_hx_poison_of. */
static void dpari_hx_poison(const dpar_halo_plan *plan)
{
    const dpari_hx_item *it;
    uint64_t element[1];
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        dpari_hx_poison_of(plan->field[it->field].type, (unsigned char *)element);
        dpari_hx_fill_cells(plan, it, element);
    }
}

/* Appends "field 2, point (4, -1) component 1 of rank 3" for index at[] of an item. */
static void dpari_hx_put_cell(const dpar_halo_plan *plan, const dpari_hx_item *it,
                              const int64_t *at, dpar_text *out)
{
    const dpar_halo *halo = plan->field[it->field].halo;
    dpar_box all;
    int32_t d;
    dpari_text_print(out, "field %d, point (", it->field);
    if (dpar_halo_box(halo, plan->comm->rank, &all)) {
        for (d = 0; d < all.dims; d++) {
            dpari_text_print(out, "%s%ld", d ? ", " : "", all.lo[d] + it->local[d] + at[d]);
        }
    }
    dpari_text_print(out, ") component %ld of rank %d", at[it->dims - 1], plan->comm->rank);
}

/* Advances to the next cell of an item: at[] is its index in the item's dims, and *place its offset
 * in elements, by step[] in each dim. Returns 0 after the last cell. */
static int dpari_hx_step_on(const dpari_hx_item *it, const int64_t *step, int64_t *at,
                            int64_t *place)
{
    int32_t d;
    for (d = it->dims - 1; d >= 0; d--) {
        *place += step[d];
        if (++at[d] < it->extent[d]) {
            return 1;
        }
        *place -= step[d] * it->extent[d];
        at[d] = 0;
    }
    return 0;
}

/* Converts index at[] from the sender's order to that of this rank's array. */
static void dpari_hx_here(const dpari_hx_item *it, const int64_t *at, int64_t *here)
{
    int32_t d;
    for (d = 0; d < it->dims; d++) {
        here[it->here[d]] = it->flip >> it->here[d] & 1u ? it->extent[d] - 1 - at[d] : at[d];
    }
}

/* Fails with the first halo cell that is still poisoned. */
static dpar_status dpari_hx_unfilled(const dpar_halo_plan *plan, dpar_why *why)
{
    const dpari_hx_item *it;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        const int32_t type = plan->field[it->field].type;
        const int64_t *step;
        const unsigned char *from = dpari_hx_look_at(plan, it, &step);
        int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
        if (!from) {
            return dpari_say(DPAR_E_SYSTEM, why, "field %d cannot be read from its memory",
                             it->field);
        }
        do {
            dpar_text t;
            if (!dpari_hx_is_poison(type, from + place * dpar_type_bytes(type))) {
                continue;
            }
            dpari_text_why(&t, why);
            dpari_hx_here(it, at, here);
            dpari_hx_put_cell(plan, it, here, &t);
            dpar_text_put(&t, " was not filled, or came from a cell without a value");
            return DPAR_E_ARG;
        } while (dpari_hx_step_on(it, step, at, &place));
    }
    return DPAR_OK;
}

/* ---- check STALE: comparing with the results of a new exchange ------------------------------- */

/* Appends an element of any type. */
static void dpari_hx_put_value(dpar_text *out, int32_t type, const unsigned char *at)
{
    uint64_t bits = 0;
    double d;
    float f;
    dpar_mem_box b;
    dpari_zero(&b, sizeof b);
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); break;
    case DPAR_F32:
    case DPAR_TF32:
    case DPAR_F16:
    case DPAR_BF16:
        memcpy(&bits, at, (size_t)dpar_type_bytes(type));
        b.to = &f;
        b.from = &bits;
        b.to_type = DPAR_F32;
        b.from_type = b.round_type = type == DPAR_TF32 ? DPAR_F32 : type;
        (void)dpari_mem_move_box(&b);
        d = (double)f;
        break;
    case DPAR_I64:
    case DPAR_U64:
        memcpy(&bits, at, 8);
        dpari_text_int(out, (int64_t)bits);
        return;
    case DPAR_I32: {
        int32_t i;
        memcpy(&i, at, 4);
        dpari_text_int(out, i);
        return;
    }
    case DPAR_U32: {
        uint32_t i;
        memcpy(&i, at, 4);
        dpari_text_int(out, i);
        return;
    }
    default: dpari_text_int(out, type == DPAR_I8 ? (signed char)at[0] : at[0]); return;
    }
    dpari_text_real(out, d, type == DPAR_F64 ? 17 : 9);
}

/* Returns the bytes of the copy of an item. */
static int64_t dpari_hx_kept_bytes(const dpar_halo_plan *plan, const dpari_hx_item *it)
{
    return (it->elements * dpar_type_bytes(plan->field[it->field].type) + 15) / 16 * 16;
}

/* Copies all halo cells that this rank receives, one item after another, to `kept`, or back if
 * `back` is 1. */
static dpar_status dpari_hx_copy_halos(const dpar_halo_plan *plan, unsigned char *kept, int back)
{
    const dpari_hx_item *it;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        dpar_mem_box b;
        dpar_status status;
        dpari_hx_box_of(plan, it, kept, back, &b);
        status = dpari_hx_move_box(&plan->field[it->field], &b);
        if (status != DPAR_OK) {
            return status;
        }
        kept += dpari_hx_kept_bytes(plan, it);
    }
    return DPAR_OK;
}

/* Compares an item with its kept copy. Returns 1 if they differ, and describes the first cell that
 * differs in *why. */
static int dpari_hx_item_differs(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                 const unsigned char *was, const unsigned char *is, dpar_why *why)
{
    const int32_t type = plan->field[it->field].type, width = dpar_type_bytes(type);
    int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
    dpar_text t;
    do {
        if (memcmp(was + place * width, is + place * width, (size_t)width) == 0) {
            continue;
        }
        dpari_text_why(&t, why);
        dpari_hx_here(it, at, here);
        dpari_hx_put_cell(plan, it, here, &t);
        dpar_text_put(&t, " is ");
        dpari_hx_put_value(&t, type, was + place * width);
        dpari_text_print(&t, "; its owner, rank %d, has ", dpari_hx_owner(plan, it, here));
        dpari_hx_put_value(&t, type, is + place * width);
        return 1;
    } while (dpari_hx_step_on(it, it->dense, at, &place));
    return 0;
}

/* Compares the kept halos with those received now. Returns the first field with a difference, or
 * -1. */
static int32_t dpari_hx_stale(const dpar_halo_plan *plan, const unsigned char *was,
                              const unsigned char *is, dpar_why *why)
{
    const dpari_hx_item *it;
    int32_t found = -1;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        const int64_t bytes = dpari_hx_kept_bytes(plan, it);
        if ((found < 0 || it->field < found) && dpari_hx_item_differs(plan, it, was, is, why)) {
            found = it->field;
        }
        was += bytes;
        is += bytes;
    }
    return found;
}

/* Returns on all ranks the message of the rank that found the first field. field: the field that
 * this rank found, or -1. */
static dpar_status dpari_hx_share(dpar_halo_plan *plan, int32_t field, dpar_why *found,
                                  dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32;
    int64_t mine = field < 0 ? INT64_MAX : field * unit + plan->comm->rank, first = 0;
    dpar_status st = dpar_all_reduce(plan->comm, &mine, &first, 1, DPAR_I64, DPAR_MIN, NULL);
    if (st == DPAR_OK && first != INT64_MAX) {
        st = dpar_broadcast(plan->comm, found->text, (int64_t)sizeof found->text, DPAR_U8,
                            (int32_t)(first % unit), NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, plan->comm->why.text);
    }
    return first == INT64_MAX ? DPAR_OK : dpari_repeat(DPAR_E_MISMATCH, why, found->text);
}

/* Copies the halos, exchanges them, compares them with the copy, and restores the copy. */
static dpar_status dpari_hx_find_stale(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_why found;
    unsigned char *was, *is;
    void *memory = NULL;
    const dpari_hx_item *it;
    int32_t field = -1;
    int64_t bytes = 0, k;
    dpar_status st, kept;
    dpari_zero(&found, sizeof found);
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        bytes += dpari_hx_kept_bytes(plan, it);
    }
    st = dpar_comm_alloc(plan->comm, 2 * bytes + 64, &memory);
    if (st != DPAR_OK) {
        (void)dpari_repeat(st, why, plan->comm->why.text);
    }
    was = (unsigned char *)memory;
    is = was + bytes;
    if (st == DPAR_OK) {
        st = dpari_hx_pin(plan, memory, 2 * bytes + 64, 1);
    }
    if (st == DPAR_OK) {
        st = dpari_hx_copy_halos(plan, was, 0);
    }
    kept = st;
    st = dpari_agree(plan->comm, st, why);
    if (st == DPAR_OK) {
        st = dpar_halo_plan_exchange(plan);
    }
    if (st == DPAR_OK) {
        st = dpari_hx_copy_halos(plan, is, 0);
        field = st == DPAR_OK ? dpari_hx_stale(plan, was, is, &found) : -1;
    }
    if (kept == DPAR_OK) {
        kept = dpari_hx_copy_halos(plan, was, 1);
    }
    if (memory) {
        (void)dpari_hx_pin(plan, memory, 2 * bytes + 64, 0);
        dpar_comm_release(plan->comm, memory);
    }
    st = dpari_agree(plan->comm, st == DPAR_OK ? kept : st, why);
    return st == DPAR_OK ? dpari_hx_share(plan, field, &found, why) : st;
}

/* ---- check WRONG: comparing with the whole array --------------------------------------------- */

/* A field while it is compared. */
typedef struct dpari_hx_whole {
    const dpar_halo_plan *x;
    int32_t f, components, width; /* number of the field, its components, bytes of a component */
    dpar_box own, all;            /* own points and local box of the rank that is checked */
    unsigned char *points[2];     /* rank 0: all points of the field and of a pair's other field */
    unsigned char *known[2];      /* rank 0: 1 for each point that has an owner */
    unsigned char *local;         /* the local box of one rank */
    dpar_why *why;
} dpari_hx_whole;

DPARI_STATIC_NOINLINE int64_t dpari_hx_volume(const dpar_box *b)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        n *= b->hi[d] - b->lo[d];
    }
    return n;
}

/* Returns the offset of point p in a dense box, in bytes. */
static int64_t dpari_hx_at(const dpari_hx_whole *whole, const dpar_box *b, const int64_t *p)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        at = at * (b->hi[d] - b->lo[d]) + p[d] - b->lo[d];
    }
    return at * whole->components * whole->width;
}

static int dpari_hx_next_point(const dpar_box *b, int64_t *p)
{
    int32_t d;
    for (d = b->dims - 1; d >= 0; d--) {
        if (++p[d] < b->hi[d]) {
            return 1;
        }
        p[d] = b->lo[d];
    }
    return 0;
}

/* Copies some points of this rank's array of field f to `local`, which is dense. */
static dpar_status dpari_hx_collect_box(const dpar_halo_plan *plan, const dpari_hx_whole *whole,
                                        int32_t field, const dpar_box *part)
{
    const dpar_halo_field *f = &plan->field[field];
    const int32_t dims = part->dims;
    int64_t at[DPAR_MAX_DIMS], step = whole->components;
    dpar_mem_box b;
    int32_t d;
    if (dpari_hx_volume(part) == 0) {
        return DPAR_OK;
    }
    for (d = 0; d < dims; d++) {
        at[d] = part->lo[d] - whole->all.lo[d];
    }
    dpari_zero(&b, sizeof b);
    b.dims = dims + 1;
    b.to_type = b.from_type = b.round_type = f->type;
    b.to = whole->local + dpari_hx_at(whole, &whole->all, part->lo);
    b.from = (void *)(uintptr_t)dpari_hx_point(plan, field, at, b.from_stride); /* read only */
    b.extent[dims] = whole->components;
    b.to_stride[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        b.extent[d] = part->hi[d] - part->lo[d];
        b.to_stride[d] = step;
        step *= whole->all.hi[d] - whole->all.lo[d];
    }
    return dpari_hx_move_box(f, &b);
}

/* Copies this rank's local box of a field to `local`, which is dense. Points that a compact form
 * does not store are left out. */
static dpar_status dpari_hx_collect(const dpar_halo_plan *plan, const dpari_hx_whole *whole,
                                    int32_t field)
{
    dpar_box slab;
    dpar_status st;
    int32_t n;
    if (!plan->array[field].compact) {
        return dpari_hx_collect_box(plan, whole, field, &whole->all);
    }
    st = dpari_hx_collect_box(plan, whole, field, &whole->own);
    for (n = 0;
         st == DPAR_OK && dpar_halo_slab(plan->array[field].halo, plan->comm->rank, n, &slab);
         n++) {
        st = dpari_hx_collect_box(plan, whole, field, &slab);
    }
    return st;
}

/* Copies the own points of a rank's local box to the whole array of the field, or, if `other` is 1,
 * of the other field of a pair. */
static void dpari_hx_assemble(dpari_hx_whole *whole, const dpar_box *grid, int other)
{
    int64_t p[DPAR_MAX_DIMS];
    int32_t d;
    if (dpari_hx_volume(&whole->own) == 0) {
        return;
    }
    for (d = 0; d < whole->own.dims; d++) {
        p[d] = whole->own.lo[d];
    }
    do {
        const int64_t at = dpari_hx_at(whole, grid, p), bytes = whole->components * whole->width;
        memcpy(whole->points[other] + at, whole->local + dpari_hx_at(whole, &whole->all, p),
               (size_t)bytes);
        whole->known[other][at / bytes] = 1;
    } while (dpari_hx_next_point(&whole->own, p));
}

/* Moves a point over an edge of a cube's face, in dim k of at[] (0 is y, 1 is x). at[] is in half
 * cells. half: the position of points in their cells, in half cells. */
static void dpari_hx_over_edge(int64_t n, int32_t k, int64_t *face, int64_t *at, int32_t *half,
                               int32_t *turn)
{
    const int up = at[k] > n;
    int32_t more = 0;
    *face = dpari_halo_edge((int32_t)*face, (k ? DPARI_EDGE_WEST : DPARI_EDGE_SOUTH) + up, &more);
    *turn = (*turn + more) % 4;
    at[k] += up ? -2 * n : 2 * n;
    if (more != 0) { /* the other face is rotated by a quarter turn */
        const int64_t across = at[k];
        const int32_t was = half[k];
        at[k] = 2 * n - at[1 - k];
        at[1 - k] = across;
        half[k] = half[1 - k];
        half[1 - k] = was;
    }
}

/* Computes q, the point of a cubed sphere at the position of p, which is beyond an edge or on a
 * border that another face owns. Returns 0 if p is beyond two edges, where three faces meet. */
static int dpari_hx_on_cube(const dpar_halo *halo, const int64_t *p, int64_t *q, int32_t *turn)
{
    const int32_t y = halo->grid.dims - 2;
    const int64_t n = halo->grid.extent[y];
    int64_t at[2];
    int32_t half[2], k, hops;
    for (k = 0; k < 2; k++) {
        const int32_t points = halo->points[y + k];
        half[k] = 1;
        if (points != DPAR_HALO_AT_CELLS) {
            half[k] = points == DPAR_HALO_AT_LOW_FACES ? 0 : 2;
        }
        at[k] = 2 * p[y + k] + half[k];
    }
    for (hops = 0; hops < 3; hops++) {
        int beyond[2], ends[2];
        for (k = 0; k < 2; k++) {
            beyond[k] = at[k] < 0 || at[k] > 2 * n;
            ends[k] = at[k] - half[k] < 0 || at[k] - half[k] >= 2 * n;
        }
        if (beyond[0] && beyond[1]) {
            return 0;
        }
        if (!ends[0] && !ends[1]) {
            break;
        }
        dpari_hx_over_edge(n, beyond[0] || beyond[1] ? beyond[1] : ends[1], &q[0], at, half, turn);
    }
    for (k = 0; k < 2; k++) {
        q[y + k] = (at[k] - half[k]) / 2;
    }
    return 1;
}

/* Computes the column of q. over: 1 if the point is beyond a fold, 2 if beyond a pole. seam: 1 if
 * it is on the fold. Returns 0 if the point is no image of another one. */
static int dpari_hx_turned(const dpar_halo *halo, int over, int seam, int64_t *q)
{
    const int32_t m = halo->mirror;
    int64_t columns, to;
    if (!over && !seam) {
        return 0;
    }
    columns = dpar_halo_points(halo, m);
    to = over == 2 ? q[m] + columns / 2 : columns - 1 + halo->shift - q[m];
    to -= dpari_floor_div(to, columns) * columns;
    if (!over && to >= q[m]) { /* in a pair of points on the fold, the later one is the image */
        return 0;
    }
    q[m] = to;
    return 1;
}

/* Computes the point of which cell p is an image, by the rules of halo.h but independently of its
 * code. Returns 0 if there is none, or if p is that point itself. Sets *turn to the quarter turns
 * of vectors. */
static int dpari_hx_image(const dpari_hx_whole *whole, const int64_t *p, int64_t *q, int32_t *turn)
{
    const dpar_halo *halo = whole->x->field[whole->f].halo;
    int32_t d, outside = 0, over = 0, seam = 0,
               most = dpari_stencil_axes(halo->shape, whole->all.dims);
    *turn = 0;
    for (d = 0; d < whole->all.dims; d++) {
        const int64_t n = dpar_halo_points(halo, d);
        const int bends = d == halo->fold;
        most = halo->window[d].kernel != 0 || whole->x->options.shared ? whole->all.dims : most;
        outside += p[d] < whole->own.lo[d] || p[d] >= whole->own.hi[d];
        q[d] = p[d];
        if (halo->periodic >> d & 1u) {
            q[d] = p[d] - dpari_floor_div(p[d], n) * n;
        } else if (bends && p[d] >= n && (halo->folds || (halo->poles & DPAR_HALO_POLE_HIGH))) {
            over = halo->folds ? 1 : 2;
            q[d] = 2 * (n - 1) + 1 - p[d] -
                   (halo->folds ? halo->on_row : (halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0);
        } else if (bends && p[d] < 0 && (halo->poles & DPAR_HALO_POLE_LOW)) {
            over = 2;
            q[d] = ((halo->pole_rows & DPAR_HALO_POLE_LOW) != 0) - 1 - p[d];
        } else if ((p[d] < 0 || p[d] >= n) && (!halo->cube || d == 0 || d < whole->all.dims - 2)) {
            return 0;
        }
        seam |= bends && halo->folds && halo->on_row && p[d] == n - 1;
    }
    if (outside > most) {
        return 0;
    }
    if (dpari_hx_turned(halo, over, seam, q)) {
        *turn = 2;
        return 1;
    }
    return outside > 0 && (!halo->cube || dpari_hx_on_cube(halo, p, q, turn));
}

/* True if p is among the points that blocks share: an own point, or on the face next to the own
 * points.
 */
static int dpari_hx_is_shared(const dpari_hx_whole *whole, const int64_t *p)
{
    const dpar_halo *halo = whole->x->field[whole->f].halo;
    int32_t d, n = 0;
    for (d = 0; d < whole->all.dims; d++) {
        n += p[d] >= whole->own.lo[d] - (halo->points[d] == DPAR_HALO_AT_HIGH_FACES) &&
             p[d] < whole->own.hi[d] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES) &&
             ((halo->periodic >> d & 1u) || (halo->cube && d >= whole->all.dims - 2) ||
              (p[d] >= 0 && p[d] < dpar_halo_points(halo, d)));
    }
    return n == whole->all.dims;
}

/* Computes component k of a point as it arrives after `turn` quarter turns: rounded to the type in
 * which it is sent, with the sign of vectors. A pair (u, v) becomes (-v, u), (-u, -v) or (v, -u).
 */
static void dpari_hx_passed(const dpari_hx_whole *whole, int32_t turn, int32_t k, void *to,
                            const unsigned char *point)
{
    const dpar_halo_field *field = &whole->x->field[whole->f];
    const int pair = field->vector == 2 && (turn & 1) != 0;
    dpari_stride_piece p;
    dpari_stride one;
    dpari_zero(&p, sizeof p);
    p.to_type = p.from_type = field->type;
    p.through = dpari_hx_wire(field);
    p.negate = pair ? (turn == 1) == (k == 0) : dpari_hx_negates(field, turn);
    dpari_stride_prepare(&one, &p);
    dpari_stride_run(&one, to, point + (pair ? 1 - k : k) * whole->width);
}

/* Writes the message about a halo cell that differs from its owner's. */
static dpar_status dpari_hx_differs(const dpari_hx_whole *whole, int32_t rank, const int64_t *p,
                                    const int64_t *q, int32_t k, const unsigned char *got,
                                    const unsigned char *want)
{
    const int32_t type = whole->x->field[whole->f].type;
    dpar_text t;
    int32_t d, pass;
    dpari_text_why(&t, whole->why);
    dpari_text_print(&t, "field %d", whole->f);
    for (pass = 0; pass < 2; pass++) {
        const int64_t *at = pass ? q : p;
        dpar_text_put(&t, pass ? "; its owner's, point (" : ", point (");
        for (d = 0; d < whole->all.dims; d++) {
            dpari_text_print(&t, "%s%ld", d ? ", " : "", at[d]);
        }
        dpari_text_char(&t, ')');
        if (pass == 0) {
            dpari_text_print(&t, " component %d of rank %d", k, rank);
        }
        dpar_text_put(&t, " is ");
        dpari_hx_put_value(&t, type, pass ? want : got);
    }
    return DPAR_E_MISMATCH;
}

/* Checks all cells of one rank's local box that are an image of a point with an owner. */
static DPARI_COLD dpar_status dpari_hx_compare_box(const dpari_hx_whole *whole,
                                                   const dpar_box *grid, int32_t rank)
{
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t d, k, turn;
    for (d = 0; d < whole->all.dims; d++) {
        p[d] = whole->all.lo[d];
    }
    do {
        const unsigned char *points, *known;
        int64_t from;
        if ((whole->x->options.shared && !dpari_hx_is_shared(whole, p)) ||
            !dpari_hx_image(whole, p, q, &turn)) {
            continue;
        }
        from = dpari_hx_at(whole, grid, q);
        points = whole->points[dpari_hx_crosses(&whole->x->field[whole->f], turn)];
        known = whole->known[dpari_hx_crosses(&whole->x->field[whole->f], turn)];
        for (k = 0; k < whole->components && known[from / (whole->components * whole->width)];
             k++) {
            uint64_t want[1] = {0};
            const unsigned char *got =
                whole->local + dpari_hx_at(whole, &whole->all, p) + k * whole->width;
            dpari_hx_passed(whole, turn, k, want, points + from);
            if (memcmp(want, got, (size_t)whole->width) != 0) {
                return dpari_hx_differs(whole, rank, p, q, k, got,
                                        (const unsigned char *)(const void *)want);
            }
        }
    } while (dpari_hx_next_point(&whole->all, p));
    return DPAR_OK;
}

/* Returns the copy of the grid that a rank's block belongs to, or -1. Mesh axes that do not cut the
 * grid number its copies. */
static int64_t dpari_hx_copy_of(const dpar_halo *halo, int32_t rank)
{
    int32_t coord[DPAR_MAX_AXES], i;
    int64_t copy = 0;
    if (!dpari_halo_coords(halo, rank, coord)) {
        return -1;
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.axis[i].kind != DPAR_PLACEMENT_SHARD) {
            copy = copy * halo->grid.mesh.axis[i].size + coord[i];
        }
    }
    return copy;
}

/* Returns the bytes of the largest local box of field f: of all ranks on rank 0, of this rank on
 * other ranks. */
static int64_t dpari_hx_local_bytes(const dpar_halo_plan *plan, int32_t f)
{
    const int64_t point =
        dpari_hx_components(&plan->field[f]) * dpar_type_bytes(plan->field[f].type);
    int64_t most = 0;
    dpar_box own, all;
    int32_t r;
    for (r = plan->comm->rank;
         r < (plan->comm->rank == 0 ? plan->comm->size : plan->comm->rank + 1); r++) {
        if (dpari_hx_boxes(plan->field[f].halo, r, &own, &all)) {
            most = dpari_most(most, dpari_hx_volume(&all) * point);
        }
    }
    return most;
}

/* Returns the field of a pass, or -1 if there is none. The passes are the own points of the field,
 * the own points of the other field of a pair, and the halos of the field. */
static int32_t dpari_hx_pass_field(const dpari_hx_whole *whole, int32_t pass)
{
    const dpar_halo_field *field = &whole->x->field[whole->f];
    if (pass != 1) {
        return whole->f;
    }
    return field->pair ? (int32_t)(dpari_hx_other(field) - whole->x->field) : -1;
}

/* Rank 0: receives the local boxes of all ranks that have one copy of the grid, one after another.
 * First assembles own points, then compares halos and writes the first difference. Receives all
 * boxes even after an error, because the other ranks send them. */
static dpar_status dpari_hx_compare_copy(dpar_halo_plan *plan, dpari_hx_whole *whole,
                                         const dpar_box *grid, int64_t copy)
{
    dpar_status st = DPAR_OK, now;
    int32_t pass, r;
    for (pass = 0; pass < 3; pass++) {
        const int32_t f = dpari_hx_pass_field(whole, pass);
        for (r = 0; f >= 0 && r < plan->comm->size; r++) {
            const dpar_halo *halo = plan->field[f].halo;
            if (dpari_hx_copy_of(halo, r) != copy ||
                !dpari_hx_boxes(halo, r, &whole->own, &whole->all)) {
                continue;
            }
            if (r == plan->comm->rank) {
                now = dpari_hx_collect(plan, whole, f);
            } else {
                const int64_t n = dpari_hx_volume(&whole->all) * whole->components * whole->width;
                now = dpar_recv(plan->comm, whole->local, n, DPAR_U8, r, plan->options.tag, NULL);
            }
            if (st == DPAR_OK) {
                st = now;
            }
            if (st == DPAR_OK && pass < 2) {
                dpari_hx_assemble(whole, grid, pass);
            } else if (st == DPAR_OK && whole->why->text[0] == 0) {
                (void)dpari_hx_compare_box(whole, grid, r);
            }
        }
    }
    return st;
}

/* Other ranks: sends the local boxes in the order in which rank 0 receives them. */
static dpar_status dpari_hx_compare_send(dpar_halo_plan *plan, dpari_hx_whole *whole)
{
    dpar_status st = DPAR_OK, now;
    int32_t pass;
    for (pass = 0; pass < 3; pass++) {
        const int32_t f = dpari_hx_pass_field(whole, pass);
        if (f >= 0 &&
            dpari_hx_boxes(plan->field[f].halo, plan->comm->rank, &whole->own, &whole->all)) {
            const int64_t n = dpari_hx_volume(&whole->all) * whole->components * whole->width;
            now = dpari_hx_collect(plan, whole, f);
            if (st == DPAR_OK) {
                st = now;
            }
            now = dpar_send(plan->comm, whole->local, n, DPAR_U8, 0, plan->options.tag, NULL);
            if (st == DPAR_OK) {
                st = now;
            }
        }
    }
    return st;
}

/* Compares field f. Allocates memory for a local box, and on rank 0 also for the whole field and
 * the other field of a pair. */
static dpar_status dpari_hx_compare_field(dpar_halo_plan *plan, int32_t f, dpar_why *found)
{
    const dpar_halo *halo = plan->field[f].halo;
    const int32_t fields = plan->field[f].pair ? 2 : 1;
    const int32_t wholes = plan->comm->rank == 0 ? fields : 0;
    dpari_hx_whole w;
    dpar_box grid;
    void *memory = NULL;
    int64_t local, points = 1, bytes, copy;
    int32_t d;
    dpar_status st;
    dpari_zero(&w, sizeof w);
    w.x = plan;
    w.f = f;
    w.components = dpari_hx_components(&plan->field[f]);
    w.width = dpar_type_bytes(plan->field[f].type);
    w.why = found;
    grid.dims = halo->grid.dims;
    for (d = 0; d < grid.dims; d++) {
        grid.lo[d] = 0;
        grid.hi[d] = dpar_halo_points(halo, d);
        points *= grid.hi[d];
    }
    local = dpari_hx_local_bytes(plan, f);
    d = dpari_hx_pass_field(&w, 1);
    local = d >= 0 ? dpari_most(local, dpari_hx_local_bytes(plan, d)) : local;
    bytes = local + 64 + wholes * points * (w.components * w.width + 1);
    st = dpar_comm_alloc(plan->comm, bytes, &memory);
    if (st == DPAR_OK) {
        st = dpari_hx_pin(plan, memory, bytes, 1);
    }
    w.local = (unsigned char *)memory;
    for (d = 0; d < wholes; d++) {
        w.points[d] = w.local + dpari_room_up(local) + d * points * w.components * w.width;
        w.known[d] =
            w.local + dpari_room_up(local) + wholes * points * w.components * w.width + d * points;
    }
    st = dpari_agree(plan->comm, st, NULL);
    for (copy = 0;
         plan->comm->rank == 0 && copy < dpari_layout_copies(&halo->grid) && st == DPAR_OK;
         copy++) {
        dpari_zero(w.known[0], (size_t)(wholes * points));
        st = dpari_hx_compare_copy(plan, &w, &grid, copy);
    }
    if (plan->comm->rank != 0 && st == DPAR_OK) {
        st = dpari_hx_compare_send(plan, &w);
    }
    st = dpari_agree(plan->comm, st, NULL);
    if (memory) {
        (void)dpari_hx_pin(plan, memory, bytes, 0);
        dpar_comm_release(plan->comm, memory);
    }
    return st;
}

static dpar_status dpari_hx_find_wrong(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_why found;
    dpar_status st = DPAR_OK;
    int32_t f;
    dpari_zero(&found, sizeof found);
    for (f = 0; f < plan->fields && st == DPAR_OK; f++) {
        st = dpari_hx_compare_field(plan, f, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(plan->comm, found.text, (int64_t)sizeof found.text, DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, plan->comm->why.text);
    }
    return found.text[0] == 0 ? DPAR_OK : dpari_repeat(DPAR_E_MISMATCH, why, found.text);
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_check(dpar_halo_plan *plan, int32_t what,
                                                     dpar_why *why)
{
    const dpar_status st = dpari_hx_may_look(plan, why);
    if (st != DPAR_OK) {
        return st;
    }
    switch (what) {
    case DPAR_HALO_POISON: dpari_hx_poison(plan); return DPAR_OK;
    case DPAR_HALO_UNFILLED: return dpari_hx_unfilled(plan, why);
    case DPAR_HALO_STALE: return dpari_hx_find_stale(plan, why);
    case DPAR_HALO_WRONG: return dpari_hx_find_wrong(plan, why);
    default:
        return dpari_wrong(why,
                           "dpar_halo_plan_check: check %d does not exist; use DPAR_HALO_POISON "
                           "(1) to DPAR_HALO_WRONG (4)",
                           what);
    }
}

#endif /* DPAR_DEBUG_IMPLEMENTATION */
