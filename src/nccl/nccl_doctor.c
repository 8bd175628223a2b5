/* SPDX-License-Identifier: MIT-0 */
/* Reports on NCCL. Which transports NCCL chose is not in its API, so that its log is searched for
 * the words "via ..." and "Using network ...". */
#include "nccl_doctor.h"

#include "../base/base.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/comm.h"
#include "library.h"
#include "state.h"
#include "world.h"

/* Numbers of channels by transport, as NCCL logs them with NCCL_DEBUG=INFO. */
typedef struct dpari_nccl_transport {
    int64_t p2p, shm, socket, ib, other; /* lines with "via ...": NVLink or PCIe, host memory, TCP,
                                            InfiniBand or RoCE, and other plug-ins */
    char network[40];                    /* name in "Using network ...": Socket, IB, AWS Libfabric;
                                            "" if there is none */
} dpari_nccl_transport;

static int dpari_nccl_starts(const char *at, const char *end, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0;
}

/* Counts the transport that follows "via ". */
static void dpari_nccl_count_via(const char *by, const char *end, dpari_nccl_transport *out)
{
    if (dpari_nccl_starts(by, end, "P2P")) {
        out->p2p++;
    } else if (dpari_nccl_starts(by, end, "SHM")) {
        out->shm++;
    } else if (dpari_nccl_starts(by, end, "NET/Socket")) {
        out->socket++;
    } else if (dpari_nccl_starts(by, end, "NET/IB")) {
        out->ib++;
    } else if (dpari_nccl_starts(by, end, "NET/") || dpari_nccl_starts(by, end, "COLLNET/")) {
        out->other++;
    }
}

/* Counts the transports in the complete lines of a log. */
static void dpari_nccl_read_log(const char *text, size_t bytes, dpari_nccl_transport *out)
{
    const char *end;
    size_t i, n;
    memset(out, 0, sizeof *out);
    while (bytes > 0 && text[bytes - 1] != '\n') {
        bytes--; /* NCCL is still writing this line */
    }
    end = text + bytes;
    for (i = 0; i < bytes; i++) {
        const char *at = text + i;
        if (*at == 'v' && dpari_nccl_starts(at, end, "via ")) {
            dpari_nccl_count_via(at + 4, end, out);
        } else if (*at == 'U' && dpari_nccl_starts(at, end, "Using network ")) {
            memset(out->network, 0, sizeof out->network);
            for (at += 14, n = 0; at < end && *at >= ' ' && *at <= '~'; at++) {
                if (n + 1 < sizeof out->network) {
                    out->network[n++] = *at;
                }
            }
        }
    }
}

/* Reads the first 64 MiB of a log, which contain NCCL's choices. Returns NULL if it cannot be
 * read. */
static char *dpari_nccl_log_text(const char *log, size_t *bytes)
{
    const int fd = log != NULL && log[0] != 0 ? open(log, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct stat info;
    char *text = NULL;
    size_t room = (size_t)64 << 20;
    *bytes = 0;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        room = info.st_size < (off_t)room ? (size_t)info.st_size : room;
        text = (char *)malloc(room + 1);
    }
    while (text != NULL && *bytes < room) {
        const ssize_t n = read(fd, text + *bytes, room - *bytes);
        if (n <= 0) {
            break;
        }
        *bytes += (size_t)n;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return text;
}

static void dpari_nccl_put_log(const char *log, int32_t shared, dpar_text *out, int32_t *wrong)
{
    dpari_nccl_transport t;
    size_t bytes = 0;
    char *text = dpari_nccl_log_text(log, &bytes);
    if (text == NULL) {
        dpar_text_put(out, "NCCL's transports: not known -> set log_file in dpar_nccl_desc\n");
        return;
    }
    dpari_nccl_read_log(text, bytes, &t);
    free(text);
    if (t.p2p + t.shm + t.ib + t.socket + t.other == 0) {
        dpar_text_put(out, "NCCL's transports: none yet, ranks connect in their first operation "
                           "(with one rank, or your own NCCL_DEBUG, nothing is logged)");
    } else {
        dpari_text_say(out,
                       "NCCL's transports of this rank: %ld by P2P, %ld by shared memory, %ld by "
                       "InfiniBand, %ld by sockets, %ld by others",
                       t.p2p, t.shm, t.ib, t.socket, t.other);
    }
    dpari_text_say(out, "; network %s\n", t.network[0] != 0 ? t.network : "not known");
    if (t.socket > 0 && !shared) {
        dpar_text_put(out,
                      "WRONG: NCCL moves data through TCP sockets, tens of times slower than "
                      "the network can -> InfiniBand: install its user libraries (libibverbs); "
                      "Slingshot: the plug-in aws-ofi-nccl on LD_LIBRARY_PATH and "
                      "NCCL_NET=\"AWS Libfabric\"; one node: unset NCCL_P2P_DISABLE and "
                      "NCCL_SHM_DISABLE\n");
        ++*wrong;
    }
}

/* Writes where rank 0 listens. */
static void dpari_nccl_put_door(const dpari_nccl_side *s, dpar_text *out)
{
    if (s->listener < 0) {
        return;
    }
    dpari_text_say(out, "other ranks reach rank 0 %s, port %d, with a key made for this job\n",
                   s->local ? "on the loopback interface" : "at any of its addresses",
                   s->card.port);
}

DPAR_API int32_t dpar_nccl_doctor(dpar_comm *comm, dpar_text *out)
{
    dpari_nccl_api api;
    dpar_why why;
    const int32_t shared = dpari_nccl_shares();
    const char *blocks = getenv("NCCL_COMM_BLOCKING");
    const int ours = comm != NULL && strcmp(comm->engine.name, "nccl") == 0;
    int32_t wrong = 0;
    if (dpari_nccl_load(&api, &why) < 0) {
        dpari_text_say(out, "WRONG: %s -> install NCCL (pip: nvidia-nccl-cu13)\n", why.text);
        return 1;
    }
    dpar_text_put(out, "NCCL ");
    dpari_nccl_put_version(out, api.version);
    dpar_text_put(out, ", compiled with the header of ");
    dpari_nccl_put_version(out, NCCL_VERSION_CODE);
    dpar_text_put(out, api.CommRegister == NULL ? "; no registered memory" : "");
    dpar_text_put(out, api.CommShrink == NULL ? "; no windows, no shrink" : "");
    dpar_text_put(out, api.GetPeerDevicePointer == NULL ? "; halos only by messages" : "");
    dpar_text_put(out, api.AlltoAll == NULL ? "; all-to-all, gather, scatter by messages" : "");
    dpari_text_char(out, '\n');
    if (shared) {
        dpar_text_put(out, "DPAR_TEST_SHARE_GPU: ranks share a device, for tests: slow\n");
    }
    if (blocks != NULL && blocks[0] == '1') {
        dpar_text_put(out, "WRONG: NCCL_COMM_BLOCKING=1: a rank that waits in NCCL for one that is "
                           "missing has no deadline -> unset it\n");
        wrong++;
    }
    if (ours) {
        dpari_nccl_put_door(&dpari_nccl_ctx_of(comm)->world->side, out);
        dpari_nccl_put_log(dpari_nccl_ctx_of(comm)->world->log, shared, out, &wrong);
    }
    return wrong;
}
