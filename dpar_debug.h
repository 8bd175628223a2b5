/* SPDX-License-Identifier: MIT-0 */
/* dpar_debug.h - finds faults: reports what this machine allows, checks and draws halo exchanges and grids.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * A correct code on a healthy machine does not need this header. This program prints what dpar sees on the machine,
 * and what is wrong with it; commands/doctor.c checks more:
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

/* doctor - reports what dpar sees on this machine, how its ranks reach each other, and what is
 * wrong, as far as that can be found without measuring and concerns dpar. The program
 * commands/doctor.c adds the nodes and how fast messages are, and checks networks, settings of NCCL
 * and other programs on the machine. A program may call it on its own communicator:
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
 *        numbers, cores, memory, limits, GPUs, and how ranks would share memory. The text has at
 *        most about 5 KB. Local.
 *
 *        Otherwise the report is about all ranks of world, on any engine. The call is then
 *        collective, and no other operation on world may be in progress. Rank 0 gets the text, at
 *        most about 15 KB with any number of ranks. The other ranks get no text, but the same
 *        result.
 *
 *     joined     how ranks communicate, as dpar_comm_describe writes it
 *     WRONG:     "rank 5 on n2: /dev/shm holds 64.0 MiB, that of rank 0 on n1 23.5 GiB; ..."
 *
 * These are WRONG:
 *
 *  - numbers of the launcher that contradict each other;
 *  - more ranks than cores, or than a CPU limit grants, and ranks bound to the same cores;
 *  - memory, /dev/shm, addresses, sizes of files or open files that are too few for the ranks;
 *  - ranks of a node that do not share memory;
 *  - a version of dpar, an MPI, a deadline or a /dev/shm that differs between ranks;
 *  - ranks that use the same GPU, or do not know which is theirs.
 *
 * The communicator's `sent` does not change. If a rank fails during the call, the communicator
 * breaks; the text of each rank then says what is wrong with this rank and why the communicator
 * broke.
 *
 * The call forks a child to find out what the kernel allows. It takes milliseconds. Each rank uses
 * 4 KiB of memory and 137 bytes per rank of world, and rank 0 four kilobytes per rank. */
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

/* ==== debug/halo_show.h ==== */

/* halo_show - draws an exchange of halos, which shows what each rank sends to which other one.
 *
 *     dpar_halo_draw_desc p = {0};
 *     p.halo = &h;
 *     p.rank = 5;
 *     dpar_halo_draw(&text, &p, DPAR_HALO_SVG, &why);
 */

/* A picture of the blocks of all ranks in two dims of a grid, and of the halo of one rank. Zero it,
 * then set the fields. */
typedef struct dpar_halo_draw_desc {
    const dpar_halo *halo; /* accepted by dpar_halo_check */
    int32_t rank;          /* the rank whose halo is drawn */
    /* The two dims that are drawn. If they are equal, such as all zero, they are the last dim and
     * the one before it. In other dims the picture shows the rank's own range. */
    int32_t across, down;
    int64_t bytes;     /* bytes of a point; 0 counts points instead of bytes */
    const char *title; /* printable ASCII; NULL if there is none */
} dpar_halo_draw_desc;

/* The formats of a picture. */
enum { DPAR_HALO_SVG };

/* Draws a picture as SVG and appends it to a text. Each block has its rank's number. The rank's own
 * block is framed, with its halo dashed around it. Each piece of the halo, and the cells that it
 * copies, have the colour of the rank that sends it, and an arrow connects them. A table lists the
 * peers with the pieces and bytes received and sent.
 *
 * Pieces that cross a fold or a periodic end are drawn twice: where their cells are, and where they
 * arrive. Grids of more than 4096 blocks show only the rank's peers. The file is valid XML without
 * scripts and without fonts other than sans-serif. Fails with DPAR_E_ARG if there is no such rank,
 * dim or format, or the rank has no points. Costs O(blocks + transfers).
 */
DPAR_API dpar_status dpar_halo_draw(dpar_text *text, const dpar_halo_draw_desc *desc,
                                    int32_t format, dpar_why *why);

/* ==== debug/grid_draw.h ==== */

/* grid_draw - draws which ranks own which cells of a grid (grid.h), as text.
 *
 *     dpar_text_init(&text, page, sizeof page);
 *     dpar_grid_draw(grid, &text); */

/* Draws which rank owns which cells, as text. The first line describes the grid. A table follows
 * for each combination of parts of the dims before the last two. It shows which ranks own the cells
 * in the last two dims. Draws nothing if a pointer is NULL. Local. Costs O(ranks). */
DPAR_API void dpar_grid_draw(const dpar_grid *grid, dpar_text *out);

/* ==== debug/grid_check.h ==== */

/* grid_check - finds stencils that read stale cells of a deep halo (dpar_grid_desc.steps). The
 * calls do nothing unless the grid was made with desc.check = 1, so that they can stay in a code.
 *
 *     dpar_grid_exchange(g, u);
 *     for (j = 0; dpar_grid_valid(g, j, &box); j++) {
 *         dpar_grid_poison(g, &v, 1, &why);               v is overwritten: NaN everywhere
 *         ... compute the cells of box of v from u ...
 *         dpar_grid_check_step(g, &v, 1, j, &why);        names array, cell and sub-step
 *         ... swap u and v ...
 *     }
 *
 * Cells that are not valid hold a NaN that tells which cell of which array it is, and since when.
 * It passes through sums and products, so that the cells that were computed from it name their
 * source. RISC-V processors and most GPUs replace such NaNs by another; then the source is unknown.
 */

/* Sets all points of arrays to NaN, own ones too, except those beyond walls. Call it before a
 * sub-step for arrays that it overwrites; dpar_grid_check_step then also finds cells that the
 * sub-step leaves out.
 *
 * arrays: [count], 1 to 4096 arrays of DPAR_F64 or DPAR_F32, in memory that the CPU can reach.
 *
 * Local. Costs O(points). Fails with DPAR_E_ARG if an address is not that of such an array. Does
 * nothing unless desc.check is 1. */
DPAR_API dpar_status dpar_grid_poison(dpar_grid *grid, void *const *arrays, int32_t count,
                                      dpar_why *why);
/* Checks the arrays that sub-step j has written, and sets their halo cells that are not valid
 * afterwards to NaN. Call it after each sub-step, before dpar_grid_reflect.
 *
 * arrays: [count], as for dpar_grid_poison; their own values must not be NaN.
 * j:      the sub-step, as for dpar_grid_valid.
 *
 * The message names array (from 0), cell (index in the whole grid) and sub-step. It also names a
 * stale cell that was read, if the processor passes NaNs on. The following faults are found. A
 * sub-step is one too many. An array was not exchanged or reflected. A stencil is wider than its
 * radius, halo / steps; the message says which halo it needs. A loop covers more cells than those
 * of dpar_grid_valid, or after dpar_grid_poison fewer.
 *
 * Collective: all ranks pass the same arrays and fail if one has found a fault. Costs O(points) and
 * a small all-reduce. Fails with DPAR_E_ARG, and with the errors of the communicator. Does nothing
 * unless desc.check is 1. */
