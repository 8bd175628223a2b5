/* SPDX-License-Identifier: MIT-0 */
/* update_private - private: what the steps of ddp, zero1 and fsdp have in common. */
#ifndef DPARI_TRAIN_UPDATE_PRIVATE_H
#define DPARI_TRAIN_UPDATE_PRIVATE_H

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../host/optimizer.h"
#include "update.h"

/* Checks the numbers of a step for the function `name`. */
DPARI_INTERNAL dpar_status dpari_update_check(const dpar_update *update, const char *name,
                                              dpar_why *why);
/* Ends a step that this rank rejects with status st and the message *own. Takes part in
 * collectives of the same communicators as dpari_update_norm, which break if other ranks did not
 * reject the step. If all ranks reject it, nothing else happens. Returns the status, and leaves the
 * message in comm->why.
 *
 * update: NULL if the caller passed NULL. */
DPARI_INTERNAL dpar_status dpari_update_refuse(dpar_comm *comm, dpar_comm *replicas,
                                               const dpar_update *update, dpar_status st,
                                               const dpar_why *own);
/* Sets update->norm and update->scale, from the sums of the squares of each rank's gradients.
 * Returns DPAR_SKIPPED if the norm is not finite. Collective over comm, replicas (unless NULL) and
 * update->model (unless NULL). Fails with DPAR_E_MISMATCH if their ranks pass different numbers, or
 * the ranks of comm different hashes; the message then names `what`. If one communicator fails,
 * breaks the others, where ranks may wait for this one. The message is then in comm->why. */
DPARI_INTERNAL dpar_status dpari_update_norm(dpar_comm *comm, dpar_comm *replicas,
                                             dpar_update *update, double squares, uint64_t hash,
                                             const char *what);
/* Lists an optimizer's numbers, which must be equal on all ranks. moment_type: of its moments. */
DPARI_INTERNAL void dpari_update_facts(dpari_facts *facts, const dpar_optimizer *optimizer,
                                       int32_t moment_type);
/* Lists the numbers of parameter group i. */
DPARI_INTERNAL void dpari_update_facts_group(dpari_facts *facts, int32_t i,
                                             const dpar_optimizer_group *group);

#endif
