/* SPDX-License-Identifier: MIT-0 */
/* meet - private: how the ranks of a job that somebody else started come to one segment.
 *
 * Rank 0 makes it and listens on a local socket whose name is made of user and job; each other rank
 * connects, says who it is, gets the segment's descriptor, maps it and says so; when all have, rank
 * 0 says go. On Linux the name is abstract: it ends with its process, whatever happens, and is seen
 * within one network namespace. Ranks that do not meet there within a second try a file in /tmp as
 * well, which joins network namespaces that have /tmp in common; elsewhere than on Linux it is the
 * only name. The file is unlinked once all have come; one that stays because rank 0 was
 * killed goes when the next job of this user starts a minute later. Both sides ask the system for
 * the other's user, and a connection that does not speak this protocol is dropped and tried again
 * until the deadline. */
#ifndef DPARI_COMM_MEET_H
#define DPARI_COMM_MEET_H

#include "job.h"
#include "launch.h"
#include "os.h"
#include "world.h"

enum { DPARI_HELLO = 1, DPARI_WELCOME, DPARI_MAPPED, DPARI_GO, DPARI_REFUSED };

/* The one message of the protocol; the same bytes in each direction. */
typedef struct dpari_hello {
    uint64_t magic;
    uint64_t job;    /* hash of launcher and id */
    uint64_t nonce;  /* of the rank that connects: an answer repeats it */
    uint32_t layout; /* of what lies in the segment */
    int32_t kind;    /* DPARI_HELLO ... */
    int32_t rank, size;
    int32_t status; /* REFUSED: why, with the text */
    char text[DPARI_WHY_TEXT];
    char room[4];
} dpari_hello;

/* The socket's name for a job, try k of DPARI_NAMES (another user may sit on one); its bytes. */
enum { DPARI_NAMES = 4 };
DPARI_INTERNAL socklen_t dpari_meet_name(const dpar_launcher_info *job, int32_t k, int32_t named,
                                         struct sockaddr_un *name);
/* *segment: mapped by all ranks. E_TIMEOUT names who did not come, E_MISMATCH who is of another
 * dpar or job, E_PEER who ended meanwhile. COLLECTIVE over the job. */
DPARI_INTERNAL dpar_status dpari_meet_ranks(const dpar_launcher_info *job, const dpar_world_desc *o,
                                            dpari_segment *segment, dpar_why *why);

#endif
