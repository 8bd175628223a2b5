/* SPDX-License-Identifier: MIT-0 */
/* doctor - what dpar sees on this machine, how its ranks reach each other, how fast, and what is
 * wrong. commands/doctor.c calls it for any job; a program may do so on a communicator of its own:
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

/* Writes what dpar sees, and a line "WRONG: ... -> what to do" for each thing that is wrong.
 * Returns how many there are.
 *
 * world NULL, or of one rank: of this process. Launcher and its numbers, cores, memory, limits, how
 * ranks would share memory, network interfaces, GPUs. At most some 10 KB of text.
 *
 * Else of all ranks of world, over any engine; COLLECTIVE, with no other work under way on it. Rank
 * 0 gets the text, at most some 20 KB with any number of ranks. The others get none, and the same
 * result.
 *
 *     joined     as dpar_comm_describe says it
 *     n1         ranks 0 to 7 on 64 cores of 2 sockets, each bound to 1 core, memory, /dev/shm,
 *                ports that are up with their speed; above 8 nodes those alike in one line
 *     within     a socket, a node: the time of 8 B and the rate of 1 MiB, one way, halves of the
 *     between    way there and back; medians, and the worst pair. Each rank meets the next one of
 *                its node, the first rank of a node that of the next one, one pair of a node at a
 *                time. Private memory
 *     WRONG:     "rank 5 on n2: /dev/shm holds 64.0 MiB, that of rank 0 on n1 23.5 GiB; ..."
 *
 * These are WRONG:
 *
 *  - what is wrong with any rank by itself;
 *  - ranks of a node that do not share memory;
 *  - more ranks than cores, ranks bound to the same cores, or to none on a machine of several
 *    sockets;
 *  - another version of dpar, another MPI, another deadline than the other ranks';
 *  - one GPU for two ranks;
 *  - a link with 8 times the latency of the others or a fifth of their rate, nodes at a tenth of
 *    what their ports carry.
 *
 * The communicator's `sent` stays as it was. When ranks lose each other meanwhile, the communicator
 * is broken. Each rank's text then says what is wrong with itself, and why it broke. It forks a
 * child to try what the kernel allows. It takes tenths of a second, and some 5 ms for each rank of
 * the fullest node, 40 where messages are slow. A rank takes 1 MiB, and 150 bytes for each rank;
 * rank 0 a kilobyte for each. */
DPAR_API int32_t dpar_doctor(dpar_comm *world, dpar_text *out);

#endif
