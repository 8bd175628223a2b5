/* SPDX-License-Identifier: MIT-0 */
/* exact_grid - computes exact sums over the own points of a grid. Available if dpar_halo.h was
 * included before dpar_exact.h.
 *
 *     dpar_exact_grid_sum(grid, h, DPAR_F64, NULL, &mass);
 *     dpar_exact_grid_norm(grid, residual, DPAR_F64, NULL, &norm);
 *
 * Halo cells do not count, and a face that two blocks share counts once. Arrays need not be
 * attached. Their address is that of the first own point or, with desc.array_start, of the first
 * element, as in all calls of the grid; a rank without points may pass NULL. Arrays are in the
 * host's memory.
 *
 * field: where the points are, and how many components each has; NULL for cells with one component,
 *        dense in C order with the halo of the grid.
 *
 * Unless they say local, these functions are collective. Errors and cost are those of
 * dpar_exact_many; a field that the grid does not allow is DPAR_E_ARG too. */
#ifndef DPARI_EXACT_EXACT_GRID_H
#define DPARI_EXACT_EXACT_GRID_H

#include "../halo/grid.h"
#include "exact.h"

/* Computes the sum of the own points of all ranks, for each component.
 *
 * sums: [field->components], or 1 if field is NULL, receives the sums. */
DPAR_API dpar_status dpar_exact_grid_sum(dpar_grid *grid, const void *x, int32_t type,
                                         const dpar_grid_field *field, double *sums);
/* Computes the dot product of two arrays with the same points, over all components. */
DPAR_API dpar_status dpar_exact_grid_dot(dpar_grid *grid, const void *x, const void *y,
                                         int32_t type, const dpar_grid_field *field, double *dot);
/* Computes the square root of the sum of squares, over all components. */
DPAR_API dpar_status dpar_exact_grid_norm(dpar_grid *grid, const void *x, int32_t type,
                                          const dpar_grid_field *field, double *norm);
/* Describes the own points of an array as a term with all components, for dpar_exact_many. Set
 * term->kind and, for a dot product, term->y_stride to x_stride and term->y to the address of the
 * other array's first own point. Local. Fails with DPAR_E_ARG or DPAR_E_RANGE, without a message,
 * if the grid does not allow the field. */
DPAR_API dpar_status dpar_exact_grid_term(const dpar_grid *grid, const void *x, int32_t type,
                                          const dpar_grid_field *field, dpar_exact_term *term);

#endif
