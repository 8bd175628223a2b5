/* SPDX-License-Identifier: MIT-0 */
#include "made.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/os.h"

/* What lies before the memory. */
typedef struct dpari_made {
    dpar_comm *c;
    int64_t pages; /* bytes of its own pages; 0: of dpar_comm_alloc */
} dpari_made;

DPARI_API DPARI_COLD dpar_status dpari_made_take(dpar_comm *c, int64_t bytes, void **memory)
{
    const int64_t all = bytes + DPARI_ROOM_ALIGN;
    void *at = NULL;
    dpar_status st = DPAR_OK;
    if (c->mem == NULL) {
        st = dpar_comm_alloc(c, all, &at);
    } else {
        at = dpari_os_pages(all);
        st = at != NULL ? DPAR_OK : DPAR_E_MEMORY;
    }
    if (st == DPAR_OK) {
        dpari_made *m = (dpari_made *)at;
        m->c = c;
        m->pages = c->mem != NULL ? all : 0;
        *memory = (unsigned char *)at + DPARI_ROOM_ALIGN;
    }
    return st;
}

DPARI_API DPARI_COLD void dpari_made_give(void *memory)
{
    if (memory != NULL) {
        dpari_made *m = (dpari_made *)(void *)((unsigned char *)memory - DPARI_ROOM_ALIGN);
        if (m->pages > 0) {
            dpari_os_unmap(m, m->pages);
        } else {
            dpar_comm_release(m->c, m);
        }
    }
}

DPARI_API DPARI_COLD dpar_status dpari_made_plan(dpar_comm *c, dpar_status st, int64_t bytes,
                                                 void **memory, dpar_why *why)
{
    if (st == DPAR_OK) {
        st = dpari_made_take(c, bytes, memory);
        if (st != DPAR_OK) {
            (void)dpari_say(st, why, "no memory for a plan of # B", bytes, 0, 0, 0);
        }
    }
    return dpari_agree(c, st, why);
}
