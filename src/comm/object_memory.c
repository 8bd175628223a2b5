/* SPDX-License-Identifier: MIT-0 */
/* Provides the memory of objects. A small header in front of it records where it came from, so that
 * releasing it needs only the pointer. */
#include "object_memory.h"

#include "../base/arith.h"
#include "agree.h"
#include "comm.h"
#include "os.h"

/* The header before the memory. */
typedef struct dpari_object_head {
    dpar_comm *comm;
    int64_t pages; /* bytes of the host's pages, this header included; 0 if from dpar_comm_alloc */
} dpari_object_head;

DPARI_API DPARI_COLD void *dpari_object_alloc(dpar_comm *comm, int64_t bytes)
{
    const int64_t all = bytes + DPARI_ROOM_ALIGN;
    void *at = NULL;
    int64_t pages = 0;
    dpari_object_head *m;
    if (comm == NULL || comm->mem != NULL) {
        at = dpari_os_pages(all);
        pages = all;
    } else if (dpar_comm_alloc(comm, all, &at) != DPAR_OK) {
        at = NULL;
    }
    if (at == NULL) {
        return NULL;
    }
    m = (dpari_object_head *)at;
    m->comm = comm;
    m->pages = pages;
    return (unsigned char *)at + DPARI_ROOM_ALIGN;
}

DPARI_API DPARI_COLD void dpari_object_release(void *memory)
{
    if (memory != NULL) {
        dpari_object_head *m =
            (dpari_object_head *)(void *)((unsigned char *)memory - DPARI_ROOM_ALIGN);
        if (m->pages > 0) {
            dpari_os_unmap(m, m->pages);
        } else {
            dpar_comm_release(m->comm, m);
        }
    }
}

DPARI_API DPARI_COLD dpar_status dpari_object_end(dpar_status st, void *memory)
{
    dpari_object_release(memory);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_object_memory(dpar_comm *comm, void *given, int64_t bytes,
                                                     int64_t need, const char *module,
                                                     void **memory, dpar_why *why)
{
    const int64_t past = (int64_t)((uintptr_t)given % DPARI_ROOM_ALIGN);
    if (given == NULL && bytes == 0) {
        *memory = dpari_object_alloc(comm, need);
        if (*memory == NULL) {
            return dpari_say(DPAR_E_MEMORY, why, "%s: no memory for %ld bytes", module, need);
        }
        return DPAR_OK;
    }
    *memory = given;
    if (given != NULL && past == 0 && bytes >= need) {
        return DPAR_OK;
    }
    return dpari_say(
        DPAR_E_ROOM, why,
        "%s: desc.memory must have %ld bytes at a multiple of 64, but has %ld bytes and begins %ld "
        "bytes past one",
        module, need, given != NULL ? bytes : 0, past);
}

DPARI_API DPARI_COLD dpar_status dpari_object_failed(dpar_status st, const void *given,
                                                     void *memory, int64_t need, dpar_why *why)
{
    if (given == NULL) {
        dpari_object_release(memory);
    }
    if (st == DPAR_E_ROOM) {
        dpari_needs_bytes(why, need);
    }
    return st;
}
