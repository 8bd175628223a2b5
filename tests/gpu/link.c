/* SPDX-License-Identifier: MIT-0 */
/* Compiles dpar_nccl.h with the real nccl.h and links the real library and the real CUDA runtime.
 * Prints the version, then starts two ranks, each with a device or with a message why there is
 * none. */
#include "dpar_nccl.h"

#include "check.h"

#include <cuda.h>
#include <stddef.h>

/* Checks dpar_nccl.h's own declaration of the driver's arguments. */
#define SAME(a, b) (sizeof(a) == sizeof(b) ? 1 : -1)
typedef CUstreamBatchMemOpParams op;
typedef char op_size[SAME(op, dpari_nccl_stream_op)];
#define AT(field, of, member)                                                                      \
    CHECK_INT(offsetof(dpari_nccl_stream_op, field), offsetof(op, of.member))
static void stream_ops(void)
{
    AT(operation, waitValue, operation);
    AT(address, waitValue, address);
    AT(value, waitValue, value);
    AT(flags, waitValue, flags);
    AT(operation, writeValue, operation);
    AT(address, writeValue, address);
    AT(value, writeValue, value);
    AT(flags, writeValue, flags);
    CHECK_INT(DPARI_NCCL_WAIT_32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
    CHECK_INT(DPARI_NCCL_WRITE_32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
    CHECK_INT(DPARI_NCCL_WAIT_EQ, CU_STREAM_WAIT_VALUE_EQ);
    CHECK_INT(CU_STREAM_WRITE_VALUE_DEFAULT, 0);
}

/* Sets major x 10000 + minor x 100 + patch of the NCCL library; E_SYSTEM if there is none. */
static dpar_status nccl_version(int32_t *version, dpar_why *why)
{
    dpari_nccl_api api;
    dpar_status status = dpari_nccl_load(&api, why);
    if (status >= 0) {
        *version = api.version;
    }
    return status;
}

static int each(dpar_comm *c, void *arg)
{
    dpar_comm *nccl = NULL;
    dpar_why why;
    dpar_status st;
    (void)arg;
    why.text[0] = 0;
    (void)cudaSetDevice(c->rank);
    st = dpar_nccl_make(c, NULL, &nccl, &why);
    CHECK((st == DPAR_OK && nccl != NULL) || (st < 0 && nccl == NULL && why.text[0] != 0));
    if (c->rank == 0) {
        printf("two ranks: %s\n", st < 0 ? why.text : "a device each");
    }
    (void)dpar_comm_free(nccl);
    return checks_failed > 0;
}

int main(void)
{
    int32_t version = 0;
    dpar_why why;
    dpar_world_desc o;
    why.text[0] = 0;
    stream_ops();
    CHECK_INT(nccl_version(&version, &why), DPAR_OK);
    CHECK(version >= 21800 && version >= NCCL_VERSION_CODE / 100 * 100);
    printf("NCCL %d, header %d %s\n", (int)version, NCCL_VERSION_CODE, why.text);
    memset(&o, 0, sizeof o);
    o.timeout_s = 30;
    CHECK_INT(dpar_launch(2, each, NULL, &o, &why), DPAR_OK);
    return CHECK_DONE();
}
