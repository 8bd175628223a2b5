/* SPDX-License-Identifier: MIT-0 */
/* halo_apart - have two arrays of a plan an element in common? Private. */
#ifndef DPARI_HALO_HALO_APART_H
#define DPARI_HALO_HALO_APART_H

#include "halo_plan.h"

/* Has the rank no cell of a field in so many bytes, no element of one field in another's? E_ARG.
 * span: four a field, where its parts begin and end. */
DPARI_API dpar_status dpari_hx_clear_of(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                        const void *memory, int64_t bytes, dpar_why *why);
DPARI_API dpar_status dpari_hx_disjoint(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                        int64_t *span, dpar_why *why);

#endif
