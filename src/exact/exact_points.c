/* SPDX-License-Identifier: MIT-0 */
/* Describes the own values of a vector as a box of points and components. In a mixed array the box
 * has all places, and the term skips those that an exchange receives. */
#include "exact_points.h"

#include "../comm/agree.h"
#include "../points/points_plan.h"
#include "exact_ranks.h"

static void dpari_ex_points_strides(const dpar_points_field *field, int64_t *stride)
{
    stride[0] = dpari_pt_stride(field);
    stride[1] = dpari_most(field->component_stride, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_term(const dpar_points *points,
                                                       const dpar_points_field *x,
                                                       const dpar_points_field *y,
                                                       dpar_exact_term *term, dpar_why *why)
{
    dpari_points *plan;
    if (!points || !x || !term) {
        return dpari_wrong(why, "exact: points, x or term is NULL");
    }
    plan = dpari_pt_of(points);
    if (plan->shared.memory) {
        return dpari_wrong(why, "exact: a plan of shared ids has no own values");
    }
    if (x->components < 0) {
        return dpari_wrong(why, "exact: components is %d, but must not be negative", x->components);
    }
    if (y && (y->type != x->type || dpari_pt_components(y) != dpari_pt_components(x))) {
        return dpari_wrong(
            why,
            "exact: x has %d components of %s, y has %d of %s, but these must be the "
            "same",
            x->components, dpar_type_name(x->type), y->components, dpar_type_name(y->type));
    }
    *term = dpar_exact_sum_of(x->data, 0, x->type);
    term->dims = 2;
    term->extent[0] = points->own_count;
    term->extent[1] = dpari_pt_components(x);
    dpari_ex_points_strides(x, term->x_stride);
    if (y) {
        term->y = y->data;
        dpari_ex_points_strides(y, term->y_stride);
    }
    if (plan->mixed) {
        term->extent[0] += points->ghost_count;
        term->skip = plan->received;
    }
    return DPAR_OK;
}

/* Computes one term over all components. */
static DPARI_COLD dpar_status dpari_ex_points_one(dpar_points *points, const dpar_points_field *x,
                                                  const dpar_points_field *y, int32_t kind,
                                                  double *result)
{
    dpar_exact_term term = dpar_exact_sum_of(NULL, 0, x ? x->type : DPAR_TYPE_NONE);
    dpar_status status;
    dpar_why why;
    if (!points || !points->comm) {
        return DPAR_E_ARG;
    }
    status = dpar_exact_points_term(points, x, y, &term, &why);
    term.kind = kind;
    if (status == DPAR_OK && kind == DPAR_EXACT_DOT && !y) {
        status = dpari_wrong(&why, "exact: y is NULL");
    }
    return dpari_ex_many(points->comm, status, &why, &term, 1, result);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_sum(dpar_points *points,
                                                      const dpar_points_field *x, double *sums)
{
    const int32_t components = x ? dpari_pt_components(x) : 1;
    dpar_exact_term terms[DPAR_EXACT_TERMS];
    dpar_exact_term all = dpar_exact_sum_of(NULL, 0, x ? x->type : DPAR_TYPE_NONE);
    dpar_status status;
    dpar_why why;
    int32_t first = 0, i;
    if (!points || !points->comm) {
        return DPAR_E_ARG;
    }
    status = dpar_exact_points_term(points, x, NULL, &all, &why);
    do {
        const int32_t count = (int32_t)dpari_least(components - first, DPAR_EXACT_TERMS);
        for (i = 0; i < count; i++) {
            terms[i] = all;
            terms[i].extent[1] = 1;
            if (all.x) {
                terms[i].x = (const unsigned char *)all.x +
                             (first + i) * all.x_stride[1] * dpar_type_bytes(all.type);
            }
        }
        status =
            dpari_ex_many(points->comm, status, &why, terms, count, sums ? sums + first : NULL);
        first += count;
    } while (status == DPAR_OK && first < components);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_dot(dpar_points *points,
                                                      const dpar_points_field *x,
                                                      const dpar_points_field *y, double *dot)
{
    return dpari_ex_points_one(points, x, y, DPAR_EXACT_DOT, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_points_norm(dpar_points *points,
                                                       const dpar_points_field *x, double *norm)
{
    return dpari_ex_points_one(points, x, NULL, DPAR_EXACT_NORM, norm);
}
