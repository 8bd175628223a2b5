/* SPDX-License-Identifier: MIT-0 */
/* nccl_doctor - reports which choices NCCL made, and what is wrong. */
#ifndef DPARI_NCCL_NCCL_DOCTOR_H
#define DPARI_NCCL_NCCL_DOCTOR_H

#include "../base/text.h"
#include "../comm/comm.h"

/* Writes a report about NCCL, to follow the report of dpar_doctor. Each problem, for example that
 * NCCL uses sockets, is a line "WRONG: ... -> what to do". Returns the number of these lines. The
 * report names the version, features that it lacks, whether ranks share a device for tests, and the
 * transports found in desc.log_file. On rank 0 of comm it also tells where rank 0 listens.
 *
 * comm: may be NULL.
 *
 * Local. */
DPAR_API int32_t dpar_nccl_doctor(dpar_comm *comm, dpar_text *out);

#endif
