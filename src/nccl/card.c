/* SPDX-License-Identifier: MIT-0 */
/* Makes and checks rank 0's card. It contains what ranks have to agree on, so that each rank can
 * check it when it gets it, without further messages. A rank 0 that cannot begin sends its card all
 * the same, with `ending` set, so that the others fail at once and do not wait for it. */
#include "card.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../comm/os.h"
#include "failure.h"
#include "library.h"
#include "nccl_make.h"
#include "proof.h"
#include "socket.h"
#include "state.h"

/* Turns a job's number into a number that no other run of the job has. */
static uint64_t dpari_nccl_nonce(uint64_t job)
{
    return job ^ (uint64_t)getpid() << 32 ^ (uint64_t)(int64_t)(dpari_os_now() * 1e9);
}

static int32_t dpari_nccl_bits_of(const dpar_nccl_desc *o)
{
    return (o->rank_order != 0) | (o->elastic != 0) << 1 | (o->timeout_s < 0) << 2 |
           (o->no_watchdog != 0) << 3;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_begin(dpari_nccl_world *world, uint64_t job,
                                                 dpar_why *why)
{
    dpari_nccl_side *s = &world->side;
    dpari_nccl_card *card = &s->card;
    memset(card, 0, sizeof *card);
    card->magic = DPARI_NCCL_MAGIC;
    card->job = dpari_nccl_nonce(job);
    card->size = world->size;
    card->version = world->api.version;
    card->options = dpari_nccl_bits_of(&world->options);
    if (world->options.no_watchdog || world->size == 1) {
        return DPAR_OK;
    }
    if (dpari_nccl_draw(&card->key) != 0) {
        return dpari_say(DPAR_E_SYSTEM, why, "cannot read random numbers from /dev/urandom");
    }
    s->listener = dpari_nccl_listen(s->local, &card->port);
    if (s->local) {
        dpari_nccl_loopback(&card->address[0]);
        card->addresses = 1;
    } else {
        card->addresses = dpari_nccl_addresses(card->address, DPARI_NCCL_ADDRESSES);
    }
    if (s->listener < 0) {
        card->addresses = 0;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_id(dpari_nccl_world *world, dpar_why *why)
{
    ncclResult_t code = world->api.GetUniqueId(&world->side.card.id);
    if (code != ncclSuccess) {
        dpari_nccl_say(&world->api, why, "ncclGetUniqueId", code);
        return DPAR_E_SYSTEM;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_own_card(dpari_nccl_world *world, uint64_t job, dpar_why *why)
{
    dpar_status status = dpari_nccl_card_begin(world, job, why);
    if (status >= 0) {
        status = dpari_nccl_card_id(world, why);
    }
    world->side.card.ending = status < 0;
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_fits(const dpari_nccl_world *world,
                                                const dpari_nccl_card *card, dpar_why *why)
{
    char mine[24], theirs[24];
    dpar_text t;
    if (card->magic != DPARI_NCCL_MAGIC) {
        return dpari_say(DPAR_E_MISMATCH, why, "rank 0 uses another version of dpar");
    }
    if (card->size != world->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank 0 was started with %d ranks, but this rank with %d", card->size,
                         world->size);
    }
    if (card->ending != 0) {
        return dpari_say(DPAR_E_PEER, why, "rank 0 could not begin: see its own message");
    }
    if (card->version != world->api.version) {
        dpar_text_init(&t, mine, sizeof mine);
        dpari_nccl_put_version(&t, world->api.version);
        dpar_text_init(&t, theirs, sizeof theirs);
        dpari_nccl_put_version(&t, card->version);
        return dpari_say(DPAR_E_MISMATCH, why, "this rank has NCCL %s, rank 0 has %s", mine,
                         theirs);
    }
    if (card->options != dpari_nccl_bits_of(&world->options)) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "this rank and rank 0 pass different values of rank_order, elastic or "
                         "no_watchdog, or only one of them a timeout_s below 0");
    }
    return DPAR_OK;
}
