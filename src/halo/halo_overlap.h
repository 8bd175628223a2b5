/* SPDX-License-Identifier: MIT-0 */
/* halo_overlap - checks that no two arrays of a plan have an element in common. Private. */
#ifndef DPARI_HALO_HALO_OVERLAP_H
#define DPARI_HALO_HALO_OVERLAP_H

#include "halo_plan.h"

/* The first function checks that no element of a field is in the plan's memory, the second that no
 * two fields have an element in common. Otherwise they fail with DPAR_E_ARG and a message. Local.
 *
 * span: [4 * n], receives four addresses per field: where its data begins and ends, then where its
 *       compact halo begins and ends. */
DPARI_INTERNAL dpar_status dpari_hx_clear_of(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                             const void *memory, int64_t bytes, dpar_why *why);
DPARI_INTERNAL dpar_status dpari_hx_disjoint(const dpar_halo_field *fields, int32_t n, int32_t rank,
                                             int64_t *span, dpar_why *why);

#endif
