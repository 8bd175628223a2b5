/* SPDX-License-Identifier: MIT-0 */
/* Writes the report of dpar_doctor about this process, and calls doctor_ranks.c for the report
 * about all ranks. */
#include "doctor.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/os.h"
#include "checkup.h"
#include "doctor_ranks.h"

#include <errno.h>

/* ---- the facts ------------------------------------------------------------------------------- */

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
    if (j->local_rank >= 0) {
        dpari_text_int(out, j->local_rank);
    } else {
        dpar_text_put(out, "unknown");
    }
    dpar_text_put(out, " of ");
    if (j->local_size >= 0) {
        dpari_text_int(out, j->local_size);
    } else {
        dpar_text_put(out, "unknown");
    }
    dpari_text_print(out, ", job %s\n", j->id);
}

static void dpari_doctor_say_memory(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "cores");
    dpari_text_print(out, "%d, this process may use %d", checkup->cores, checkup->allowed);
    if (checkup->quota > 0.0) {
        dpari_text_print(out, ", its cgroup grants %.2f", checkup->quota);
    }
    dpari_text_char(out, '\n');
    if (checkup->runnable >= 0) {
        dpari_doctor_head(out, "load");
        dpari_text_print(out,
                         "%d runnable on %d cores (including this one), %s over the last minute\n",
                         checkup->runnable, checkup->cores, checkup->load);
    }
    dpari_doctor_head(out, "memory");
    dpari_doctor_bytes(out, checkup->memory);
    dpar_text_put(out, ", free ");
    dpari_doctor_bytes(out, checkup->memory_free);
    if (checkup->memory_limit > 0) {
        dpar_text_put(out, ", its cgroup grants ");
        dpari_doctor_bytes(out, checkup->memory_limit);
    }
    dpari_text_print(out, "; pages of %ld B, huge ones for shared memory: %s\n", checkup->page,
                     checkup->huge[0] != 0 ? checkup->huge : "unknown");
}

static void dpari_doctor_say_limits(const dpari_checkup *checkup, dpar_text *out)
{
    dpari_doctor_head(out, "limits");
    dpar_text_put(out, "addresses ");
    dpari_doctor_bytes(out, checkup->addresses);
    dpar_text_put(out, ", locked ");
    dpari_doctor_bytes(out, checkup->locked);
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

static void dpari_doctor_say_network(const dpari_site *site, const dpari_checkup *checkup,
                                     dpar_text *out)
{
    const char *text;
    int32_t i;
    dpari_doctor_head(out, "network");
    for (i = 0; i < checkup->links.count; i++) {
        dpar_text_put(out, i > 0 ? ", " : "");
        dpar_text_put(out, checkup->links.name[i]);
        dpar_text_put(out, (checkup->up >> i & 1) ? "" : " (down)");
    }
    text = dpari_site_env(site, "NCCL_SOCKET_IFNAME");
    if (text != NULL) {
        dpari_text_print(out, "; NCCL_SOCKET_IFNAME=%s", text);
    } else {
        dpar_text_put(out, "; NCCL_SOCKET_IFNAME is not set");
    }
    dpar_text_put(out, checkup->slingshot ? "; Slingshot" : "");
    dpar_text_put(out, checkup->infiniband ? "; InfiniBand\n" : "\n");
    dpari_doctor_head(out, "GPUs");
    dpari_text_int(out, checkup->gpus);
    text = dpari_site_env(site, "CUDA_VISIBLE_DEVICES");
    if (text != NULL) {
        dpari_text_print(out, "; CUDA_VISIBLE_DEVICES=%s", text);
    }
    dpari_text_char(out, '\n');
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

static void dpari_doctor_say_here(const dpari_site *site, const dpari_checkup *checkup,
                                  const dpar_comm *world, dpar_text *out)
{
    char host[256];
    dpari_doctor_host(host);
    dpari_text_print(out, "dpar %d.%d.%d on %s\n", DPAR_VERSION_MAJOR, DPAR_VERSION_MINOR,
                     DPAR_VERSION_PATCH, host);
    dpari_doctor_say_job(checkup, out);
    dpari_doctor_say_memory(checkup, out);
    dpari_doctor_say_limits(checkup, out);
    dpari_doctor_say_network(site, checkup, out);
    dpari_doctor_say_use(checkup, world, out);
    dpari_doctor_note(checkup, out);
}

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
    dpari_checkup *checkup = (dpari_checkup *)dpari_os_pages((int64_t)sizeof *checkup);
    int32_t wrong = -1;
    if (checkup == NULL) {
        if (together) {
            dpar_comm_abort(world, DPAR_E_SYSTEM, "dpar_doctor: a rank has no page of memory left");
        }
        dpar_text_put(out, "WRONG: no page of memory is left -> end other programs\n");
        return 1;
    }
    dpari_site_here(&here);
    dpari_doctor_look(&here, checkup);
    if (world != NULL) {
        dpari_doctor_joined(world, checkup);
    }
    if (together) {
        wrong = dpari_doctor_together(&here, checkup, world, out);
        if (wrong < 0) {
            wrong = dpari_doctor_not_compared(&here, checkup, world, out);
        } else if (world->rank > 0) {
            dpari_os_unmap(checkup, (int64_t)sizeof *checkup);
            return wrong;
        }
    } else {
        dpari_doctor_say_here(&here, checkup, world, out);
        wrong = dpari_doctor_judge(&here, checkup, out);
    }
    if (wrong == 0) {
        dpar_text_put(out, "nothing is wrong\n");
    } else {
        dpari_text_print(out, wrong == 1 ? "%d thing is wrong\n" : "%d things are wrong\n", wrong);
    }
    dpari_os_unmap(checkup, (int64_t)sizeof *checkup);
    return wrong;
}
