/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_DEBUG_DOCTOR_H
#define DPARI_DEBUG_DOCTOR_H

#include "../base/text.h"
#include "../comm/comm.h"

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

#endif
