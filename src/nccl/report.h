/* SPDX-License-Identifier: MIT-0 */
/* report - private: what a communicator reports about itself. */
#ifndef DPARI_NCCL_REPORT_H
#define DPARI_NCCL_REPORT_H

#include "../base/arith.h"
#include "../base/text.h"
#include "../comm/comm.h"

/* Writes a report: this rank's last operations, and those that other ranks have reported. */
DPARI_INTERNAL void dpari_nccl_report(dpar_comm *comm, dpar_text *out);
/* Appends ", a GPU each on 2 nodes" and which paths NCCL uses. */
DPARI_INTERNAL void dpari_nccl_describe(dpar_comm *comm, dpar_text *out);

#endif
