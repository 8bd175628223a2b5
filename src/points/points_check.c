/* SPDX-License-Identifier: MIT-0 */
/* Checks the ghosts of vectors: sets them to NaN, finds those that are still NaN, or compares them
 * with their owners' values. It implements dpar_points_check.
 *
 * To compare, it exchanges into a copy of the ghosts and looks for the first difference. */
#include "points_check.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "points.h"

/* Returns the address of an element of a vector. */
static unsigned char *dpari_pt_number(const dpar_points *p, const dpar_points_field *v,
                                      int64_t index, int32_t component)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    const int64_t n = v->components > 0 ? v->components : 1;
    const int64_t stride = v->stride > 0 ? v->stride : v->component_stride <= 1 ? n : 1;
    const int64_t apart = v->component_stride > 0 ? v->component_stride : 1;
    const int64_t within = component * apart;
    return index < p->own_count || !v->ghosts
               ? (unsigned char *)v->data + bytes * (index * stride + within)
               : (unsigned char *)v->ghosts + bytes * ((index - p->own_count) * stride + within);
}

static int dpari_pt_is_poison(const unsigned char *at, int64_t bytes)
{
    int64_t i;
    for (i = 0; i < bytes && at[i] == 0xff; i++) {
    }
    return i == bytes;
}

/* All bits 1: a NaN of any float. The first poisoned number of a vector in [from, to); -1: none.
 * write: makes all so instead. */
static int64_t dpari_pt_poison(const dpar_points *p, const dpar_points_field *v, int64_t from,
                               int64_t to, int write)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    int64_t i, b;
    int32_t k;
    for (i = from; i < to; i++) {
        for (k = 0; k < (v->components > 0 ? v->components : 1); k++) {
            unsigned char *at = dpari_pt_number(p, v, i, k);
            for (b = 0; b < bytes && write; b++) {
                at[b] = 0xff;
            }
            if (!write && dpari_pt_is_poison(at, bytes)) {
                return i;
            }
        }
    }
    return -1;
}

static dpar_status dpari_pt_unfilled(const dpar_points *p, const dpar_points_field *v, int32_t n,
                                     dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        const int64_t at =
            dpari_pt_poison(p, &v[i], p->own_count, p->own_count + p->ghost_count, 0);
        if (at >= 0 && dpari_pt_poison(p, &v[i], 0, p->own_count, 0) < 0) {
            return dpari_wrong(why,
                               "vector %d: ghost %ld, local index %ld of rank %d, is not filled", i,
                               at - p->own_count, at, p->comm->rank);
        }
    }
    return DPAR_OK;
}

/* Returns the first ghost of a vector that differs from the value that was received, or -1. */
static int64_t dpari_pt_stale(const dpar_points *p, const dpar_points_field *v,
                              const dpar_points_field *copy)
{
    const int64_t bytes = dpar_type_bytes(v->type);
    int64_t i, b;
    int32_t k;
    for (i = p->own_count; i < p->own_count + p->ghost_count; i++) {
        for (k = 0; k < (v->components > 0 ? v->components : 1); k++) {
            const unsigned char *here = dpari_pt_number(p, v, i, k);
            const unsigned char *came = dpari_pt_number(p, copy, i, k);
            for (b = 0; b < bytes; b++) {
                if (here[b] != came[b]) {
                    return i;
                }
            }
        }
    }
    return -1;
}

/* One vector at a time: own values as they lie, ghosts into a dense copy of the same strides. */
static dpar_status dpari_pt_compare(dpar_points *p, const dpar_points_field *v, int32_t i,
                                    dpar_why *why)
{
    dpar_points_field copy = *v;
    const int64_t n = v->components > 0 ? v->components : 1;
    const int64_t stride = v->stride > 0 ? v->stride : v->component_stride <= 1 ? n : 1;
    const int64_t apart = v->component_stride > 0 ? v->component_stride : 1;
    const int64_t numbers =
        (p->ghost_count > 0 ? p->ghost_count - 1 : 0) * stride + (n - 1) * apart + 1;
    int64_t at = -1;
    dpar_status st = dpar_comm_alloc(p->comm, numbers * dpar_type_bytes(v->type), &copy.ghosts);
    st = dpari_agree(p->comm, st, NULL);
    st = st == DPAR_OK ? dpar_points_exchange_many(p, &copy, 1) : st;
    if (st == DPAR_OK) {
        at = dpari_pt_stale(p, v, &copy);
    } else {
        st = dpari_repeat(st, why, p->comm->why.text);
    }
    if (at >= 0) {
        st = dpari_say(DPAR_E_MISMATCH, why,
                       "vector %d: ghost %ld, local index %ld of rank %d, is not its owner's value",
                       i, at - p->own_count, at, p->comm->rank);
    }
    dpar_comm_release(p->comm, copy.ghosts);
    return dpari_agree(p->comm, st, why);
}

/* Vectors as an exchange would take them. */
static dpar_status dpari_pt_check_named(const dpar_points *p, const dpar_points_field *v, int32_t n,
                                        dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        if (dpar_type_bytes(v[i].type) == 0 || v[i].components < 0 || v[i].stride < 0 ||
            v[i].component_stride < 0 ||
            (!v[i].data && (p->own_count > 0 || !v[i].ghosts) &&
             p->own_count + p->ghost_count > 0)) {
            return dpari_wrong(why, "vector %d: %d components of %s, or data is NULL", i,
                               v[i].components, dpar_type_name(v[i].type));
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_check(dpar_points *p, const dpar_points_field *v,
                                                  int32_t n, int32_t what, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    if (!p || n < 0 || (n > 0 && !v) || what < DPAR_POINTS_POISON || what > DPAR_POINTS_STALE) {
        return dpari_wrong(why, "points: check %d of %d vectors", what, n);
    }
    st = dpari_pt_check_named(p, v, n, why);
    st = what == DPAR_POINTS_STALE ? dpari_agree(p->comm, st, why) : st;
    if (st == DPAR_OK && what == DPAR_POINTS_UNFILLED) {
        return dpari_pt_unfilled(p, v, n, why);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        if (what == DPAR_POINTS_POISON) {
            (void)dpari_pt_poison(p, &v[i], p->own_count, p->own_count + p->ghost_count, 1);
        } else {
            st = dpari_pt_compare(p, &v[i], i, why);
        }
    }
    return st;
}
