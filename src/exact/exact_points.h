/* SPDX-License-Identifier: MIT-0 */
/* exact_points - computes exact sums over the own values of a plan of points. Available if
 * dpar_points.h was included before dpar_exact.h.
 *
 *     dpar_exact_points_dot(points, &r, &z, &rz);             r and z: dpar_points_field
 *
 * Ghosts do not count. In a mixed array, the places that an exchange receives do not count. Plans
 * of shared ids have no owners, and are refused with DPAR_E_ARG.
 *
 * Unless they say local, these functions are collective. Errors and cost are those of
 * dpar_exact_many. */
#ifndef DPARI_EXACT_EXACT_POINTS_H
#define DPARI_EXACT_EXACT_POINTS_H

#include "../points/points.h"
#include "exact.h"

/* Computes the sum of the own values of all ranks, for each component.
 *
 * sums: [x->components], or 1 if that is 0, receives the sums. */
DPAR_API dpar_status dpar_exact_points_sum(dpar_points *points, const dpar_points_field *x,
                                           double *sums);
/* Computes the dot product of two vectors of the same type, over all components. */
DPAR_API dpar_status dpar_exact_points_dot(dpar_points *points, const dpar_points_field *x,
                                           const dpar_points_field *y, double *dot);
/* Computes the square root of the sum of squares, over all components. */
DPAR_API dpar_status dpar_exact_points_norm(dpar_points *points, const dpar_points_field *x,
                                            double *norm);
/* Describes own values as a term with all components, for dpar_exact_many. Set term->kind.
 *
 * y: the second vector of a dot product, of the same type and components; may be NULL.
 *
 * Local. Fails with DPAR_E_ARG if the plan has shared ids, or types or components differ. */
DPAR_API dpar_status dpar_exact_points_term(const dpar_points *points, const dpar_points_field *x,
                                            const dpar_points_field *y, dpar_exact_term *term,
                                            dpar_why *why);

#endif
