/* SPDX-License-Identifier: MIT-0 */
/* The connections of the side channel.
 *
 * A rank connects to rank 0 and sends HELLO with a random number. Rank 0 answers with CHALLENGE:
 * its own random number, and the proof that it knows the key. The rank checks the proof and sends
 * its own, PROOF, after which the connection becomes a link, in state HERE. Until then it is a
 * "knock" on rank 0: it may be from anybody, so rank 0 reads it without waiting, limits the number
 * and the age of knocks, and answers nothing that is not a HELLO of this job.
 *
 * A link that is lost may be made again within DPARI_NCCL_GRACE, after which the rank at its other
 * end counts as gone. The watchdog calls these functions with the world's lock; before it begins
 * and after it has ended, no lock is needed. */
#include "side_connections.h"

#include "../base/arith.h"
#include "../comm/os.h"
#include "proof.h"
#include "side_messages.h"
#include "socket.h"
#include "state.h"

/* Seconds that a new connection may take to prove that it belongs to the job. */
enum { DPARI_NCCL_PATIENCE = 2 };

/* Seconds between attempts to reach a rank 0 that was never reached. */
enum { DPARI_NCCL_AGAIN = 5 };

static int dpari_nccl_fits(const dpari_nccl_world *world, const dpari_nccl_message *message)
{
    return message->magic == DPARI_NCCL_MAGIC && message->job == world->side.card.job;
}

static void dpari_nccl_knock_ends(dpari_nccl_side *s, int32_t k, int close_it)
{
    if (close_it) {
        (void)close(s->knock[k].fd);
    }
    s->knocks--;
    memmove(&s->knock[k], &s->knock[k + 1], (size_t)(s->knocks - k) * sizeof *s->knock);
}

