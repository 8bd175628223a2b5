/* SPDX-License-Identifier: MIT-0 */
/* doctor - what dpar sees on this machine, what it will use, and what is wrong. */
#ifndef DPARI_DEBUG_DOCTOR_H
#define DPARI_DEBUG_DOCTOR_H

#include "../base/text.h"
#include "../comm/comm.h"

/* Writes what dpar sees here, what it will use and, a line "WRONG: ... -> what to do" each, what is
 * wrong: launcher and its numbers, cores, memory, limits, how ranks would share memory, network
 * interfaces, GPUs. world may be NULL; given one it also compares the ranks of a node (COLLECTIVE
 * then). Returns how many things are wrong. Some 10 KB of text are the most; forks a child to try
 * what the kernel allows. */
DPAR_API int32_t dpar_doctor(dpar_comm *world, dpar_text *out);

#endif
