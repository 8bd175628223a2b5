/* SPDX-License-Identifier: MIT-0 */
/* Describes the own points of an array of a grid as a box, whose last dim is for components. */
#include "exact_grid.h"

#include "../comm/agree.h"
#include "../halo/grid_object.h"
#include "exact_ranks.h"

/* Describes the points of x, and of y if it is not NULL. first: first component, of `count`. */
static DPARI_COLD dpar_status dpari_ex_grid_box(const dpar_grid *grid, const dpar_grid_field *field,
                                                int32_t first, int32_t count, dpar_exact_term *term)
{
    dpar_grid_part part;
    int64_t start = 0;
    int32_t d;
    const dpar_status status = dpar_grid_block(grid, field, &part);
    if (status < 0) {
        return status;
    }
    term->dims = grid->dims + 1;
    for (d = 0; d < grid->dims; d++) {
        term->extent[d] = part.count[d];
        term->x_stride[d] = term->y_stride[d] = part.stride[d];
        start += part.local_start[d] * part.stride[d];
    }
    term->extent[d] = count;
    term->x_stride[d] = term->y_stride[d] = part.component_stride;
    if (!dpari_gx_desc_of(grid)->array_start) {
        start = 0;
    }
    start = (start + first * part.component_stride) * dpar_type_bytes(term->type);
    if (term->x) {
        term->x = (const unsigned char *)term->x + start;
    }
    if (term->y) {
        term->y = (const unsigned char *)term->y + start;
    }
    return DPAR_OK;
}

static int32_t dpari_ex_components(const dpar_grid_field *field)
{
    return field && field->components > 0 ? field->components : 1;
}

/* Computes one term over all components. */
static DPARI_COLD dpar_status dpari_ex_grid_one(dpar_grid *grid, dpar_exact_term term,
                                                const dpar_grid_field *field, double *result)
{
    dpar_status status;
    dpar_why why;
    if (!grid || !grid->comm) {
        return DPAR_E_ARG;
    }
    status = dpari_ex_grid_box(grid, field, 0, dpari_ex_components(field), &term);
    if (status < 0) {
        (void)dpari_say(status, &why, "exact: the grid does not allow this field");
    }
    return dpari_ex_many(grid->comm, status, &why, &term, 1, result);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_sum(dpar_grid *grid, const void *x, int32_t type,
                                                    const dpar_grid_field *field, double *sums)
{
    const int32_t components = dpari_ex_components(field);
    dpar_exact_term terms[DPAR_EXACT_TERMS];
    dpar_status status = DPAR_OK;
    dpar_why why;
    int32_t first, i;
    if (!grid || !grid->comm) {
        return DPAR_E_ARG;
    }
    for (first = 0; first < components && status == DPAR_OK; first += DPAR_EXACT_TERMS) {
        const int32_t count = (int32_t)dpari_least(components - first, DPAR_EXACT_TERMS);
        for (i = 0; i < count; i++) {
            dpar_status boxed;
            terms[i] = dpar_exact_sum_of(x, 0, type);
            boxed = dpari_ex_grid_box(grid, field, first + i, 1, &terms[i]);
            if (boxed < 0) {
                status = dpari_say(boxed, &why, "exact: the grid does not allow this field");
            }
        }
        status = dpari_ex_many(grid->comm, status, &why, terms, count, sums ? sums + first : NULL);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_dot(dpar_grid *grid, const void *x, const void *y,
                                                    int32_t type, const dpar_grid_field *field,
                                                    double *dot)
{
    return dpari_ex_grid_one(grid, dpar_exact_dot_of(x, y, 0, type), field, dot);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_norm(dpar_grid *grid, const void *x, int32_t type,
                                                     const dpar_grid_field *field, double *norm)
{
    return dpari_ex_grid_one(grid, dpar_exact_norm_of(x, 0, type), field, norm);
}

DPAR_API DPARI_COLD dpar_status dpar_exact_grid_term(const dpar_grid *grid, const void *x,
                                                     int32_t type, const dpar_grid_field *field,
                                                     dpar_exact_term *term)
{
    dpar_exact_term made = dpar_exact_sum_of(x, 0, type);
    const dpar_status status =
        term ? dpari_ex_grid_box(grid, field, 0, dpari_ex_components(field), &made) : DPAR_E_ARG;
    if (status == DPAR_OK) {
        *term = made;
    }
    return status;
}
