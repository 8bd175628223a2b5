/* SPDX-License-Identifier: MIT-0 */
/* options - how ranks that share memory are to run.
 *
 *     dpar_world_desc o = {0};
 *     o.timeout_s = 20;
 *     dpar_launch_with(4, work, NULL, &o, &why);    or dpar_init(&world, &o, &why) */
#ifndef DPARI_COMM_OPTIONS_H
#define DPARI_COMM_OPTIONS_H

#include "../base/base.h"

/* Options of ranks that share memory. All zero means the defaults. */
typedef struct dpar_world_desc {
    double timeout_s;   /* deadline of one operation; 0: 300 s; < 0: none. Time for which the job
                           was suspended does not count */
    double grace_s;     /* dpar_launch kills ranks that go on this long after another failed, unless
                           they have gone on without it (dpar_comm_shrink); 0: 10 s */
    int64_t heap_bytes; /* registered memory (dpar_comm_alloc) that one rank may have at a time, in
                           whole pages; more gives DPAR_E_MEMORY. 0: the machine's memory. Takes
                           neither memory nor addresses until it is used. What the library needs
                           itself does not count: some 1 MiB a communicator and 270 KiB for each
                           rank that this one sends messages to. Smaller where the limit on files
                           (ulimit -f) is smaller */
    int64_t slot_bytes; /* staging memory of one rank in one communicator, for messages from memory
                           that is not registered; 0: 256 KiB; a power of two, 4 KiB .. 16 MiB */
    int32_t threads;    /* dpar_launch: 1: ranks are threads of this process */
    int32_t plain;      /* bits of DPAR_WORLD_NO_x: what not to use, for tests and comparisons */
    int32_t ranks; /* dpar_init_or_launch: how many to start where neither --ranks nor DPAR_RANKS
                      nor a launcher says; 0: 1 */
} dpar_world_desc;

/* For options.plain. */
enum {
    DPAR_WORLD_NO_CMA = 1,   /* do not read other processes' memory (process_vm_readv) */
    DPAR_WORLD_NO_MEMFD = 2, /* use a named segment, unlinked at once, in place of a nameless one */
    DPAR_WORLD_NO_DIRECT = 4,            /* treat registered memory as private */
    DPAR_WORLD_NO_FUTEX = 8,             /* wait only by yielding and short sleeps */
    DPAR_WORLD_NO_STREAMING_STORES = 16, /* use no streaming stores */
    DPAR_WORLD_NO_FLAT = 32, /* collectives by levels from 3 ranks on, and where ranks share cores.
                               Otherwise they are from 17 ranks on that have a core each */
    DPAR_WORLD_NO_MIGRATION = 64, /* leave it to the system on which of its CPUs a rank runs.
                                Otherwise a rank that finds its peer on its own CPU, while there is
                                one for each rank, moves to another CPU that it may use. */
    DPAR_WORLD_NO_DONTDUMP = 128 /* core files hold all shared memory that the rank has mapped, with
                                  the heaps of other ranks: large, and the system takes memory for
                                  what nobody has used. Otherwise they hold what this rank got from
                                  dpar_comm_alloc (its first 1024 arrays), as if malloc had given
                                  it; /proc/self/coredump_filter leaves that out, too */
};

#endif
