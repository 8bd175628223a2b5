/* SPDX-License-Identifier: MIT-0 */
/* system - private: the system headers that the engine needs. */
#ifndef DPARI_NCCL_SYSTEM_H
#define DPARI_NCCL_SYSTEM_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#if !defined(DPAR_NCCL_LINK)
#include <dlfcn.h>
#endif

/* With -std=c99, a system header that was included earlier may have hidden the functions of POSIX
 * and of the network, and nothing can bring them back. */
#if !defined(IFF_UP) || !defined(CLOCK_MONOTONIC) || !defined(F_DUPFD_CLOEXEC)
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

#endif
