/* SPDX-License-Identifier: MIT-0 */
/* Allocates the side channel, and gives it a turn: accept connections, read messages, restore lost
 * connections, report communicators that broke. The watchdog's thread does this between two waits
 * in poll(), which a byte in a pipe ends early. */
#include "side_channel.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../comm/os.h"
#include "side_connections.h"
#include "side_messages.h"
#include "state.h"

DPARI_INTERNAL dpar_status dpari_nccl_side_make(dpari_nccl_world *world, dpar_why *why)
{
    dpari_nccl_side *s = &world->side;
    int32_t r, links = world->rank == 0 ? world->size : 1;
    s->knocks_room = 0;
    if (world->rank == 0) {
        s->knocks_room = 64 + (world->size < 1024 ? world->size : 1024);
    }
    s->link = (dpari_nccl_link *)calloc((size_t)links, sizeof *s->link);
    s->note = (dpari_nccl_note *)calloc((size_t)world->size, sizeof *s->note);
    s->known = (int32_t *)calloc((size_t)world->size, sizeof *s->known);
    s->polls =
        (struct pollfd *)calloc((size_t)links + (size_t)s->knocks_room + 2, sizeof *s->polls);
    s->knock = (dpari_nccl_knock *)calloc((size_t)s->knocks_room + 1, sizeof *s->knock);
    if (s->link == NULL || s->note == NULL || s->known == NULL || s->polls == NULL ||
        s->knock == NULL || pipe(world->wake) != 0 ||
        (world->wake[0] = dpari_os_beyond_standard(world->wake[0])) < 0 ||
        (world->wake[1] = dpari_os_beyond_standard(world->wake[1])) < 0) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "dpar_nccl_make: no memory (%ld bytes) or no 2 file descriptors for the "
                         "connections between rank 0 and %d ranks",
                         (int64_t)links * (int64_t)(sizeof *s->link + sizeof *s->polls) +
                             (int64_t)world->size * (int64_t)(sizeof *s->note + sizeof *s->known) +
                             (int64_t)s->knocks_room *
                                 (int64_t)(sizeof *s->knock + sizeof *s->polls),
                         world->size);
    }
    for (r = 0; r < 2; r++) {
        (void)fcntl(world->wake[r], F_SETFD, FD_CLOEXEC);
        (void)fcntl(world->wake[r], F_SETFL, O_NONBLOCK);
    }
    for (r = 0; r < links; r++) {
        s->link[r].fd = -1;
    }
    s->links = links;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_side_wait(dpari_nccl_world *world, double seconds)
{
    struct pollfd *p = world->side.polls;
    char bytes[64];
    int32_t n = 0, r;
    p[n].fd = world->wake[0];
    p[n++].events = POLLIN;
    if (world->side.listener >= 0) {
        p[n].fd = world->side.listener;
        p[n++].events = POLLIN;
    }
    for (r = 0; r < world->side.knocks; r++) {
        p[n].fd = world->side.knock[r].fd;
        p[n++].events = POLLIN;
    }
    for (r = 0; r < world->side.links; r++) {
        if (world->side.link[r].fd >= 0) {
            p[n].fd = world->side.link[r].fd;
            p[n++].events = POLLIN;
        }
    }
    if (poll(p, (nfds_t)n, (int)(seconds * 1e3) + 1) > 0 && (p[0].revents & POLLIN) != 0) {
        (void)!read(world->wake[0], bytes, sizeof bytes);
    }
}

DPARI_INTERNAL void dpari_nccl_say_broken(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    dpari_nccl_message m;
    dpar_text t;
    if (world->rank != 0 && world->side.links > 0 &&
        world->side.link[0].state == DPARI_NCCL_KNOCKS) {
        return; /* reported later, once rank 0 listens */
    }
    for (context = world->comms; context != NULL; context = context->next) {
        if (context->comm.status < 0 && !context->told) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_BROKEN);
            m.status = context->comm.status;
            m.note.comm = context->name;
            dpar_text_init(&t, m.text, sizeof m.text);
            dpar_text_put(&t, context->comm.why.text);
            dpari_nccl_tell(world, &m, -1);
            context->told = 1;
        }
    }
}

DPARI_INTERNAL void dpari_nccl_side_turn(dpari_nccl_world *world)
{
    int32_t r;
    if (world->side.listener >= 0) {
        dpari_nccl_accept(world);
    }
    for (r = 0; r < world->side.links; r++) {
        dpari_nccl_listen_to(world, r);
    }
    dpari_nccl_mend(world);
    dpari_nccl_say_broken(world);
}
