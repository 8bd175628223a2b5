/* SPDX-License-Identifier: MIT-0 */
/* How ranks find each other, called by dpar_nccl_make.
 *
 * What has to reach all ranks is rank 0's card: NCCL's id, and the addresses and the key of the
 * side channel. It is sent over a host communicator (dpari_nccl_by_host), torchrun's store or the
 * caller's broadcast (dpari_nccl_send_card), and only then do the ranks make NCCL's communicator.
 * With NCCL_COMM_ID the order is the reverse: NCCL makes the same id on all ranks, and the card is
 * sent over the new communicator (dpari_nccl_by_id). In both cases the side channel and the
 * watchdog begin once a rank has the card. */
#include "rendezvous.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/launch.h"
#include "../comm/os.h"
#include "card.h"
#include "communicator.h"
#include "nccl_make.h"
#include "side_channel.h"
#include "state.h"
#include "store.h"
#include "watchdog.h"

/* Returns a number for this machine, computed from the host's name and boot id, as NCCL does, and
 * from the network namespace. */
static uint64_t dpari_nccl_this_node(void)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    char text[512];
    dpari_site here;
    int64_t n;
    text[255] = 0;
    if (gethostname(text, 255) != 0) {
        text[0] = 0;
    }
    n = (int64_t)strlen(text);
    dpari_site_here(&here);
    if (dpari_site_read(&here, "/proc/sys/kernel/random/boot_id", text + n, 256) < 0) {
        text[n] = 0;
    }
    for (n = 0; text[n] != 0; n++) { /* FNV-1a */
        hash = (hash ^ (unsigned char)text[n]) * UINT64_C(1099511628211);
    }
    /* Containers on one host may have separate networks, which a loopback interface does not
     * connect. */
    return hash ^ dpari_os_namespace("net") * UINT64_C(0x9e3779b97f4a7c15);
}

