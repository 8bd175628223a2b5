/* SPDX-License-Identifier: MIT-0 */
/* Waits for a peer of an exchange. The waits of wait.h do the spinning and sleeping; this file
 * decides when a wait has failed, and whose fault it is. */
#include "peer_wait.h"

#include "../base/arith.h"
#include "../comm/os.h"
#include "../comm/wait.h"

DPARI_INTERNAL DPARI_COLD dpar_status dpari_peer_look(const dpar_comm *comm, dpari_group *group,
                                                      int32_t peer)
{
    const uint32_t state = dpari_rank_state(group->world, peer);
    const dpar_status broken = dpari_group_broken(group);
    if (broken != DPAR_OK) {
        return broken;
    }
    if (comm->status != DPAR_OK) {
        return comm->status;
    }
    if (state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT || dpari_group_closes(group, peer)) {
        return DPAR_E_PEER;
    }
    return DPAR_OK;
}

/* True if the peer has not begun this exchange and waits in a collective that this rank has not
 * called. This counts only after `quiet` seconds, because a wait that the progress of this rank can
 * end is shorter. */
static DPARI_COLD int dpari_peer_crossed(dpari_peer_wait *p)
{
    const double now = dpari_os_now(), timeout = p->comm->timeout_s;
    const double quiet = dpari_quiet(timeout > 0.0 ? timeout : 4.0);
    int64_t in = 0;
    if ((int64_t)(DPARI_LOAD(p->ready) >> p->shift) >= p->count ||
        !dpari_group_crossed(p->group, p->peer, quiet, &in)) {
        p->crossed = 0.0;
    } else if (!(p->crossed > 0.0) || p->in != in) {
        p->crossed = now;
        p->in = in;
    }
    return p->crossed > 0.0 && now - p->crossed > quiet;
}

/* True if the deadline has passed and the late rank is known: the suspect has been the same for
 * `quiet` seconds (a quarter of the deadline, at most a second). If the suspect keeps changing, the
 * last one counts after four times that. */
static DPARI_COLD int dpari_peer_late(dpari_peer_wait *p, double began)
{
    const double timeout = p->comm->timeout_s, quiet = dpari_quiet(timeout);
    const double now = dpari_os_now();
    int32_t who;
    if (!(timeout > 0.0) || now - began < timeout - quiet) {
        return 0;
    }
    who = dpari_group_culprit(p->group, p->peer, quiet, &p->links);
    if (who != p->who || p->since <= 0.0) {
        p->who = who;
        p->since = now;
    }
    return now - began > timeout && (now - p->since > quiet || now - began > timeout + 4.0 * quiet);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_peer_await(dpari_peer_wait *p, const uint64_t *word,
                                                       uint64_t value)
{
    enum { PROGRESS = 64 }; /* turns of the wait between two steps of other work */
    dpari_world *world = p->group->world;
    dpar_status status = DPAR_OK;
    int32_t turn = 0, resumed = 0;
    dpari_wait t;
    dpari_zero(&t, sizeof t);
    while (DPARI_LOAD(word) < value && status == DPAR_OK) {
        const dpar_status passed = dpari_wait_turn(world, &t, p->peer);
        if (passed == DPAR_MORE || ++turn % PROGRESS == 0) {
            p->progress(p->exchange);
        }
        if (t.resumed != resumed) { /* this process was suspended: earlier suspicions are void */
            resumed = t.resumed;
            p->since = p->crossed = 0.0;
        }
        if (passed != DPAR_MORE || DPARI_LOAD(word) >= value) {
            continue;
        }
        dpari_wait_says(world, p->peer);
        status = dpari_peer_look(p->comm, p->group, p->peer);
        if (status == DPAR_OK && dpari_peer_crossed(p)) {
            status = DPAR_E_MISMATCH;
        }
        if (status == DPAR_OK && dpari_peer_late(p, t.began)) {
            status = DPAR_E_TIMEOUT;
        }
        if (status != DPAR_OK && DPARI_LOAD(word) >= value) {
            status = DPAR_OK; /* the peer published the word before it ended */
        }
    }
    dpari_wait_end(world, &t);
    if (status != DPAR_OK) {
        p->waited = dpari_os_now() - t.began;
    }
    return status;
}
