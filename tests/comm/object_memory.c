/* SPDX-License-Identifier: MIT-0 */
/* Tests the memory of objects. It is the caller's, where a failure reports the number of bytes
 * needed, or allocated by the library: then it is zeroed, aligned, and released through the pointer
 * only. */
#include "dpar_comm.h"

#include "check.h"

#include <stdlib.h>
#include <string.h>

static int all_zero(const unsigned char *at, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) {
        if (at[i] != 0) {
            return 0;
        }
    }
    return 1;
}

/* Checks that a caller's memory is used as it is, or refused without writing a byte to it. */
static void callers_memory(void)
{
    static unsigned char room[256 + 64];
    unsigned char *const memory = room + (64 - (uintptr_t)room % 64);
    void *at = NULL;
    dpar_why why;
    memset(memory, 7, 256);
    CHECK_INT(dpari_object_memory(NULL, memory, 200, 200, "test", &at, &why), DPAR_OK);
    CHECK(at == memory);
    CHECK_INT(dpari_object_memory(NULL, memory, 199, 200, "test", &at, &why), DPAR_E_ROOM);
    CHECK_TEXT(why.text, "test: desc.memory must have 200 bytes at a multiple of 64, but has 199 "
                         "bytes and begins 0 bytes past one");
    CHECK_INT(dpari_object_failed(DPAR_E_ROOM, memory, at, 200, &why), DPAR_E_ROOM);
    CHECK_INT(why.bytes, 200);
    CHECK_INT(dpari_object_memory(NULL, memory + 8, 200, 200, "test", &at, &why), DPAR_E_ROOM);
    CHECK(strstr(why.text, "begins 8 bytes past one") != NULL);
    CHECK_INT(dpari_object_memory(NULL, NULL, 200, 200, "test", &at, &why), DPAR_E_ROOM);
    CHECK(strstr(why.text, "but has 0 bytes") != NULL);
    for (size_t i = 0; i < 256; i++) {
        CHECK_INT(memory[i], 7);
    }
}

/* Checks allocated memory, with a communicator and without one. */
static void own_memory(dpar_comm *comm)
{
    enum { BYTES = 100000 };
    void *at = NULL, *second = NULL;
    dpar_why why;
    CHECK_INT(dpari_object_memory(comm, NULL, 0, BYTES, "test", &at, &why), DPAR_OK);
    CHECK(at != NULL && (uintptr_t)at % 64 == 0);
    CHECK(all_zero((unsigned char *)at, BYTES));
    memset(at, 1, BYTES);
    CHECK_INT(dpari_object_memory(comm, NULL, 0, BYTES, "test", &second, &why), DPAR_OK);
    CHECK(all_zero((unsigned char *)second, BYTES)); /* it does not overlap the first block */
    memset(second, 2, BYTES);
    CHECK(((unsigned char *)at)[0] == 1 && ((unsigned char *)at)[BYTES - 1] == 1);
    CHECK_INT(dpari_object_end(DPAR_E_PEER, at), DPAR_E_PEER);
    /* A _make that fails releases what it has allocated. */
    CHECK_INT(dpari_object_failed(DPAR_E_ARG, NULL, second, BYTES, &why), DPAR_E_ARG);
    CHECK_INT(dpari_object_end(DPAR_OK, NULL), DPAR_OK);
}

/* Checks that objects are in host memory if the arrays of the ranks are in device memory. The table
 * of the device is empty, because none of its functions may be called. */
static void with_a_device(dpar_comm *world)
{
    static const dpar_mem device;
    dpar_comm comm = *world;
    comm.mem = &device;
    own_memory(&comm);
}

/* Asks for more bytes than there are. */
static void no_memory(void)
{
    void *at = NULL;
    dpar_why why;
    const int64_t bytes = INT64_C(1) << 60;
    CHECK_INT(dpari_object_memory(NULL, NULL, 0, bytes, "test", &at, &why), DPAR_E_MEMORY);
    CHECK_TEXT(why.text, "test: no memory for 1152921504606846976 bytes");
}

int main(void)
{
    dpar_comm *world = NULL;
    dpar_why why;
    CHECK_INT(dpar_init(&world, NULL, &why), DPAR_OK);
    if (world == NULL) {
        return 1;
    }
    callers_memory();
    own_memory(NULL);
    own_memory(world);
    with_a_device(world);
    no_memory();
    CHECK_INT(dpar_comm_free(world), DPAR_OK);
    return CHECK_DONE();
}