DPARI_INTERNAL dpar_status dpari_nccl_by_host(dpar_comm *host, dpari_nccl_world *world,
                                              dpari_nccl_ctx **out, dpar_why *said)
{
    const uint64_t mine = dpari_nccl_this_node();
    dpar_status status = DPAR_OK;
    int32_t r;
    world->node = (uint64_t *)malloc((size_t)world->size * sizeof *world->node);
    if (world->node == NULL) {
        status = dpari_say(DPAR_E_MEMORY, said,
                           "dpar_nccl_make: no memory for the node numbers of %d ranks (%ld bytes)",
                           world->size, world->size * (int64_t)sizeof *world->node);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    status = dpar_all_gather(host, &mine, world->node, 1, DPAR_U64, NULL);
    if (status < 0) {
        *said = host->why;
        return status;
    }
    if (host->rank == 0) {
        for (r = 0; r < world->size && world->node[r] == mine; r++) {
        }
        world->side.local = r == world->size;
        status = dpari_nccl_own_card(world, 0, said);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    status =
        dpar_broadcast(host, &world->side.card, (int64_t)sizeof world->side.card, DPAR_U8, 0, NULL);
    if (status < 0) {
        *said = host->why;
        return status;
    }
    status = dpari_nccl_card_fits(world, &world->side.card, said);
    if (status >= 0) {
        status = dpari_nccl_side_make(world, said);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    dpari_nccl_watchdog(world);
    status = dpari_nccl_begin_world(world, out, said);
    return dpari_agree(host, status, said);
}

DPARI_INTERNAL dpar_status dpari_nccl_find_way(const dpar_nccl_rendezvous *given,
                                               dpar_nccl_rendezvous *m, dpar_why *why)
{
    const char *port = getenv("DPAR_NCCL_PORT");
    dpar_launcher_info job;
    int64_t number = 0;
    dpar_status status;
    memset(m, 0, sizeof *m);
    memset(&job, 0, sizeof job);
    if (given != NULL) {
        *m = *given;
    }
    if (m->method < 0 || m->method >= DPAR_NCCL_RENDEZVOUS_COUNT || m->rank < 0 ||
        (m->size > 0 && m->rank >= m->size) || m->size < 0) {
        return dpari_wrong(
            why,
            "desc.rendezvous: method is %d, but must be 0 to %d; or rank is %d and size is %d, but "
            "rank must be 0 to size - 1",
            m->method, DPAR_NCCL_RENDEZVOUS_COUNT - 1, m->rank, m->size);
    }
    if (m->port < 0 || m->port > 65535) {
        return dpari_wrong(why, "desc.rendezvous: port is %d, but must be 0 to 65535", m->port);
    }
    if (m->method == DPAR_NCCL_PMI || m->method == DPAR_NCCL_FILE) {
        return dpari_wrong(why, "desc.rendezvous: methods DPAR_NCCL_PMI and DPAR_NCCL_FILE are not "
                                "supported: pass the communicator of dpar_mpi_make as host, or set "
                                "broadcast");
    }
    if (m->size == 0) {
        status = dpar_launcher_detect(&job, why);
        if (status < 0) {
            return status;
        }
        m->rank = job.rank;
        m->size = job.size;
    }
    m->address = m->address != NULL ? m->address : getenv("MASTER_ADDR");
    port = port != NULL ? port : getenv("MASTER_PORT");
    if (m->port == 0 && port != NULL && dpari_job_number(port, 65535, &number)) {
        m->port = (int32_t)number;
    }
    if (m->method == DPAR_NCCL_ANY) {
        if (m->broadcast != NULL || m->size == 1) {
            m->method = DPAR_NCCL_CALLBACK;
        } else if (job.local_size == m->size) {
            m->method = DPAR_NCCL_NODE;
        } else if (getenv("NCCL_COMM_ID") != NULL) {
            m->method = DPAR_NCCL_ID;
        } else {
            m->method = DPAR_NCCL_TCP;
        }
    }
    if ((m->method == DPAR_NCCL_TCP && (m->address == NULL || m->port == 0)) ||
        (m->method == DPAR_NCCL_ID && getenv("NCCL_COMM_ID") == NULL) ||
        (m->method == DPAR_NCCL_CALLBACK && m->broadcast == NULL && m->size > 1)) {
        return dpari_wrong(why,
                           "ranks cannot find each other by method %d (address %s, port %d): set "
                           "MASTER_ADDR and MASTER_PORT, or NCCL_COMM_ID=host:port; or set "
                           "broadcast in desc.rendezvous, or pass a communicator as host "
                           "(dpar_mpi.h)",
                           m->method, m->address, m->port);
    }
    return DPAR_OK;
}

/* True if torchrun says that its store listens at m->port. */
static int dpari_nccl_has_store(const dpar_nccl_rendezvous *m)
{
    const char *serves = getenv("TORCHELASTIC_USE_AGENT_STORE"), *port = getenv("MASTER_PORT");
    int64_t number = 0;
    return serves != NULL && strcmp(serves, "True") == 0 && port != NULL &&
           dpari_job_number(port, 65535, &number) && number == m->port;
}

/* Sends rank 0's card to all ranks, over the store or by the caller's broadcast, checks it, and
 * makes the side channel. A rank 0 that has failed sends its card, too, which then says so. */
static dpar_status dpari_nccl_send_card(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                        dpar_why *why)
{
    dpari_nccl_card *card = &world->side.card;
    const double limit = world->options.timeout_s > 0 ? world->options.timeout_s : 1e9;
    dpar_status status = DPAR_OK, sent = DPAR_OK;
    int code;
    if (world->rank == 0) {
        status = dpari_nccl_own_card(world, m->job, why);
    }
    if (m->method == DPAR_NCCL_TCP) {
        sent = dpari_nccl_by_store(m, card, sizeof *card, dpari_os_now() + limit,
                                   status < 0 ? NULL : why);
    } else if (m->broadcast != NULL) {
        code = m->broadcast(m->user, card, sizeof *card, 0);
        if (code != 0) {
            sent = dpari_say(DPAR_E_SYSTEM, status < 0 ? NULL : why,
                             "dpar_nccl_make: desc.rendezvous->broadcast returned %d", code);
        }
    }
    if (status >= 0) {
        status = sent;
    }
    if (status >= 0) {
        status = dpari_nccl_card_fits(world, card, why);
    }
    if (status >= 0) {
        status = dpari_nccl_side_make(world, why);
    }
    return status;
}

/* Makes the world's first communicator for ranks that exchange nothing before. NCCL makes the same
 * id on all ranks from NCCL_COMM_ID, and the card is then sent over the new communicator. */
static dpar_status dpari_nccl_by_id(dpari_nccl_world *world, uint64_t job, dpari_nccl_ctx **out,
                                    dpar_why *why)
{
    dpari_nccl_card *card = &world->side.card;
    dpar_status status = dpari_nccl_card_id(world, why), sent;
    if (status >= 0) {
        status = dpari_nccl_begin_world(world, out, why);
    }
    if (status < 0) {
        return status;
    }
    if (world->rank == 0) {
        status = dpari_nccl_card_begin(world, job, why);
        card->ending = status < 0;
    }
    sent = dpar_broadcast(&(*out)->comm, card, (int64_t)sizeof *card, DPAR_U8, 0, NULL);
    if (sent < 0) { /* comm.status may still be DPAR_OK: not every failure breaks it */
        return dpari_repeat(sent, why, (*out)->comm.why.text);
    }
    (*out)->sequence = (*out)->records = 0; /* the user's first operation has number 0 */
    if (status >= 0) {
        status = dpari_nccl_card_fits(world, card, why);
    }
    if (status >= 0) {
        status = dpari_nccl_side_make(world, why);
    }
    if (status >= 0) {
        dpari_nccl_watchdog(world);
    }
    return status;
}

/* Makes NCCL listen at m->address and m->port on rank 0, by NCCL_COMM_ID. That variable gets back
 * the value that the user may have set. */
static dpar_status dpari_nccl_by_port(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                      dpari_nccl_ctx **out, dpar_why *why)
{
    const int six = strchr(m->address, ':') != NULL; /* NCCL expects [address]:port */
    const char *set = getenv("NCCL_COMM_ID");
    char name[300], *before = set != NULL ? strdup(set) : NULL;
    dpar_text t;
    dpar_status status;
    dpar_text_init(&t, name, sizeof name);
    dpari_text_say(&t, "%s%s%s%d", six ? "[" : "", m->address, six ? "]:" : ":", m->port);
    (void)setenv("NCCL_COMM_ID", name, 1);
    status = dpari_nccl_by_id(world, m->job, out, why);
    if (before != NULL) {
        (void)setenv("NCCL_COMM_ID", before, 1);
    } else {
        (void)unsetenv("NCCL_COMM_ID");
    }
    free(before);
    return status;
}

DPARI_INTERNAL void dpari_nccl_meet_failed(dpari_nccl_world *world, const dpar_nccl_rendezvous *m)
{
    dpari_nccl_card *card = &world->side.card;
    if (m->method != DPAR_NCCL_CALLBACK || m->broadcast == NULL) {
        return;
    }
    if (world->rank == 0) {
        card->magic = DPARI_NCCL_MAGIC;
        card->size = world->size;
        card->ending = 1;
    }
    (void)m->broadcast(m->user, card, sizeof *card, 0);
}

DPARI_INTERNAL dpar_status dpari_nccl_meet(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                           dpari_nccl_ctx **out, dpar_why *why)
{
    dpar_status status;
    if (m->method == DPAR_NCCL_ID) {
        return dpari_nccl_by_id(world, m->job, out, why);
    }
    if (m->method == DPAR_NCCL_TCP && !dpari_nccl_has_store(m)) {
        return dpari_nccl_by_port(world, m, out, why);
    }
    status = dpari_nccl_send_card(world, m, why);
    if (status < 0) {
        return status;
    }
    dpari_nccl_watchdog(world);
    return dpari_nccl_begin_world(world, out, why);
}
