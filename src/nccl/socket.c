/* SPDX-License-Identifier: MIT-0 */
/* Implements TCP with deadlines: sockets do not block, and each call that cannot proceed waits in
 * poll() for at most a tenth of a second before it looks at the clock again. */
#include "socket.h"

#include "../base/arith.h"
#include "../comm/os.h"
#include "state.h"

DPARI_INTERNAL int dpari_nccl_write(int fd, const void *from, size_t bytes, double until)
{
    const char *at = (const char *)from;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -1;
        } else if (!dpari_os_poll(fd, POLLOUT, until)) {
            return -1;
        }
    }
    return 0;
}

DPARI_INTERNAL int dpari_nccl_read(int fd, void *to, size_t bytes, double until)
{
    char *at = (char *)to;
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            return -1;
        } else if (!dpari_os_poll(fd, POLLIN, until)) {
            return -1;
        }
    }
    return 0;
}

DPARI_INTERNAL void dpari_nccl_loopback(dpari_nccl_address *a)
{
    memset(a, 0, sizeof *a);
    a->family = AF_INET;
    a->at[0] = 127;
    a->at[3] = 1;
}

DPARI_INTERNAL socklen_t dpari_nccl_socket_name(const dpari_nccl_address *a, int32_t port,
                                                dpari_nccl_sockaddr *n)
{
    memset(n, 0, sizeof *n);
    if (a->family == AF_INET6) {
        n->six.sin6_family = AF_INET6;
        n->six.sin6_port = htons((uint16_t)port);
        memcpy(&n->six.sin6_addr, a->at, 16);
        return sizeof n->six;
    }
    n->four.sin_family = AF_INET;
    n->four.sin_port = htons((uint16_t)port);
    memcpy(&n->four.sin_addr, a->at, 4);
    return sizeof n->four;
}

DPARI_INTERNAL int dpari_nccl_listen(int32_t local, int32_t *port)
{
    dpari_nccl_address at;
    dpari_nccl_sockaddr name;
    const int off = 0;
    socklen_t bytes;
    int fd;
    memset(&at, 0, sizeof at);
    at.family = local ? AF_INET : AF_INET6;
    fd = dpari_os_socket(at.family, SOCK_STREAM);
    if (fd >= 0 && !local) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    } else if (fd < 0) {
        at.family = AF_INET;
        fd = dpari_os_socket(AF_INET, SOCK_STREAM);
    }
    if (fd < 0) {
        return -1;
    }
    if (local) {
        dpari_nccl_loopback(&at);
    }
    bytes = dpari_nccl_socket_name(&at, 0, &name);
    if (bind(fd, &name.any, bytes) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, &name.any, &bytes) != 0) {
        (void)close(fd);
        return -1;
    }
    *port = (int32_t)ntohs(at.family == AF_INET6 ? name.six.sin6_port : name.four.sin_port);
    return fd;
}

DPARI_INTERNAL int32_t dpari_nccl_addresses(dpari_nccl_address *to, int32_t room)
{
    struct ifaddrs *all = NULL, *i;
    int32_t n = 0, loop;
    if (getifaddrs(&all) != 0) {
        return 0;
    }
    for (loop = 0; loop < 2; loop++) {
        for (i = all; i != NULL && n < room; i = i->ifa_next) {
            dpari_nccl_address *a = &to[n];
            if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
                ((i->ifa_flags & IFF_LOOPBACK) != 0) != loop) {
                continue;
            }
            memset(a, 0, sizeof *a);
            a->family = i->ifa_addr->sa_family;
            if (a->family == AF_INET) {
                memcpy(a->at, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                       4);
                n++;
            } else if (a->family == AF_INET6) {
                const struct sockaddr_in6 *six =
                    (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
                memcpy(a->at, &six->sin6_addr, 16);
                n += !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr);
            }
        }
    }
    freeifaddrs(all);
    return n;
}

/* Waits until a connection that is in progress is made. Returns 0 if that fails, or at the
 * deadline, which is at most some seconds away. A signal does not end the wait. */
static int dpari_nccl_connected(int fd, double until)
{
    struct pollfd p;
    int error = 0, ready;
    socklen_t bytes = sizeof error;
    p.fd = fd;
    p.events = POLLOUT;
    do {
        const double rest = until - dpari_os_now();
        p.revents = 0;
        ready = poll(&p, 1, rest > 0 ? (int)(rest * 1e3) + 1 : 0);
    } while (ready < 0 && errno == EINTR);
    return ready == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
}

DPARI_INTERNAL int dpari_nccl_connect(const struct sockaddr *name, socklen_t bytes, double until)
{
    const int on = 1;
    const int fd = dpari_os_socket(name->sa_family, SOCK_STREAM);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, name, bytes) != 0 &&
        (errno != EINPROGRESS || !dpari_nccl_connected(fd, until))) {
        (void)close(fd);
        return -1;
    }
    return fd;
}