/* Answers a HELLO with a CHALLENGE. Returns 1 if the connection may continue. */
static int dpari_nccl_hello(dpari_nccl_world *world, dpari_nccl_knock *k)
{
    const dpari_nccl_message *hello = &k->in;
    dpari_nccl_message m;
    dpari_nccl_bits proof;
    if (hello->kind != DPARI_NCCL_HELLO || hello->job != world->side.card.job ||
        hello->size != world->size || hello->rank <= 0 || hello->rank >= world->size ||
        dpari_nccl_draw(&k->ours) != 0) {
        return 0;
    }
    k->rank = hello->rank;
    memcpy(&k->theirs, hello->text, sizeof k->theirs);
    dpari_nccl_message_init(world, &m, DPARI_NCCL_CHALLENGE);
    proof = dpari_nccl_prove(world, 1, k->rank, &k->theirs, &k->ours);
    memcpy(m.text, &k->ours, sizeof k->ours);
    memcpy(m.text + sizeof k->ours, &proof, sizeof proof);
    /* does not wait, because a new socket always has space for one message */
    return send(k->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof m;
}

/* Checks a PROOF. If it is right, the connection becomes the link of its rank, and 1 is returned,
 * otherwise 0. */
static int dpari_nccl_proved(dpari_nccl_world *world, const dpari_nccl_knock *k)
{
    const dpari_nccl_bits proof = dpari_nccl_prove(world, 0, k->rank, &k->theirs, &k->ours);
    dpari_nccl_link *l = &world->side.link[k->rank];
    dpari_nccl_bits said;
    memcpy(&said, k->in.text, sizeof said);
    if (k->in.kind != DPARI_NCCL_PROOF || k->in.job != world->side.card.job ||
        !dpari_nccl_alike(&proof, &said)) {
        return 0;
    }
    if (l->fd >= 0) {
        (void)close(l->fd);
    }
    l->fd = k->fd;
    l->got = 0;
    l->state = DPARI_NCCL_HERE;
    return 1;
}

/* Reads what a new connection has sent so far. Returns 0 if it is not complete, 1 if it was
 * accepted, and -1 if it is to be closed. */
static int dpari_nccl_hear_knock(dpari_nccl_world *world, dpari_nccl_knock *k, double now)
{
    for (;;) {
        const ssize_t n =
            recv(k->fd, (char *)&k->in + k->got, sizeof k->in - (size_t)k->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return now - k->since > (double)(int)DPARI_NCCL_PATIENCE ? -1 : 0;
        }
        k->got += n > 0 ? (int32_t)n : 0;
        if (n <= 0 || (k->got >= 8 && k->in.magic != DPARI_NCCL_MAGIC)) {
            return -1;
        }
        if (k->got < (int32_t)sizeof k->in) {
            continue;
        }
        k->got = 0;
        if (k->rank != 0) {
            return dpari_nccl_proved(world, k) ? 1 : -1;
        }
        if (!dpari_nccl_hello(world, k)) {
            return -1;
        }
    }
}

/* Accepts a new connection. Returns 0 if there is none. If too many have not proved yet, the oldest
 * of them is closed: a rank of the job needs only one round trip, and tries again. */
static int dpari_nccl_open_door(dpari_nccl_world *world, double now)
{
    dpari_nccl_side *s = &world->side;
    const int on = 1;
    dpari_nccl_knock *k;
    const int fd = dpari_os_accept(s->listener);
    if (fd < 0) {
        if ((errno != EMFILE && errno != ENFILE) || s->knocks == 0) {
            return 0;
        }
        dpari_nccl_knock_ends(s, 0, 1);
        return 1;
    }
    if (s->knocks == s->knocks_room) {
        dpari_nccl_knock_ends(s, 0, 1);
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    k = &s->knock[s->knocks++];
    memset(k, 0, sizeof *k);
    k->fd = fd;
    k->since = now;
    return 1;
}

DPARI_INTERNAL void dpari_nccl_accept(dpari_nccl_world *world)
{
    dpari_nccl_side *s = &world->side;
    const double now = dpari_os_now();
    int32_t k, turns = 256; /* a limit, so that a flood of connections cannot keep it here */
    while (turns > 0 && dpari_nccl_open_door(world, now)) {
        turns--;
    }
    for (k = s->knocks - 1; k >= 0; k--) {
        const int how = dpari_nccl_hear_knock(world, &s->knock[k], now);
        if (how != 0) {
            dpari_nccl_knock_ends(s, k, how < 0);
        }
    }
}

DPARI_INTERNAL int dpari_nccl_reach(dpari_nccl_world *world, dpari_nccl_link *l, double until)
{
    const dpari_nccl_card *card = &world->side.card;
    dpari_nccl_message m;
    dpari_nccl_sockaddr name;
    int32_t i;
    l->got = 0;
    for (i = 0; i < card->addresses; i++) {
        const double now = dpari_os_now(), part = (until - now) / (card->addresses - i);
        const socklen_t bytes = dpari_nccl_socket_name(&card->address[i], card->port, &name);
        l->fd = dpari_nccl_connect(&name.any, bytes, now + (part < 1 ? part : 1));
        if (l->fd < 0) {
            continue;
        }
        dpari_nccl_message_init(world, &m, DPARI_NCCL_HELLO);
        if (dpari_nccl_draw(&l->drawn) == 0) {
            memcpy(m.text, &l->drawn, sizeof l->drawn);
            if (dpari_nccl_write(l->fd, &m, sizeof m, dpari_os_now() + 1) == 0) {
                return 0;
            }
        }
        (void)close(l->fd);
        l->fd = -1;
    }
    return -1;
}

/* True if the proof in a CHALLENGE is right, so that its sender knows the job's key. */
static int dpari_nccl_genuine(const dpari_nccl_world *world, const dpari_nccl_link *l,
                              const dpari_nccl_message *message)
{
    dpari_nccl_bits said[2], proof; /* the random number and the proof of rank 0 */
    memcpy(said, message->text, sizeof said);
    proof = dpari_nccl_prove(world, 1, world->rank, &l->drawn, &said[0]);
    return dpari_nccl_alike(&proof, &said[1]);
}

/* Answers a CHALLENGE with a PROOF. Returns 0 if it was sent. */
static int dpari_nccl_enter(const dpari_nccl_world *world, const dpari_nccl_link *l,
                            const dpari_nccl_message *challenge, double until)
{
    dpari_nccl_message m;
    dpari_nccl_bits said, proof;
    memcpy(&said, challenge->text, sizeof said);
    proof = dpari_nccl_prove(world, 0, world->rank, &l->drawn, &said);
    dpari_nccl_message_init(world, &m, DPARI_NCCL_PROOF);
    memcpy(m.text, &proof, sizeof proof);
    return dpari_nccl_write(l->fd, &m, sizeof m, until);
}

/* On other ranks: processes rank 0's answer to a HELLO. */
static void dpari_nccl_at_door(dpari_nccl_world *world, dpari_nccl_link *l,
                               const dpari_nccl_message *message)
{
    if (message->kind == DPARI_NCCL_CHALLENGE && dpari_nccl_genuine(world, l, message) &&
        dpari_nccl_enter(world, l, message, dpari_os_now() + 1) == 0) {
        l->state = DPARI_NCCL_HERE;
    } else {
        dpari_nccl_link_lost(l);
    }
}

DPARI_INTERNAL void dpari_nccl_listen_to(dpari_nccl_world *world, int32_t k)
{
    dpari_nccl_link *l = &world->side.link[k];
    while (l->fd >= 0) {
        char *at = (char *)&l->in + l->got;
        ssize_t n = recv(l->fd, at, sizeof l->in - (size_t)l->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            dpari_nccl_link_lost(l);
            return;
        }
        l->got += (int32_t)n;
        if (l->got == (int32_t)sizeof l->in) {
            l->got = 0;
            if (dpari_nccl_fits(world, &l->in)) {
                dpari_nccl_message m = l->in;
                if (l->state == DPARI_NCCL_KNOCKS) {
                    dpari_nccl_at_door(world, l, &m);
                } else {
                    dpari_nccl_obey(world, k, &m);
                }
            }
        }
    }
}

DPARI_INTERNAL void dpari_nccl_mend(dpari_nccl_world *world)
{
    dpari_nccl_message m;
    const double now = dpari_os_now();
    int32_t r;
    for (r = 0; r < world->side.links; r++) {
        dpari_nccl_link *l = &world->side.link[r];
        if (l->state == DPARI_NCCL_LOST && now - l->lost > (double)(int)DPARI_NCCL_GRACE) {
            l->state = DPARI_NCCL_GONE;
            dpari_nccl_died(world, world->rank == 0 ? r : 0);
            if (world->rank == 0) {
                dpari_nccl_message_init(world, &m, DPARI_NCCL_DEAD);
                m.status = r;
                dpari_nccl_tell(world, &m, r);
            }
        } else if (world->rank != 0 && (l->state == DPARI_NCCL_LOST ||
                                        (l->state == DPARI_NCCL_AWAY &&
                                         now > l->lost + (double)(int)DPARI_NCCL_AGAIN))) {
            l->before = l->state;
            /* The deadline is short, because this rank cannot enqueue anything meanwhile. */
            if (dpari_nccl_reach(world, l, now + 0.2) == 0) {
                l->state = DPARI_NCCL_KNOCKS;
            }
            l->lost = l->before == DPARI_NCCL_AWAY ? dpari_os_now() : l->lost;
        }
    }
}
