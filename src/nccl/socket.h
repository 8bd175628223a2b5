/* SPDX-License-Identifier: MIT-0 */
/* socket - private: TCP: addresses, connections, and whole messages before a deadline. */
#ifndef DPARI_NCCL_SOCKET_H
#define DPARI_NCCL_SOCKET_H

#include "../base/arith.h"
#include "state.h"
#include "system.h"

typedef union dpari_nccl_sockaddr {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} dpari_nccl_sockaddr;

/* Send or receive all bytes. Return 0, or -1 if the connection fails or the deadline passes before
 * that, in which case some of the bytes may have been sent or received. */
DPARI_INTERNAL int dpari_nccl_write(int fd, const void *from, size_t bytes, double until);
DPARI_INTERNAL int dpari_nccl_read(int fd, void *to, size_t bytes, double until);
/* Sets *a to 127.0.0.1. */
DPARI_INTERNAL void dpari_nccl_loopback(dpari_nccl_address *a);
/* Sets *n to an address and port in the form that the system's functions take. Returns its
 * length. */
DPARI_INTERNAL socklen_t dpari_nccl_socket_name(const dpari_nccl_address *a, int32_t port,
                                                dpari_nccl_sockaddr *n);

/* Makes a socket that listens on a free port, which *port is set to: at the loopback interface if
 * local is 1, otherwise at all addresses of this machine. Returns -1 on failure. */
DPARI_INTERNAL int dpari_nccl_listen(int32_t local, int32_t *port);

/* Lists up to `room` of this machine's addresses, with loopback addresses last and without IPv6
 * addresses that are valid only on one link. Returns their number. */
DPARI_INTERNAL int32_t dpari_nccl_addresses(dpari_nccl_address *to, int32_t room);

/* Connects to an address. Returns the socket, or -1 if the address is not reached before the
 * deadline, which must be at most some seconds away. */
DPARI_INTERNAL int dpari_nccl_connect(const struct sockaddr *name, socklen_t bytes, double until);

#endif
