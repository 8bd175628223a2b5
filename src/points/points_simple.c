/* SPDX-License-Identifier: MIT-0 */
/* Makes plans that own their memory, and exchanges vectors of doubles. All work is done by points.c
 * and points_run.c. */
#include "points_simple.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/simple.h"
#include "points.h"

DPAR_API DPARI_COLD dpar_status dpar_points_make_of(dpar_comm *comm, const dpar_points_desc *d,
                                                    dpar_points **plan, dpar_why *why)
{
    int64_t bytes = 0;
    void *memory = NULL;
    dpar_status st = dpar_points_bytes(comm, d, &bytes, why);
    if (!comm) {
        return st;
    }
    if (st == DPAR_OK) {
        st = dpar_comm_alloc(comm, bytes, &memory);
        st = st == DPAR_OK
                 ? st
                 : dpari_say_word(st, why, "@", comm->why.text, sizeof comm->why.text, 0, 0, 0, 0);
    }
    st = dpari_agree_on(comm, st, "points", NULL, NULL,
                        why); /* before init, which a rank without memory does not call */
    st = st == DPAR_OK ? dpar_points_init(memory, bytes, comm, d, plan, why) : st;
    if (st != DPAR_OK) {
        dpar_comm_release(comm, memory);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_points_make(dpar_comm *comm, const int64_t *own, int64_t n,
                                                 const int64_t *ghosts, int64_t m,
                                                 dpar_points **plan, dpar_why *why)
{
    dpar_points_desc d;
    dpari_zero(&d, sizeof d);
    d.own = n;
    d.own_id = own;
    d.ghosts = m;
    d.ghost_id = ghosts;
    return dpar_points_make_of(comm, &d, plan, why);
}

DPAR_API DPARI_COLD void *dpar_points_array(dpar_points *p, int32_t type, int32_t components)
{
    void *memory = NULL;
    int64_t bytes;
    if (!p) {
        return NULL;
    }
    if (components < 0 || dpar_type_bytes(type) == 0 ||
        !dpari_mul(p->own + p->ghosts,
                   dpar_type_bytes(type) * (int64_t)(components > 0 ? components : 1), &bytes)) {
        (void)dpari_comm_wrong_word(p->comm, DPAR_E_ARG, "an array of # components of @",
                                    dpar_type_name(type), 8, components, 0, 0, 0);
        return NULL;
    }
    (void)dpar_comm_alloc(p->comm, bytes, &memory); /* NULL if it fails */
    return memory;
}

/* x as the one vector of an exchange. */
static dpar_points_field dpari_pt_doubles(double *x)
{
    dpar_points_field v;
    dpari_zero(&v, sizeof v);
    v.type = DPAR_F64;
    v.data = x;
    return v;
}

DPAR_API dpar_status dpar_points_exchange(dpar_points *p, double *x)
{
    const dpar_points_field v = dpari_pt_doubles(x);
    return dpar_points_exchange_many(p, &v, 1);
}

DPAR_API dpar_status dpar_points_reduce(dpar_points *p, double *x)
{
    const dpar_points_field v = dpari_pt_doubles(x);
    const dpar_status st = dpar_points_reduce_begin(p, &v, 1, DPAR_SUM);
    return st == DPAR_OK ? dpar_points_end(p) : st;
}

DPAR_API DPARI_COLD dpar_status dpar_points_free(dpar_points *p)
{
    dpar_comm *c = p ? p->comm : NULL;
    const dpar_status st = dpar_points_close(p);
    if (p && st != DPAR_E_ARG) {
        dpar_comm_release(c, p);
    }
    return st;
}
