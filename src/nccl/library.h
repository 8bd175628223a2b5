/* SPDX-License-Identifier: MIT-0 */
/* library - private: NCCL's functions, loaded or linked, as far as the installed version has them.
 */
#ifndef DPARI_NCCL_LIBRARY_H
#define DPARI_NCCL_LIBRARY_H

#include "../base/arith.h"
#include "../base/text.h"
#include "nccl_make.h"
#include "system.h"

/* An NCCL window. In 2.27 its struct has another name than in later versions. */
#if NCCL_VERSION_CODE >= 22703
typedef ncclWindow_t dpari_nccl_window;
#else
typedef struct dpari_nccl_window_of *dpari_nccl_window;
#endif

/* The functions that all supported versions have, followed by those that each later version
 * added. */
#define DPARI_NCCL_ALWAYS(X)                                                                       \
    X(GetVersion, (int *))                                                                         \
    X(GetUniqueId, (ncclUniqueId *))                                                               \
    X(CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                  \
    X(CommFinalize, (ncclComm_t))                                                                  \
    X(CommDestroy, (ncclComm_t))                                                                   \
    X(CommAbort, (ncclComm_t))                                                                     \
    X(CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                             \
    X(AllReduce,                                                                                   \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(Reduce,                                                                                      \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))  \
    X(Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))    \
    X(AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))         \
    X(ReduceScatter,                                                                               \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                 \
    X(Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                       \
    X(CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                             \
    X(GroupStart, (void))                                                                          \
    X(GroupEnd, (void))

#define DPARI_NCCL_21900(X)                                                                        \
    X(MemAlloc, (void **, size_t))                                                                 \
    X(MemFree, (void *))                                                                           \
    X(CommRegister, (const ncclComm_t, void *, size_t, void **))                                   \
    X(CommDeregister, (const ncclComm_t, void *))

#define DPARI_NCCL_22703(X)                                                                        \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                     \
    X(CommWindowRegister, (ncclComm_t, void *, size_t, dpari_nccl_window *, int))                  \
    X(CommWindowDeregister, (ncclComm_t, dpari_nccl_window))

#define DPARI_NCCL_22803(X)                                                                        \
    X(AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))          \
    X(Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))       \
    X(Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

#define DPARI_NCCL_22807(X) X(CommRevoke, (ncclComm_t, int))

#define DPARI_NCCL_22902(X) X(GetPeerDevicePointer, (dpari_nccl_window, size_t, int, void **))

/* The functions, NULL for those that the installed version lacks. */
typedef struct dpari_nccl_api {
    void *library;
    int32_t version, room;
    const char *(*GetErrorString)(ncclResult_t);
    const char *(*GetLastError)(ncclComm_t);
#define DPARI_NCCL_FIELD(name, args) ncclResult_t(*name) args;
    DPARI_NCCL_ALWAYS(DPARI_NCCL_FIELD)
    DPARI_NCCL_21900(DPARI_NCCL_FIELD)
    DPARI_NCCL_22703(DPARI_NCCL_FIELD)
    DPARI_NCCL_22803(DPARI_NCCL_FIELD)
    DPARI_NCCL_22807(DPARI_NCCL_FIELD)
    DPARI_NCCL_22902(DPARI_NCCL_FIELD)
#undef DPARI_NCCL_FIELD
} dpari_nccl_api;

enum {
    DPARI_NCCL_OLDEST = 21801, /* 2.18.1: older versions have no ncclCommSplit */
    DPARI_NCCL_SHRINK_ABORT = 1,
    DPARI_NCCL_WIN_SYMMETRIC = 1
};

/* Writes a version number as text: "2.28.9". */
DPARI_INTERNAL void dpari_nccl_put_version(dpar_text *text, int32_t version);
/* Loads the library, or takes the linked functions. Fails if it is missing or too old. */
DPARI_INTERNAL dpar_status dpari_nccl_load(dpari_nccl_api *api, dpar_why *why);

#endif
