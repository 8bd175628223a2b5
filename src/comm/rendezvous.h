/* SPDX-License-Identifier: MIT-0 */
/* rendezvous - private: lets the ranks of a job that a launcher started find each other and share
 * one segment.
 *
 *     1. Rank 0 makes the segment and listens on a local socket, whose name it makes of user and
 *        job.
 *     2. Each other rank connects and sends HELLO with its rank. Rank 0 answers WELCOME, with the
 *        descriptor of the segment.
 *     3. The rank maps the segment and sends MAPPED.
 *     4. Once all ranks have done so, rank 0 sends GO to all, or REFUSED with a message if the job
 *        cannot start.
 *
 * On Linux the name is abstract: it disappears with its process in any case, and is visible within
 * one network namespace. If ranks do not meet there within a second, they also try a file in /tmp,
 * which network namespaces may share. On other systems that file is the only name. It is unlinked
 * once all ranks have arrived. If rank 0 is killed before that, the next job of this user that
 * starts at least a minute later removes the file. Both sides ask the system for the user of the
 * other. A connection that does not speak this protocol is dropped, and tried again until the
 * deadline. */
#ifndef DPARI_COMM_RENDEZVOUS_H
#define DPARI_COMM_RENDEZVOUS_H

#include "job.h"
#include "launch.h"
#include "os.h"
#include "world.h"

enum { DPARI_HELLO = 1, DPARI_WELCOME, DPARI_MAPPED, DPARI_GO, DPARI_REFUSED };

/* The only message of the protocol, with the same bytes in each direction. */
typedef struct dpari_hello {
    uint64_t magic;
    uint64_t job;    /* hash of launcher and id */
    uint64_t nonce;  /* chosen by the rank that connects; answers repeat it */
    uint32_t layout; /* hash of the version and of the layout of the segment */
    int32_t kind;    /* DPARI_HELLO ... */
    int32_t rank, size;
    int32_t status;            /* in MAPPED and REFUSED: the error, */
    char text[DPARI_WHY_TEXT]; /* and its message */
    char padding[4];
} dpari_hello;

/* Writes name number k of a job's socket, and returns its length in bytes. There are DPARI_NAMES
 * names, because another user may have taken one. named: 1 for the file in /tmp, 0 for the abstract
 * name. */
enum { DPARI_NAMES = 4 };
DPARI_INTERNAL socklen_t dpari_meet_name(const dpar_launcher_info *job, int32_t k, int32_t named,
                                         struct sockaddr_un *name);
/* Returns the segment once all ranks have mapped it. Fails with DPAR_E_TIMEOUT if ranks do not
 * arrive, DPAR_E_MISMATCH if a rank has another version of dpar or another size, and DPAR_E_PEER if
 * a rank ends meanwhile. The message names these ranks. COLLECTIVE over the job. */
DPARI_INTERNAL dpar_status dpari_meet_ranks(const dpar_launcher_info *job, const dpar_world_desc *o,
                                            dpari_segment *segment, dpar_why *why);

#endif