DPAR_API dpar_status dpar_grid_check_step(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t j, dpar_why *why);

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

/* checkup - private: the facts that dpar_doctor collects about a process and its machine, and what
 * is wrong with them. Collecting the facts is separate from checking them, so that tests can
 * present any machine. */

/* The facts about a process, its machine and its job. */
typedef struct dpari_checkup {
    dpar_launcher_info job;
    dpar_status job_status; /* result of dpari_job_here, whose message is in job_why */
    dpar_why job_why;
    int32_t nodes;   /* nodes of the job; 0 if unknown */
    int32_t here;    /* ranks of the job on this node */
    int32_t cores;   /* cores of the machine */
    int32_t allowed; /* cores that this process may use, those in `cpus` */
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t quota;                 /* hundredths of a core that the cgroup grants; INT32_MAX if
                                      unlimited */
    int64_t memory, memory_free;   /* bytes; 0 if unknown */
    int64_t memory_limit;          /* limit of the cgroup in bytes; 0 if none */
    int64_t shm, shm_free;         /* bytes of /dev/shm; -1 if there is none */
    int32_t memfd;                 /* 1 if memfd_create works */
    int32_t cma;                   /* 0 if process_vm_readv works, otherwise errno */
    int32_t yama;                  /* ptrace_scope; 0 if there is no such file */
    int64_t addresses, file_bytes; /* ulimit -v and -f in bytes; -1 if unlimited */
    int64_t open_files;            /* ulimit -n; -1 if unlimited */
    int32_t gpus;                  /* NVIDIA GPUs of the machine */
    char gpu[44];                  /* the GPU that this rank would use, as in CUDA_VISIBLE_DEVICES;
                                      "" if none */
    char mpi[48];                  /* file of the loaded MPI library; "" if none */
} dpari_checkup;

/* Collects the facts about this process, its machine and its job. Forks a child. */
DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup);
/* Writes the facts, a line for each subject. world: NULL, or the communicator that the process
 * has. */
DPARI_INTERNAL void dpari_doctor_say(const dpari_site *site, const dpari_checkup *checkup,
                                     const dpar_comm *world, dpar_text *out);
/* Writes a line "WRONG: ... -> ..." for each thing that is wrong. Returns how many there are. */
DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out);

/* Returns the number of CPUs in a mask. */
DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask);
/* Sets `name` to the host name. */
DPARI_INTERNAL void dpari_doctor_host(char name[256]);
/* Writes the first word of a line, and spaces up to the column at which its text begins. */
DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title);
/* Appends "47.2 GiB", or "unlimited" for a negative number. */
DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes);

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
 * that tests can present any machine. Called by doctor.c. */

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

/* Counts the names in a directory that consist of `begins`, a digit and any other characters. */
static DPARI_COLD int32_t dpari_doctor_count(const dpari_site *site, const char *path,
                                             const char *begins)
{
    const size_t length = strlen(begins);
    char full[256];
    dpar_text t;
    DIR *at;
    struct dirent *entry;
    int32_t count = 0;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    at = opendir(full);
    if (at == NULL) {
        return 0;
    }
    while ((entry = readdir(at)) != NULL) {
        const char *name = entry->d_name;
        count += strncmp(name, begins, length) == 0 && name[length] >= '0' && name[length] <= '9';
    }
    closedir(at);
    return count;
}

/* Returns the number of GPUs. A container may have only their devices: "nvidia0", but not
 * "nvidiactl". */
static int32_t dpari_doctor_gpus(const dpari_site *site)
{
    const int32_t count = dpari_doctor_count(site, "/proc/driver/nvidia/gpus", "");
    return count > 0 ? count : dpari_doctor_count(site, "/dev", "nvidia");
}

/* Returns the number of devices in `list`, the value of CUDA_VISIBLE_DEVICES, or `gpus` if it is
 * NULL. */
static int32_t dpari_doctor_visible(const char *list, int32_t gpus)
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

/* Finds the GPU that the rank would use, which is number local_rank of those that it sees. */
static void dpari_doctor_own_gpu(const dpari_site *site, dpari_checkup *checkup)
{
    const char *list = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    int32_t visible = dpari_doctor_visible(list, checkup->gpus), skip;
    dpar_text t;
    dpar_text_init(&t, checkup->gpu, sizeof checkup->gpu);
    if (checkup->gpus == 0 || visible == 0) {
        return;
    }
    skip = 0;
    if (checkup->job_status == DPAR_OK && checkup->job.local_rank > 0) {
        skip = checkup->job.local_rank % visible;
    }
    if (list == NULL) {
        dpari_text_int(&t, skip);
        return;
    }
    for (; skip > 0; list++) {
        skip -= *list == ',';
    }
    dpari_text_slice(&t, list, strcspn(list, ","));
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
            if (strncmp(name, "libmpi.", 7) == 0 || strncmp(name, "libmpich", 8) == 0 ||
                strncmp(name, "libmpi_cray", 11) == 0 || strncmp(name, "libmpi_gnu", 10) == 0) {
                dpari_copy_text(checkup->mpi, sizeof checkup->mpi, name, (size_t)(i - begin));
            }
            begin = i + 1;
        }
    }
    dpari_os_unmap(text, room);
}

/* Sets the facts that are read from files. */
static void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup)
{
    char text[24];
    checkup->yama = 0;
    if (dpari_site_read(site, "/proc/sys/kernel/yama/ptrace_scope", text, sizeof text) > 0) {
        checkup->yama = text[0] - '0';
    }
    checkup->gpus = dpari_doctor_gpus(site);
    dpari_doctor_own_gpu(site, checkup);
    dpari_doctor_mpi(site, checkup);
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
    const int64_t limit = dpari_os_limit(which);
    return limit < INT64_MAX ? limit : -1;
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

/* Sets the facts about the memory of the machine and of the cgroup. */
static void dpari_doctor_room(dpari_checkup *checkup)
{
    dpari_available available;
    struct statvfs shm;
    dpari_limits_find(&available);
    checkup->quota = available.hundredths;
    checkup->memory = dpari_os_memory();
    checkup->memory_free = available.bytes < INT64_MAX ? available.bytes : 0;
    checkup->memory_limit = available.most;
    checkup->shm = checkup->shm_free = -1;
    if (statvfs("/dev/shm", &shm) == 0) {
        checkup->shm = (int64_t)shm.f_blocks * (int64_t)shm.f_frsize;
        checkup->shm_free = (int64_t)shm.f_bavail * (int64_t)shm.f_frsize;
    }
}

DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int fd = -1;
    dpari_zero(checkup, sizeof *checkup);
    checkup->job_status = dpari_job_here(&checkup->job, &checkup->nodes, &checkup->job_why);
    checkup->here = dpari_doctor_here(checkup);
    dpari_doctor_files(site, checkup);
    dpari_os_cpus(checkup->cpus);
    checkup->allowed = dpari_doctor_bits(checkup->cpus);
    checkup->cores = cores > checkup->allowed ? (int32_t)cores : checkup->allowed;
    dpari_doctor_room(checkup);
#if defined(__linux__) && defined(SYS_memfd_create)
    fd = (int)syscall(SYS_memfd_create, "dpar", 1U);
#endif
    checkup->memfd = fd >= 0;
    if (fd >= 0) {
        close(fd);
    }
    checkup->cma = dpari_doctor_try_cma();
    checkup->addresses = dpari_doctor_ulimit((int)RLIMIT_AS);
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

/* ---- the facts ------------------------------------------------------------------------------- */

/* Appends a number, or "unknown" if it is negative. */
static void dpari_doctor_known(dpar_text *out, int32_t number)
{
    if (number < 0) {
        dpar_text_put(out, "unknown");
    } else {
        dpari_text_int(out, number);
    }
}

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
    dpari_doctor_known(out, j->local_rank);
    dpar_text_put(out, " of ");
    dpari_doctor_known(out, j->local_size);
    dpari_text_print(out, ", job %s\n", j->id);
}

