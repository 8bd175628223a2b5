/* SPDX-License-Identifier: MIT-0 */
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
#ifndef DPARI_DEBUG_DOCTOR_H
#define DPARI_DEBUG_DOCTOR_H

#include "../base/text.h"
#include "../comm/comm.h"

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

#endif
