/* SPDX-License-Identifier: MIT-0 */
/* Checks the ghosts of vectors: sets them to NaN, finds those that are still NaN, or compares them
 * with their owners' values. It implements dpar_points_check.
 *
 * To compare, it exchanges into a copy of the ghosts and looks for the first difference. */
#include "points_check.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "points.h"
#include "points_plan.h"

/* Returns the address of an element of a vector. */
static unsigned char *dpari_pt_number(const dpar_points *points, const dpar_points_field *field,
                                      int64_t index, int32_t component)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    const int64_t stride = dpari_pt_stride(field);
    const int64_t apart = field->component_stride > 0 ? field->component_stride : 1;
    const int64_t within = component * apart;
    const dpari_points *plan = dpari_pt_of(points);
    if (!field->ghosts || index < plan->first_ghost ||
        (plan->mixed && !dpari_pt_is_received(plan, index))) {
        return (unsigned char *)field->data + bytes * (index * stride + within);
    }
    return (unsigned char *)field->ghosts + bytes * ((index - plan->first_ghost) * stride + within);
}

/* True if all bits of a number are 1, which is a NaN in every type of floats. */
static int dpari_pt_is_poison(const unsigned char *at, int64_t bytes)
{
    int64_t i;
    for (i = 0; i < bytes && at[i] == 0xff; i++) {
    }
    return i == bytes;
}

/* Returns the first index of a vector that has a poisoned number, or -1 if there is none. With
 * write 1, poisons all numbers instead.
 *
 * received: 1 selects the ghosts that exchanges set, 0 all other values. */
static int64_t dpari_pt_poison(const dpar_points *points, const dpar_points_field *field,
                               int received, int write)
{
    const int64_t bytes = dpar_type_bytes(field->type);
    int64_t i, b;
    int32_t k;
    for (i = 0; i < points->own_count + points->ghost_count; i++) {
        if (dpari_pt_is_received(dpari_pt_of(points), i) != received) {
            continue;
        }
        for (k = 0; k < dpari_pt_components(field); k++) {
            unsigned char *at = dpari_pt_number(points, field, i, k);
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

/* Finds a poisoned ghost. Vectors with poisoned own values are left out, because their ghosts may
 * have received such a value. */
static dpar_status dpari_pt_unfilled(const dpar_points *points, const dpar_points_field *fields,
                                     int32_t n, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        const int64_t at = dpari_pt_poison(points, &fields[i], 1, 0);
        if (at >= 0 && dpari_pt_poison(points, &fields[i], 0, 0) < 0) {
            return dpari_wrong(why,
                               "vector %d: ghost %ld, local index %ld of rank %d, is not filled", i,
                               at - dpari_pt_of(points)->first_ghost, at, points->comm->rank);
        }
    }
    return DPAR_OK;
}

/* Returns the first ghost of a vector that differs from the value that was received, or -1. */
static int64_t dpari_pt_stale(const dpar_points *points, const dpar_points_field *field,
                              const dpar_points_field *copy)
{
    const dpari_points *plan = dpari_pt_of(points);
    const int64_t bytes = dpar_type_bytes(field->type);
    int64_t i, b;
    int32_t k;
    for (i = 0; i < points->own_count + points->ghost_count; i++) {
        for (k = 0; k < dpari_pt_components(field) && dpari_pt_is_received(plan, i); k++) {
            const unsigned char *here = dpari_pt_number(points, field, i, k);
            const unsigned char *came = dpari_pt_number(points, copy, i, k);
            for (b = 0; b < bytes; b++) {
                if (here[b] != came[b]) {
                    return i;
                }
            }
        }
    }
    return -1;
}

/* Exchanges vector i into a copy of its ghosts, which has the same strides, and compares the ghosts
 * with the copy. Own values are not copied. Collective. */
static dpar_status dpari_pt_compare(dpar_points *points, const dpar_points_field *field, int32_t i,
                                    dpar_why *why)
{
    dpar_points_field copy = *field;
    const int64_t n = dpari_pt_components(field);
    const int64_t stride = dpari_pt_stride(field);
    const int64_t apart = field->component_stride > 0 ? field->component_stride : 1;
    const int64_t first = dpari_pt_of(points)->first_ghost;
    const int64_t ghosts = dpari_most(points->own_count + points->ghost_count - first, 1);
    const int64_t numbers = (ghosts - 1) * stride + (n - 1) * apart + 1;
    int64_t at = -1;
    dpar_status status =
        dpar_comm_alloc(points->comm, numbers * dpar_type_bytes(field->type), &copy.ghosts);
    status = dpari_agree(points->comm, status, NULL);
    if (status == DPAR_OK) {
        status = dpar_points_exchange_many(points, &copy, 1);
    }
    if (status == DPAR_OK) {
        at = dpari_pt_stale(points, field, &copy);
    } else {
        status = dpari_repeat(status, why, points->comm->why.text);
    }
    if (at >= 0) {
        status =
            dpari_say(DPAR_E_MISMATCH, why,
                      "vector %d: ghost %ld, local index %ld of rank %d, is not its owner's value",
                      i, at - first, at, points->comm->rank);
    }
    dpar_comm_release(points->comm, copy.ghosts);
    return dpari_agree(points->comm, status, why);
}

/* Checks the descriptions of vectors as an exchange does. */
static dpar_status dpari_pt_check_named(const dpar_points *points, const dpar_points_field *fields,
                                        int32_t n, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        if (dpar_type_bytes(fields[i].type) == 0 || fields[i].components < 0 ||
            fields[i].stride < 0 || fields[i].component_stride < 0 ||
            (!fields[i].data && (points->own_count > 0 || !fields[i].ghosts) &&
             points->own_count + points->ghost_count > 0)) {
            return dpari_wrong(
                why, "vector %d: components %d, type %s or stride is wrong, or data is NULL", i,
                fields[i].components, dpar_type_name(fields[i].type));
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_check(dpar_points *points,
                                                  const dpar_points_field *fields, int32_t n,
                                                  int32_t what, dpar_why *why)
{
    dpar_status status;
    int32_t i;
    if (!points || n < 0 || (n > 0 && !fields) || what < DPAR_POINTS_POISON ||
        what > DPAR_POINTS_STALE) {
        return dpari_wrong(
            why,
            "dpar_points_check: points or fields is NULL, what %d is not 1 to 3, or count is %d",
            what, n);
    }
    status = dpari_pt_check_named(points, fields, n, why);
    if (what == DPAR_POINTS_STALE) { /* collective, so that all ranks must return */
        status = dpari_agree(points->comm, status, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (what == DPAR_POINTS_UNFILLED) {
        return dpari_pt_unfilled(points, fields, n, why);
    }
    for (i = 0; i < n; i++) {
        if (what == DPAR_POINTS_POISON) {
            (void)dpari_pt_poison(points, &fields[i], 1, 1);
            continue;
        }
        status = dpari_pt_compare(points, &fields[i], i, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}
