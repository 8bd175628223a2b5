/* SPDX-License-Identifier: MIT-0 */
/* A stand-in for NCCL, for tests without a GPU: fake_nccl.cc runs it between processes (or threads)
 * of one machine. Names, numbers and meanings are NCCL's; only the parts that the tests need exist.
 * FAKE_NCCL_HEADER is the version whose header this is. The environment:
 *   FAKE_NCCL_VERSION   what ncclGetVersion returns (default: the version that the library was built as)
 *   FAKE_NCCL_FAIL      "[what:]name:n[+][:number][@rank],...": for the n-th call of that function, on
 *                       rank DPAR_RANK or FAKE_RANK (without @rank on each), the operation
 *                           (nothing)  returns error `number` (3, ncclInternalError)
 *                           never      is enqueued and never begins
 *                           delay      begins `number` ms after its stream has reached it
 *                           count      moves one element less than requested
 *                           async      completes, and then the communicator has error `number`
 *   FAKE_NCCL_DEADLINE  seconds (30) without progress after which the process prints what it waits
 *                       for and ends with status 86; the real library would wait for ever
 *   FAKE_NCCL_RING      1: sums are made as in a ring, rounded at each hop, beginning with another
 *                       rank for each piece; otherwise in rank order, 16 bits in f32, rounded once
 *   FAKE_NCCL_SERIAL    1: one operation at a time for all communicators of a rank, as on a device
 *                       that is full: ranks that launch in different orders wait for ever
 *   FAKE_NCCL_STRICT    1: the messages of a group are sent in batches, as if the library has one channel
 *                       (enqueue.cc, scheduleP2pTasksToPlan): the first to and from each rank, then
 *                       the second ones, ...; a batch begins when the one before is complete. 2: the
 *                       same, and a message that fits into 32 KB completes without its receiver
 *   FAKE_NCCL_CONNECT   1: the first collective of a non-blocking communicator remains in progress
 *                       until all its ranks have called it, as from 2.22 on
 *   FAKE_NCCL_DIR       the folder where ranks meet, /dev/shm */
#ifndef FAKE_NCCL_H
#define FAKE_NCCL_H

#include "cuda_runtime.h"
#include <limits.h>

#ifndef FAKE_NCCL_HEADER
#define FAKE_NCCL_HEADER 23007
#endif
#define NCCL_MAJOR (FAKE_NCCL_HEADER / 10000)
#define NCCL_MINOR (FAKE_NCCL_HEADER / 100 % 100)
#define NCCL_PATCH (FAKE_NCCL_HEADER % 100)
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE FAKE_NCCL_HEADER
#define NCCL_VERSION(X, Y, Z)                                                                      \
    (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5,
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
#if FAKE_NCCL_HEADER >= 22403
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
#else
    ncclNumTypes = 10
#endif
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1

/* Grows with the versions; `size` is that of the version with which the caller was compiled. */
typedef struct {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
#if FAKE_NCCL_HEADER >= 22602
    int trafficClass;
#endif
#if FAKE_NCCL_HEADER >= 22703
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
#endif
#if FAKE_NCCL_HEADER >= 22803
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
#endif
#if FAKE_NCCL_HEADER >= 22902
    int graphUsageMode;
    int numRmaCtx;
#endif
#if FAKE_NCCL_HEADER >= 23003
    int maxP2pPeers;
#endif
#if FAKE_NCCL_HEADER >= 23007
    int graphStreamOrdering;
#endif
} ncclConfig_t;

#define FAKE_NCCL_ANY NCCL_CONFIG_UNDEF_INT
#if FAKE_NCCL_HEADER >= 22602
#define FAKE_NCCL_22602 , FAKE_NCCL_ANY
#else
#define FAKE_NCCL_22602
#endif
#if FAKE_NCCL_HEADER >= 22703
#define FAKE_NCCL_22703 , NULL, FAKE_NCCL_ANY, FAKE_NCCL_ANY, FAKE_NCCL_ANY, FAKE_NCCL_ANY
#else
#define FAKE_NCCL_22703
#endif
#if FAKE_NCCL_HEADER >= 22803
#define FAKE_NCCL_22803 , FAKE_NCCL_ANY, FAKE_NCCL_ANY
#else
#define FAKE_NCCL_22803
#endif
#if FAKE_NCCL_HEADER >= 22902
#define FAKE_NCCL_22902 , FAKE_NCCL_ANY, FAKE_NCCL_ANY
#else
#define FAKE_NCCL_22902
#endif
#if FAKE_NCCL_HEADER >= 23003
#define FAKE_NCCL_23003 , FAKE_NCCL_ANY
#else
#define FAKE_NCCL_23003
#endif
#if FAKE_NCCL_HEADER >= 23007
#define FAKE_NCCL_23007 , FAKE_NCCL_ANY
#else
#define FAKE_NCCL_23007
#endif
#define NCCL_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ncclConfig_t), 0xcafebeef, FAKE_NCCL_HEADER, FAKE_NCCL_ANY, FAKE_NCCL_ANY,          \
            FAKE_NCCL_ANY, FAKE_NCCL_ANY,                                                          \
            NULL, FAKE_NCCL_ANY FAKE_NCCL_22602 FAKE_NCCL_22703 FAKE_NCCL_22803 FAKE_NCCL_22902    \
                      FAKE_NCCL_23003 FAKE_NCCL_23007                                              \
    }

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config);
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t out_count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllGather(const void *in, void *out, size_t in_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

#if FAKE_NCCL_HEADER >= 21901
ncclResult_t ncclMemAlloc(void **memory, size_t bytes);
ncclResult_t ncclMemFree(void *memory);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
#endif
#if FAKE_NCCL_HEADER >= 22304
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int ranks, int rank, int ids,
                                      ncclUniqueId *id, ncclConfig_t *config);
#endif
#if FAKE_NCCL_HEADER >= 22703
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
typedef struct ncclWindow_vidmem *ncclWindow_t;
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int excluded_count, ncclComm_t *out,
                            ncclConfig_t *config, int flags);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *memory, size_t bytes,
                                    ncclWindow_t *window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
#endif
#if FAKE_NCCL_HEADER >= 22803
ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream);
#endif
#if FAKE_NCCL_HEADER >= 22807
#define NCCL_REVOKE_DEFAULT 0x00
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
#endif

#if FAKE_NCCL_HEADER >= 22902 /* from nccl_device.h */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **out);
#endif

/* ---- only for tests ---- */

/* Returns how often a function was called. */
long long fake_nccl_count(const char *name);
/* Replaces FAKE_NCCL_FAIL and counts from now on; NULL: no more failures. */
void fake_nccl_fail(const char *list);

#ifdef __cplusplus
}
#endif
#endif