static void dpari_doctor_say_memory(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "cores");
    dpari_text_print(out, "%d, this process may use %d", checkup->cores, checkup->allowed);
    if (checkup->quota < INT32_MAX) {
        dpari_text_print(out, ", its cgroup grants %.2f", checkup->quota / 100.0);
    }
    dpari_text_char(out, '\n');
    dpari_doctor_head(out, "memory");
    dpari_doctor_bytes(out, checkup->memory);
    dpar_text_put(out, ", free ");
    dpari_doctor_bytes(out, checkup->memory_free);
    if (checkup->memory_limit > 0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_doctor_bytes(out, checkup->memory_limit);
    }
    dpari_text_char(out, '\n');
}

static void dpari_doctor_say_limits(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "limits");
    dpar_text_put(out, "addresses ");
    dpari_doctor_bytes(out, checkup->addresses);
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

/* True if ranks of the job are on other nodes too. */
static int dpari_doctor_spread(const dpari_checkup *checkup)
{
    return checkup->job.size > 1 &&
           (checkup->nodes > 1 ||
            (checkup->job.local_size > 0 && checkup->job.local_size < checkup->job.size));
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

DPARI_INTERNAL void dpari_doctor_say(const dpari_site *site, const dpari_checkup *checkup,
                                     const dpar_comm *world, dpar_text *out)
{
    const char *list = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    char host[256];
    dpari_doctor_host(host);
    dpari_text_print(out, "dpar %d.%d.%d on %s\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
                     DPAR_VERSION_PATCH, host);
    dpari_doctor_say_job(checkup, out);
    dpari_doctor_say_memory(checkup, out);
    dpari_doctor_say_limits(checkup, out);
    dpari_doctor_head(out, "GPUs");
    dpari_text_int(out, checkup->gpus);
    if (list != NULL) {
        dpari_text_print(out, "; CUDA_VISIBLE_DEVICES=%s", list);
    }
    dpari_text_char(out, '\n');
    dpari_doctor_say_use(checkup, world, out);
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
            checkup->shm < 0 ? 0 : checkup->shm >> 20, checkup->mpi, DPARI_DOCTOR_MPI >> 20,
            checkup->here);
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
                           checkup->addresses >> 20, checkup->here);
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
    if (checkup->here > checkup->cores) {
        dpari_doctor_wrong(doctor,
                           "%d ranks run on %d cores, so that they wait for cores, not for data -> "
                           "start at most %d here",
                           checkup->here, checkup->cores, checkup->cores);
    } else if (checkup->quota / 100.0 < checkup->here) {
        dpari_doctor_wrong(doctor,
                           "the cgroup grants %d hundredths of a core to %d ranks, which are then "
                           "stopped part of the time -> raise its CPU limit, or start fewer",
                           checkup->quota, checkup->here);
    }
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
    return d.wrong;
}

/* ==== debug/doctor.c ==== */

