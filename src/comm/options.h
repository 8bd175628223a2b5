/* SPDX-License-Identifier: MIT-0 */
/* options - sets deadlines, memory sizes and mechanisms of ranks that share memory.
 *
 *     dpar_world_desc o = {0};
 *     o.timeout_s = 20;
 *     dpar_launch(4, work, NULL, &o, &why);    or dpar_init(&world, &o, &why) */
#ifndef DPARI_COMM_OPTIONS_H
#define DPARI_COMM_OPTIONS_H

#include "../base/base.h"

/* Options of ranks that share memory. Zero selects every default. */
typedef struct dpar_world_desc {
    double timeout_s;   /* deadline of one operation, in seconds. 0 selects 300 s, a negative number
                           no deadline. Time during which the job was suspended does not count */
    double grace_s;     /* how long ranks may go on after another one has failed, in seconds, before
                           dpar_launch kills them. Ranks that have shrunk the failed one away
                           (dpar_comm_shrink) are not killed. 0 selects 10 s */
    int64_t heap_bytes; /* the most registered memory (dpar_comm_alloc) that one rank may have at a
                           time, in whole pages; beyond it dpar_comm_alloc fails with DPAR_E_MEMORY.
                           0 selects the memory of the machine. It reserves neither memory nor
                           addresses, whatever its value: both are taken when they are needed
                           (docs/limits.md). The library's own needs do not count, about 1 MiB for
                           each communicator and 270 KiB for each rank that this one sends messages
                           to. The heap is smaller if the limit on files (ulimit -f) is */
    int64_t slot_bytes; /* staging memory of one rank in one communicator, for data that is not in
                           registered memory: a power of two, 4 KiB .. 16 MiB. 0 selects 256 KiB */
    int32_t threads;    /* dpar_launch only: 1 makes ranks threads of this process */
    int32_t disable;    /* a sum of DPAR_WORLD_NO_x, which disables mechanisms for tests and
                           comparisons */
    int32_t ranks; /* dpar_init_or_launch only: the number of ranks to start if neither --ranks nor
                      DPAR_RANKS nor a launcher sets it. 0 selects 1 */
} dpar_world_desc;

/* Bits of options.disable. */
enum {
    DPAR_WORLD_NO_CMA = 1,   /* does not read the memory of other processes (process_vm_readv) */
    DPAR_WORLD_NO_MEMFD = 2, /* uses a named segment, unlinked at once, instead of a nameless one */
    DPAR_WORLD_NO_DIRECT = 4,            /* treats registered memory as private */
    DPAR_WORLD_NO_FUTEX = 8,             /* waits only by yielding and short sleeps */
    DPAR_WORLD_NO_STREAMING_STORES = 16, /* uses no streaming stores */
    DPAR_WORLD_NO_FLAT = 32, /* runs collectives by levels from 3 ranks on, also where ranks share
                               cores. By default this begins at 17 ranks that have a core each */
    DPAR_WORLD_NO_MIGRATION = 64, /* lets the system choose on which CPU a rank runs. By default a
                                     rank that finds its peer on its own CPU moves to another CPU
                                     that it may use, if there is one for each rank */
    DPAR_WORLD_NO_DONTDUMP = 128 /* puts all shared memory that the rank has mapped into core files,
                                    with the heaps of other ranks. Such files are large, and the
                                    system then allocates memory that nobody has used. By default a
                                    core file has the rank's own first 1024 arrays of
                                    dpar_comm_alloc, as if malloc had made them, and
                                    /proc/self/coredump_filter can leave them out too */
};

#endif