/* Makes the reports of dpar_doctor. The report about one process is that of checkup.c. For the
 * report about all ranks, they first exchange a record of fixed format (dpari_doctor_who), so that
 * ranks of different versions of dpar can recognise each other. Rank 0 then gathers the facts about
 * all processes, and what is wrong with each of them, and compares them.
 *
 * The comparison depends only on the gathered data, so that tests can present any job. */

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
static dpar_status dpari_hx_tell_all(dpar_halo_plan *plan, int32_t field, dpar_why *found,
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
    return st == DPAR_OK ? dpari_hx_tell_all(plan, field, &found, why) : st;
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

/* Returns the points of the local box that may be compared. Points beyond an end of the grid, where
 * nothing is exchanged, are images of no point, and the array need not have them. */
static dpar_box dpari_hx_compared(const dpari_hx_whole *whole, const dpar_halo *halo)
{
    dpar_box part = whole->all;
    int32_t d;
    for (d = 0; d < part.dims; d++) {
        const int ends = !(halo->periodic >> d & 1u) && d != halo->fold &&
                         !(halo->cube && d >= part.dims - 2);
        if (ends) {
            part.lo[d] = dpari_most(part.lo[d], 0);
            part.hi[d] = dpari_least(part.hi[d], dpar_halo_points(halo, d));
            part.hi[d] = dpari_most(part.hi[d], part.lo[d]);
        }
    }
    return part;
}

/* Copies this rank's local box of a field to `local`, which is dense. Points that a compact form
 * does not store, or that are not compared, are left out. */
static dpar_status dpari_hx_collect(const dpar_halo_plan *plan, const dpari_hx_whole *whole,
                                    int32_t field)
{
    dpar_box slab;
    dpar_status st;
    int32_t n;
    if (!plan->array[field].compact) {
        slab = dpari_hx_compared(whole, plan->array[field].halo);
        return dpari_hx_collect_box(plan, whole, field, &slab);
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

/* True if component k of a halo cell is received: its direction leads from there into the block. */
static int dpari_hx_leads_in(const dpari_hx_whole *whole, const int64_t *p, int32_t k)
{
    const int8_t *direction = whole->x->field[whole->f].direction;
    int32_t d;
    for (d = 0; direction && d < whole->all.dims; d++) {
        const int8_t moves = direction[k * DPAR_MAX_DIMS + d];
        if ((p[d] < whole->own.lo[d] && moves <= 0) || (p[d] >= whole->own.hi[d] && moves >= 0)) {
            return 0;
        }
    }
    return 1;
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
            if (!dpari_hx_leads_in(whole, p, k)) {
                continue;
            }
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

/* ==== debug/halo_show.c ==== */

/* Draws an exchange of halos as SVG. The picture is built from the same walk over transfers that an
 * exchange uses, so that it shows the transfers that are really sent. */

/* Lengths are in tenths of a pixel. */
enum {
    DPARI_HSHOW_WIDE = 7200, /* length of the longer side of the grid */
    DPARI_HSHOW_LEFT = 300,
    DPARI_HSHOW_TOP = 800,
    DPARI_HSHOW_TABLE = 3400,
    DPARI_HSHOW_ROW = 190,
    DPARI_HSHOW_ROWS = 40,    /* maximum number of peers in the table */
    DPARI_HSHOW_BLOCKS = 4096 /* maximum number of blocks that are drawn */
};

typedef struct dpari_hshow {
    const dpar_halo_draw_desc *desc;
    int32_t dim[2];       /* down, across; -1 if the grid has one dim */
    dpar_box own, box;    /* points that the rank owns, and those of its array */
    int64_t lo[2], hi[2]; /* range of points that is drawn */
    int64_t scale;        /* tenths of a pixel per point, times 1024 */
    int64_t peers;        /* number of rows of the table */
} dpari_hshow;

/* ---- elements -------------------------------------------------------------------------------- */

static void dpari_hshow_number(dpar_text *text, const char *name, int64_t tenths)
{
    dpari_text_print(text, " %s=\"%.1f\"", name, (double)tenths / 10);
}

static void dpari_hshow_text(dpar_text *text, const char *style, int64_t x, int64_t y)
{
    dpari_text_print(text, "<text class=\"%s\"", style);
    dpari_hshow_number(text, "x", x);
    dpari_hshow_number(text, "y", y);
    dpari_text_char(text, '>');
}

/* Gives ranks with consecutive numbers colours that are far apart, by the golden angle. */
static void dpari_hshow_colour(dpar_text *text, int32_t peer)
{
    dpari_text_print(text, "hsl(%ld,62%%,55%%)", ((int64_t)peer * 13751 + 20000) / 100 % 360);
}

/* Returns where point v of dim k (0 down, 1 across) begins in the picture. */
DPARI_STATIC_NOINLINE int64_t dpari_hshow_at(const dpari_hshow *show, int32_t k, int64_t v)
{
    return (k ? DPARI_HSHOW_LEFT : DPARI_HSHOW_TOP) + (v - show->lo[k]) * show->scale / 1024;
}

/* Draws a box of points. `style` is a CSS class; without a peer (-1) it also gives the colour. */
static void dpari_hshow_rect(dpar_text *text, const dpari_hshow *show, const char *style,
                             const int64_t *lo, const int64_t *hi, int32_t peer)
{
    int64_t x = dpari_hshow_at(show, 1, lo[1]), y = dpari_hshow_at(show, 0, lo[0]);
    dpari_text_print(text, "<rect class=\"%s\"", style);
    dpari_hshow_number(text, "x", x);
    dpari_hshow_number(text, "y", y);
    dpari_hshow_number(text, "width", dpari_hshow_at(show, 1, hi[1]) - x);
    dpari_hshow_number(text, "height", dpari_hshow_at(show, 0, hi[0]) - y);
    if (peer >= 0) {
        dpar_text_put(text, " fill=\"");
        dpari_hshow_colour(text, peer);
        dpari_text_char(text, '"');
    }
    dpar_text_put(text, "/>\n");
}

/* Takes the two dims that are drawn out of the box [lo, hi). */
static void dpari_hshow_flat(const dpari_hshow *show, const int64_t *lo, const int64_t *hi,
                             int64_t (*to)[2])
{
    int32_t k;
    for (k = 0; k < 2; k++) {
        to[0][k] = show->dim[k] < 0 ? 0 : lo[show->dim[k]];
        to[1][k] = show->dim[k] < 0 ? 1 : hi[show->dim[k]];
    }
}

/* ---- what is drawn --------------------------------------------------------------------------- */

static dpar_status dpari_hshow_begin(dpari_hshow *show, const dpar_halo_draw_desc *p, dpar_why *why)
{
    const int32_t dims = p->halo->grid.dims;
    int64_t flat[2][2], span = 1;
    int32_t k;
    dpar_halo_cursor w;
    dpar_status st;
    show->desc = p;
    show->dim[0] = p->across == p->down ? dims - 2 : p->down;
    show->dim[1] = p->across == p->down ? dims - 1 : p->across;
    if (dims < 1 || p->across < 0 || p->across >= dims || p->down < 0 || p->down >= dims) {
        return dpari_wrong(why, "down is %d, across is %d, but the grid has %d dims", p->down,
                           p->across, dims);
    }
    if (!dpar_halo_owned(p->halo, p->rank, &show->own)) {
        return dpari_wrong(why, "rank %d owns no points", p->rank);
    }
    st = dpar_halo_first(&w, p->halo, p->rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, why);
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpar_halo_box(p->halo, p->rank, &show->box);
    dpari_hshow_flat(show, show->box.lo, show->box.hi, flat);
    for (k = 0; k < 2; k++) {
        int64_t points = show->dim[k] < 0 ? 1 : dpar_halo_points(p->halo, show->dim[k]);
        show->lo[k] = dpari_least(0, flat[0][k]);
        show->hi[k] = dpari_most(points, flat[1][k]);
        span = dpari_most(span, show->hi[k] - show->lo[k]);
    }
    show->scale = dpari_most(1, (int64_t)DPARI_HSHOW_WIDE * 1024 / span);
    show->scale = dpari_least(show->scale, INT64_C(400) * 1024);
    return DPAR_OK;
}

/* True if the block and the rank's block overlap in the dims that are not drawn. */
static int dpari_hshow_level(const dpari_hshow *show, const dpar_box *b)
{
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        if (d != show->dim[0] && d != show->dim[1] &&
            (b->lo[d] >= show->own.hi[d] || b->hi[d] <= show->own.lo[d])) {
            return 0;
        }
    }
    return 1;
}

static void dpari_hshow_block(dpar_text *text, const dpari_hshow *show, int32_t rank)
{
    int64_t flat[2][2];
    dpar_box b;
    if (rank < 0 || !dpar_halo_owned(show->desc->halo, rank, &b) || !dpari_hshow_level(show, &b)) {
        return;
    }
    dpari_hshow_flat(show, b.lo, b.hi, flat);
    dpari_hshow_rect(text, show, rank == show->desc->rank ? "me" : "b", flat[0], flat[1], -1);
    dpari_hshow_text(
        text, "n", (dpari_hshow_at(show, 1, flat[0][1]) + dpari_hshow_at(show, 1, flat[1][1])) / 2,
        (dpari_hshow_at(show, 0, flat[0][0]) + dpari_hshow_at(show, 0, flat[1][0])) / 2 + 40);
    dpari_text_print(text, "%d</text>\n", rank);
}

static void dpari_hshow_blocks(dpar_text *text, const dpari_hshow *show)
{
    const dpar_halo *halo = show->desc->halo;
    const dpar_mesh *mesh = &halo->grid.mesh;
    int32_t coord[DPAR_MAX_AXES] = {0}, a, drawn;
    for (drawn = 0; drawn < DPARI_HSHOW_BLOCKS; drawn++) {
        const int32_t block = dpar_mesh_rank(mesh, coord);
        dpari_hshow_block(text, show, halo->owner ? halo->owner[block] : block);
        for (a = mesh->axes - 1; a >= 0 && coord[a] == mesh->axis[a].size - 1; a--) {
            coord[a] = 0;
        }
        if (a < 0) {
            return;
        }
        coord[a]++;
    }
}

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Draws a piece that is received: where it arrives, where its cells are in the grid, and an arrow
 * between the two. */
static void dpari_hshow_piece(dpar_text *text, const dpari_hshow *show, const dpar_transfer *r)
{
    const dpar_halo *halo = show->desc->halo;
    int64_t there[2][2], here[2][2], lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
    int32_t d, k;
    dpar_box from;
    for (d = 0; d < r->dims; d++) {
        int32_t mine = d;
        if (r->swap[0] != r->swap[1] && d == r->swap[0]) {
            mine = r->swap[1];
        } else if (r->swap[0] != r->swap[1] && d == r->swap[1]) {
            mine = r->swap[0];
        }
        lo[d] = show->box.lo[d] + r->mine[d];
        hi[d] = lo[d] + r->extent[mine];
    }
    dpari_hshow_flat(show, lo, hi, here);
    dpari_hshow_rect(text, show, "in", here[0], here[1], r->peer);
    halo = halo->partner != NULL && r->turn % 2 != 0 ? halo->partner : halo;
    if (!dpar_halo_box(halo, r->peer, &from)) {
        return;
    }
    for (d = 0; d < r->dims; d++) {
        lo[d] = from.lo[d] + r->theirs[d];
        hi[d] = lo[d] + r->extent[d];
    }
    dpari_hshow_flat(show, lo, hi, there);
    dpari_hshow_rect(text, show, "out", there[0], there[1], r->peer);
    if (here[0][0] == there[0][0] && here[0][1] == there[0][1]) {
        return; /* no arrow, because the piece is drawn at its source */
    }
    dpar_text_put(text, "<path class=\"w\" stroke=\"");
    dpari_hshow_colour(text, r->peer);
    dpar_text_put(text, "\" d=\"");
    for (k = 0; k < 2; k++) {
        int64_t(*at)[2] = k ? here : there;
        dpari_text_print(
            text, "%s%.1f %.1f", k ? "L" : "M",
            (double)(dpari_hshow_at(show, 1, at[0][1]) + dpari_hshow_at(show, 1, at[1][1])) / 20,
            (double)(dpari_hshow_at(show, 0, at[0][0]) + dpari_hshow_at(show, 0, at[1][0])) / 20);
    }
    dpar_text_put(text, "\"/>\n");
}

static void dpari_hshow_pieces(dpar_text *text, const dpari_hshow *show)
{
    dpar_halo_cursor w;
    dpar_transfer r;
    (void)dpar_halo_first(&w, show->desc->halo, show->desc->rank, DPAR_TRANSFER_RECV,
                          DPAR_HALO_FORWARD, NULL);
    while (dpar_halo_next(&w, &r)) {
        dpari_hshow_piece(text, show, &r);
    }
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef struct dpari_hshow_sum {
    int64_t pieces, points;
} dpari_hshow_sum;

/* Counts the pieces and points that are exchanged with `peer` in one direction. *next becomes the
 * least peer above `after`, unless it is already smaller. */
static dpari_hshow_sum dpari_hshow_count(const dpari_hshow *show, int32_t direction, int32_t peer,
                                         int32_t after, int32_t *next)
{
    dpari_hshow_sum sum = {0, 0};
    dpar_halo_cursor w;
    dpar_transfer r;
    (void)dpar_halo_first(&w, show->desc->halo, show->desc->rank, direction, DPAR_HALO_FORWARD,
                          NULL);
    while (dpar_halo_next(&w, &r)) {
        if (r.peer == peer) {
            sum.pieces++;
            sum.points += dpar_transfer_volume(&r);
        }
        if (r.peer > after && (*next < 0 || r.peer < *next)) {
            *next = r.peer;
        }
    }
    return sum;
}

static void dpari_hshow_amount(dpar_text *text, const dpari_hshow *show, dpari_hshow_sum sum)
{
    const int64_t unit = dpari_most(1, show->desc->bytes);
    const int64_t amount = sum.points <= INT64_MAX / unit ? sum.points * unit : INT64_MAX;
    dpari_text_print(text, "%ld%s%ld", amount, show->desc->bytes > 0 ? " bytes in " : " points in ",
                     sum.pieces);
}

static void dpari_hshow_table(dpar_text *text, const dpari_hshow *show)
{
    const int64_t x = dpari_hshow_at(show, 1, show->hi[1]) + 300;
    int64_t y = DPARI_HSHOW_TOP + 100;
    int32_t peer = -1, row;
    for (row = 0; row < DPARI_HSHOW_ROWS; row++, y += DPARI_HSHOW_ROW) {
        int32_t next = -1;
        dpari_hshow_count(show, DPAR_TRANSFER_RECV, -1, peer, &next);
        dpari_hshow_count(show, DPAR_TRANSFER_SEND, -1, peer, &next);
        if (next < 0) {
            return;
        }
        peer = next;
        dpar_text_put(text, "<rect class=\"k\" fill=\"");
        dpari_hshow_colour(text, peer);
        dpari_text_char(text, '"');
        dpari_hshow_number(text, "x", x);
        dpari_hshow_number(text, "y", y - 90);
        dpar_text_put(text, " width=\"10\" height=\"10\"/>");
        dpari_hshow_text(text, "t", x + 150, y);
        dpar_text_put(text, peer == show->desc->rank ? "itself" : "rank ");
        if (peer != show->desc->rank) {
            dpari_text_int(text, peer);
        }
        dpar_text_put(text, ": receives ");
        dpari_hshow_amount(text, show,
                           dpari_hshow_count(show, DPAR_TRANSFER_RECV, peer, INT32_MAX, &next));
        dpar_text_put(text, ", sends ");
        dpari_hshow_amount(text, show,
                           dpari_hshow_count(show, DPAR_TRANSFER_SEND, peer, INT32_MAX, &next));
        dpar_text_put(text, "</text>\n");
    }
    dpari_hshow_text(text, "t", x + 150, y);
    dpar_text_put(text, "and others</text>\n");
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void dpari_hshow_title(dpar_text *text, const dpari_hshow *show)
{
    const char *c = show->desc->title;
    for (; c != NULL && *c != 0; c++) {
        const int plain = *c >= ' ' && *c < 127 && *c != '&' && *c != '<' && *c != '>';
        dpari_text_char(text, plain ? *c : '?');
    }
    dpari_text_print(text, "%s%d", c != NULL ? ": rank " : "Halo of rank ", show->desc->rank);
}

static void dpari_hshow_head(dpar_text *text, const dpari_hshow *show)
{
    const int64_t wide = dpari_hshow_at(show, 1, show->hi[1]) + DPARI_HSHOW_TABLE + 300;
    const int64_t high = dpari_most(dpari_hshow_at(show, 0, show->hi[0]),
                                    DPARI_HSHOW_TOP + show->peers * DPARI_HSHOW_ROW) +
                         300;
    dpari_text_print(text,
                     "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld "
                     "%ld\">\n<style>text{font:12px sans-serif;fill:#222}.h{font-size:18px;"
                     "font-weight:600}.n{text-anchor:middle;font-size:11px;fill:#666}"
                     ".b{fill:#f4f4f4;stroke:#999;stroke-width:.6}"
                     ".me{fill:#fff;stroke:#222;stroke-width:1.6}"
                     ".in{stroke:#222;stroke-width:.7;stroke-dasharray:3 2;fill-opacity:.75}"
                     ".out{stroke:#222;stroke-width:.5;fill-opacity:.4}"
                     ".w{fill:none;stroke-width:1.2;marker-end:url(#dpar-tip)}</style>\n"
                     "<defs><marker id=\"dpar-tip\" viewBox=\"0 0 6 6\" refX=\"5\" refY=\"3\" "
                     "markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\">"
                     "<path d=\"M0 0L6 3L0 6z\" fill=\"#444\"/></marker></defs>\n"
                     "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                     wide / 10, high / 10);
    dpari_hshow_text(text, "h", DPARI_HSHOW_LEFT, 350);
    dpari_hshow_title(text, show);
    dpar_text_put(text, "</text>\n");
    dpari_hshow_text(text, "s", DPARI_HSHOW_LEFT, 560);
    dpar_text_put(text, "dashed: its halo; paler: the cells that it is a copy of</text>\n");
}

DPAR_API DPARI_COLD dpar_status dpar_halo_draw(dpar_text *text, const dpar_halo_draw_desc *desc,
                                               int32_t format, dpar_why *why)
{
    dpari_hshow s;
    int32_t peer = -1, next;
    dpar_status status;
    if (!text || !desc || !desc->halo) {
        return dpari_wrong(why, "the text, the desc or its halo is NULL");
    }
    if (format != DPAR_HALO_SVG) {
        return dpari_wrong(why, "format is %d: must be DPAR_HALO_SVG", format);
    }
    status = dpari_hshow_begin(&s, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (s.peers = 0; s.peers <= DPARI_HSHOW_ROWS; s.peers++, peer = next) {
        next = -1;
        dpari_hshow_count(&s, DPAR_TRANSFER_RECV, -1, peer, &next);
        dpari_hshow_count(&s, DPAR_TRANSFER_SEND, -1, peer, &next);
        if (next < 0) {
            break;
        }
    }
    dpari_hshow_head(text, &s);
    dpari_hshow_blocks(text, &s);
    dpari_hshow_pieces(text, &s);
    dpari_hshow_table(text, &s);
    dpar_text_put(text, "</svg>\n");
    return DPAR_OK;
}

/* ==== debug/grid_draw.c ==== */

/* Draws the owners of a grid's cells as tables. Reads the grid by its public functions. */

/* Writes n numbers with a separator between them. */
static void dpari_gx_put_list(dpar_text *text, const int64_t *v, int32_t n, const char *separator)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_text_print(text, "%s%ld", i > 0 ? separator : "", v[i]);
    }
}

/* Writes the cells of part p of a dim, such as "40..79" or "none". */
static void dpari_gx_put_cells(dpar_text *text, const dpar_layout *cells, int32_t d, int32_t p)
{
    int64_t count[DPAR_MAX_DIMS], first[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES] = {0};
    coord[d] = p;
    dpar_layout_local(cells, dpar_mesh_rank(&cells->mesh, coord), count, first);
    if (count[d] == 0) {
        dpar_text_put(text, "none");
        return;
    }
    dpari_text_print(text, "%ld..%ld", first[d], first[d] + count[d] - 1);
}

/* Writes a table of the ranks along the last two dims, of which the last one runs to the right.
 * coord: the part in each of the other dims. */
static void dpari_gx_put_table(dpar_text *text, const dpar_grid *grid, const dpar_layout *cells,
                               int32_t *coord)
{
    const int32_t x = grid->dims - 1, y = x - 1;
    int32_t i, j;
    for (i = -1; i < (y < 0 ? 1 : grid->parts[y]); i++) {
        for (j = 0; j < grid->parts[x]; j++) {
            dpari_text_column(text, (size_t)(14 + 14 * j));
            if (i < 0) {
                dpari_gx_put_cells(text, cells, x, j);
                continue;
            }
            coord[x] = j;
            if (y >= 0) {
                coord[y] = i;
            }
            dpari_text_print(text, "rank %d", dpar_mesh_rank(&cells->mesh, coord));
        }
        dpar_text_put(text, "\n");
        if (y >= 0 && i + 1 < grid->parts[y]) {
            dpar_text_put(text, "  ");
            dpari_gx_put_cells(text, cells, y, i + 1);
        }
    }
}

DPAR_API DPARI_COLD void dpar_grid_draw(const dpar_grid *grid, dpar_text *out)
{
    const dpar_halo *halo = dpar_grid_halo(grid);
    int32_t coord[DPAR_MAX_AXES] = {0};
    int64_t parts[DPAR_MAX_DIMS];
    int32_t d, k;
    if (!halo || !out) {
        return;
    }
    for (d = 0; d < grid->dims; d++) {
        parts[d] = grid->parts[d];
    }
    dpari_gx_put_list(out, grid->cells, grid->dims, " x ");
    dpar_text_put(out, " cells on ");
    dpari_gx_put_list(out, parts, grid->dims, " x ");
    dpar_text_put(out, " ranks, halo ");
    dpari_gx_put_list(out, halo->low, grid->dims, " ");
    for (d = 0; d < grid->dims; d++) {
        if (halo->low[d] != halo->high[d]) {
            dpar_text_put(out, " below, ");
            dpari_gx_put_list(out, halo->high, grid->dims, " ");
            dpar_text_put(out, " above");
            break;
        }
    }
    dpar_text_put(out, "\n");
    do { /* for each combination of parts of the dims before the last two */
        for (d = 0; d < grid->dims - 2; d++) {
            dpari_text_print(out, "%s%d: ", d > 0 ? ", dim " : "dim ", d);
            dpari_gx_put_cells(out, &halo->grid, d, coord[d]);
        }
        dpar_text_put(out, grid->dims > 2 ? "\n" : "");
        dpari_gx_put_table(out, grid, &halo->grid, coord);
        for (k = grid->dims - 3; k >= 0; k--) { /* next one; the last of these dims is fastest */
            coord[k]++;
            if (coord[k] < grid->parts[k]) {
                break;
            }
            coord[k] = 0;
        }
    } while (k >= 0);
}

/* ==== debug/grid_check.c ==== */

/* Finds stencils that read stale cells of a deep halo.
 *
 * A cell that is not valid is set to a quiet NaN whose payload is a mark: the number of its array,
 * the sub-step after which it became stale, and its number in the array. Processors pass the
 * payload of an operand on to the result. So if a cell holds the mark of another cell, its stencil
 * has read that cell. This is how a box that is too large is found, whose cells are not valid
 * anyway: cells outside of the box of the sub-step may hold their own mark or a value, but no
 * foreign mark. */

enum {
    DPARI_STEP_NEVER = 63, /* the sub-step of a mark from dpar_grid_poison */
    DPARI_STEP_ARRAYS = 127
};

/* An array, and the ranges of its points in each dim, in loop indices: 0 is the first own point. */
typedef struct dpari_marked {
    dpari_gx_access to;
    const dpar_grid *grid;
    dpar_box all;    /* all points of the memory */
    dpar_box inside; /* without those beyond an end of the grid that is not periodic */
    dpar_box open;   /* without those beyond a wall */
    dpar_box valid;  /* those that the sub-step computes */
    int32_t number;  /* of the array in the list */
} dpari_marked;

/* A point: its indices, its number in the array, and its address. */
typedef struct dpari_marked_point {
    int64_t at[DPAR_MAX_DIMS], number;
    unsigned char *memory; /* of its first component */
} dpari_marked_point;

static DPARI_COLD int dpari_marked_in(const dpar_box *box, const int64_t *at)
{
    int32_t d;
    for (d = 0; d < box->dims; d++) {
        if (at[d] < box->lo[d] || at[d] >= box->hi[d]) {
            return 0;
        }
    }
    return 1;
}

/* Describes array i of the list. j: the sub-step, or -1 if no point is valid. */
static DPARI_COLD dpar_status dpari_marked_init(dpari_marked *marked, dpar_grid *grid,
                                                void *const *arrays, int32_t i, int32_t j,
                                                dpar_why *why)
{
    int32_t d;
    dpari_zero(marked, sizeof *marked);
    if (!dpari_gx_access_to(grid, arrays[i], &marked->to) || marked->to.device ||
        (marked->to.type != DPAR_F64 && marked->to.type != DPAR_F32)) {
        return dpari_wrong(why,
                           "dpar_grid_check_step: array %d is not an array of the grid of DPAR_F64 "
                           "or DPAR_F32 in memory of the CPU",
                           i);
    }
    marked->grid = grid;
    marked->number = i;
    marked->all.dims = marked->valid.dims = grid->dims;
    (void)dpar_grid_valid(grid, j, &marked->valid);
    for (d = 0; d < grid->dims; d++) {
        const int64_t faces = marked->to.field->location[d] != DPAR_HALO_AT_CELLS;
        marked->all.lo[d] = -marked->to.low[d];
        marked->all.hi[d] = grid->count[d] + faces + marked->to.high[d];
        marked->valid.hi[d] += j < 0 ? 0 : faces;
    }
    marked->inside = marked->all;
    for (d = 0; d < grid->dims; d++) {
        const int64_t faces = marked->to.field->location[d] != DPAR_HALO_AT_CELLS;
        if (!marked->to.desc->periodic[d]) {
            marked->inside.lo[d] = dpari_most(marked->all.lo[d], -grid->first[d]);
            marked->inside.hi[d] =
                dpari_least(marked->all.hi[d], grid->cells[d] - grid->first[d] + faces);
        }
    }
    marked->open = marked->inside;
    for (d = 0; d < grid->dims; d++) {
        if (marked->to.field->mirror_low[d] != 0) {
            marked->open.lo[d] = marked->all.lo[d];
        }
        if (marked->to.field->mirror_high[d] != 0) {
            marked->open.hi[d] = marked->all.hi[d];
        }
    }
    return DPAR_OK;
}

/* Sets the address of a point. */
static DPARI_COLD void dpari_marked_place(const dpari_marked *marked, dpari_marked_point *point)
{
    int64_t element = 0;
    int32_t d;
    for (d = 0; d < marked->grid->dims; d++) {
        element += point->at[d] * marked->to.field->stride[d];
    }
    point->memory = marked->to.first + element * dpar_type_bytes(marked->to.type);
}

/* Advances to the next point in C order, and before the first one if number is -1. Returns 1, or 0
 * after the last. Blocks without cells have no points. */
static DPARI_COLD int dpari_marked_next(const dpari_marked *marked, dpari_marked_point *point)
{
    int32_t d = marked->grid->dims - 1;
    if (point->number++ < 0) {
        for (d = 0; d < marked->grid->dims; d++) {
            if (marked->grid->count[d] == 0) {
                return 0;
            }
            point->at[d] = marked->all.lo[d];
        }
    } else {
        while (++point->at[d] == marked->all.hi[d]) {
            point->at[d] = marked->all.lo[d];
            if (--d < 0) {
                return 0;
            }
        }
    }
    dpari_marked_place(marked, point);
    return 1;
}

/* Returns the mark of a point. A float has room for few bits of the point's number, so it gets a
 * hash of it. */
static DPARI_COLD uint64_t dpari_mark_of(const dpari_marked *marked, int64_t point, int32_t step)
{
    const uint64_t number = (uint64_t)dpari_least(marked->number, DPARI_STEP_ARRAYS);
    const uint32_t low = (uint32_t)point;
    if (marked->to.type == DPAR_F64) {
        return (UINT64_C(0x7ff8) << 48) | (UINT64_C(0x2a) << 45) | (number << 38) |
               ((uint64_t)step << 32) | low;
    }
    return UINT64_C(0x7fe00000) | (number << 14) | ((uint64_t)step << 8) |
           (low * UINT32_C(2654435761) >> 24);
}

/* Reads an element without its sign, because the sign of a NaN may change. */
static DPARI_COLD uint64_t dpari_marked_read(const dpari_marked *marked,
                                             const unsigned char *element)
{
    uint32_t single;
    uint64_t bits;
    if (marked->to.type == DPAR_F64) {
        memcpy(&bits, element, 8);
        return bits & ~(UINT64_C(1) << 63);
    }
    memcpy(&single, element, 4);
    return single & UINT32_C(0x7fffffff);
}

static DPARI_COLD int dpari_marked_nan(const dpari_marked *marked, uint64_t bits)
{
    return bits > (marked->to.type == DPAR_F64 ? UINT64_C(0x7ff) << 52 : UINT64_C(0x7f800000));
}

/* True if a NaN has a mark. */
static DPARI_COLD int dpari_marked_is_mark(const dpari_marked *marked, uint64_t bits)
{
    return marked->to.type == DPAR_F64 ? bits >> 45 == 0x3ffea : bits >> 21 == 0x3ff;
}

/* Sets the points that are open and not valid to their marks. */
static DPARI_COLD void dpari_marked_poison(const dpari_marked *marked, int32_t step)
{
    const int64_t bytes = dpar_type_bytes(marked->to.type);
    dpari_marked_point point;
    point.number = -1;
    while (dpari_marked_next(marked, &point)) {
        const uint64_t mark = dpari_mark_of(marked, point.number, step);
        const uint32_t single = (uint32_t)mark;
        int32_t c;
        if (!dpari_marked_in(&marked->open, point.at) ||
            dpari_marked_in(&marked->valid, point.at)) {
            continue;
        }
        for (c = 0; c < marked->to.field->components; c++) {
            unsigned char *element = point.memory + c * marked->to.field->component_stride * bytes;
            memcpy(element, bytes == 8 ? (const void *)&mark : (const void *)&single,
                   (size_t)bytes);
        }
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Writes the index of a point in the whole grid, such as "12, 7". */
static DPARI_COLD const char *dpari_marked_put(const dpari_marked *marked, const int64_t *at,
                                               char *buffer, size_t bytes)
{
    const dpar_grid *grid = marked->grid;
    dpar_text text;
    int32_t d;
    dpar_text_init(&text, buffer, bytes);
    for (d = 0; d < grid->dims; d++) {
        int64_t i = grid->first[d] + at[d];
        if (marked->to.desc->periodic[d]) {
            i = (i % grid->cells[d] + grid->cells[d]) % grid->cells[d];
        }
        dpari_text_say(&text, d > 0 ? ", %ld" : "%ld", i);
    }
    return buffer;
}

/* Finds the point of a mark, at[], from its number in the array. Returns how many cells it is away
 * from another point, in the dim in which that is most. */
static DPARI_COLD int64_t dpari_marked_source(const dpari_marked *marked, uint32_t number,
                                              const int64_t *from, int64_t *at)
{
    int64_t rest = number, away = 0;
    int32_t d;
    for (d = marked->grid->dims - 1; d >= 0; d--) {
        const int64_t points = marked->all.hi[d] - marked->all.lo[d];
        at[d] = rest % points + marked->all.lo[d];
        rest /= points;
        away = dpari_most(away, dpari_most(at[d] - from[d], from[d] - at[d]));
    }
    return away;
}

/* Reports that a point holds the mark of another one, or of itself where it should have been
 * computed. */
static DPARI_COLD dpar_status dpari_marked_stale(const dpari_marked *marked,
                                                 const dpari_marked_point *point, int32_t j,
                                                 uint64_t bits, dpar_why *why)
{
    const int exact = marked->to.type == DPAR_F64;
    const int32_t source = (int32_t)(bits >> (exact ? 38 : 14) & DPARI_STEP_ARRAYS);
    const int32_t since = (int32_t)(bits >> (exact ? 32 : 8) & 63);
    const int64_t radius = marked->to.widest / marked->to.steps;
    int64_t at[DPAR_MAX_DIMS], away = 0;
    char cell[64], read[64] = "unknown", advice[64];
    dpar_text text;
    (void)dpari_marked_put(marked, point->at, cell, sizeof cell);
    if (exact) {
        away = dpari_marked_source(marked, (uint32_t)bits, point->at, at);
        (void)dpari_marked_put(marked, at, read, sizeof read);
    }
    if (since == DPARI_STEP_NEVER) {
        return dpari_wrong(why,
                           "array %d, cell (%s): sub-step %d has not computed it, or has read cell "
                           "(%s) of array %d, which it overwrites",
                           marked->number, cell, j, read, source);
    }
    dpar_text_init(&text, advice, sizeof advice);
    if (!dpari_marked_in(&marked->valid, point->at)) {
        dpar_text_put(&text, "compute only the cells of dpar_grid_valid");
    } else if (away > radius) {
        dpari_text_say(&text, "a radius of %ld needs a halo of %ld", away, away * marked->to.steps);
    } else {
        dpar_text_put(&text, "exchange or reflect that array before");
    }
    return dpari_wrong(why,
                       "array %d, cell (%s): sub-step %d has read cell (%s) of array %d, stale "
                       "since sub-step %d; %s",
                       marked->number, cell, j, read, source, since, advice);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Finds the first element that shows a fault. */
static DPARI_COLD dpar_status dpari_marked_check(const dpari_marked *marked, int32_t j,
                                                 dpar_why *why)
{
    const int64_t bytes = dpar_type_bytes(marked->to.type);
    dpari_marked_point point;
    point.number = -1;
    while (dpari_marked_next(marked, &point)) {
        const int computes = dpari_marked_in(&marked->valid, point.at);
        int32_t c;
        if (!dpari_marked_in(&marked->inside, point.at)) {
            continue;
        }
        for (c = 0; c < marked->to.field->components; c++) {
            const uint64_t bits = dpari_marked_read(
                marked, point.memory + c * marked->to.field->component_stride * bytes);
            const int32_t since = (int32_t)(bits >> (bytes == 8 ? 32 : 8) & 63);
            char cell[64];
            if (!dpari_marked_nan(marked, bits)) {
                continue;
            }
            if (dpari_marked_is_mark(marked, bits)) {
                if (computes || bits != dpari_mark_of(marked, point.number, since)) {
                    return dpari_marked_stale(marked, &point, j, bits, why);
                }
            } else if (computes) {
                return dpari_wrong(
                    why,
                    "array %d, cell (%s): it is NaN after sub-step %d, which has computed it from "
                    "NaN of the code or from stale cells that this processor does not name",
                    marked->number, dpari_marked_put(marked, point.at, cell, sizeof cell), j);
            }
        }
    }
    return DPAR_OK;
}

/* Checks the arrays on this rank unless j is negative, and then marks what is not valid. */
static DPARI_COLD dpar_status dpari_marked_step(dpar_grid *grid, void *const *arrays, int32_t count,
                                                int32_t j, dpar_why *why)
{
    const int32_t step = j < 0 ? DPARI_STEP_NEVER : (int32_t)dpari_least(j, DPARI_STEP_NEVER - 1);
    dpari_marked marked;
    int32_t i;
    for (i = 0; i < 2 * count; i++) { /* first all checks, because arrays may share memory */
        dpar_status status = dpari_marked_init(&marked, grid, arrays, i % count, j, why);
        if (status == DPAR_OK && i < count && j >= 0) {
            status = dpari_marked_check(&marked, j, why);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (i >= count) {
            dpari_marked_poison(&marked, step);
        }
    }
    return DPAR_OK;
}

/* Returns whether the grid is to be checked, 1 or 0, or DPAR_E_ARG. */
static DPARI_COLD dpar_status dpari_marked_asked(dpar_grid *grid, void *const *arrays,
                                                 int32_t count, dpari_gx_access *first,
                                                 dpar_why *why)
{
    if (!grid || !arrays || count < 1 || !dpari_gx_access_to(grid, arrays[0], first)) {
        return dpari_wrong(why, "dpar_grid_check_step: grid or list is NULL, or array 0 is not an "
                                "array of the grid");
    }
    return first->desc->check;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_poison(dpar_grid *grid, void *const *arrays,
                                                 int32_t count, dpar_why *why)
{
    dpari_gx_access first;
    const dpar_status asked = dpari_marked_asked(grid, arrays, count, &first, why);
    return asked > 0 ? dpari_marked_step(grid, arrays, count, -1, why) : asked;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_check_step(dpar_grid *grid, void *const *arrays,
                                                     int32_t count, int32_t j, dpar_why *why)
{
    dpari_gx_access first;
    dpar_box box;
    dpar_status status = dpari_marked_asked(grid, arrays, count, &first, why);
    if (status <= 0) {
        return status;
    }
    why = dpari_why_of(grid->comm, why);
    if (!dpar_grid_valid(grid, j, &box)) {
        status = dpari_wrong(why,
                             "array 0, all cells: sub-step %d is one too many, because desc.steps "
                             "is %d; exchange after sub-step %d, or set desc.steps to %d and the "
                             "halo to %d times the stencil's radius",
                             j, first.steps, first.steps - 1, j + 1, j + 1);
    } else {
        status = dpari_marked_step(grid, arrays, count, j, why);
    }
    return dpari_agree(grid->comm, status, why);
}

#endif /* DPAR_DEBUG_IMPLEMENTATION */
