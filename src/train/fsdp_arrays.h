/* SPDX-License-Identifier: MIT-0 */
/* fsdp_arrays - private: the caller's arrays (desc.array), their first values, and the pointers
 * that follow the unit in use. */
#ifndef DPARI_TRAIN_FSDP_ARRAYS_H
#define DPARI_TRAIN_FSDP_ARRAYS_H

#include "fsdp_place.h"

/* Checks that no two arrays share values or pointers. Reads the pointers. */
DPARI_INTERNAL dpar_status dpari_fsdp_check_arrays(const dpar_fsdp *fsdp, dpar_why *why);
/* Returns the first values of parameter i, to which its array's pointer points before the first
 * unshard. Returns NULL if there are none. */
DPARI_INTERNAL const void *dpari_fsdp_first_values(const dpar_fsdp *fsdp, int32_t i);
/* Sets the pointers of the arrays of unit u to its weights, or to its gradients if gradients is 1.
 * The unit must have a slot or a bucket.
 *
 * available: 1 before their use. 0 after it: sets the pointers to NULL, unless they point to
 * another unit by now. */
DPARI_INTERNAL void dpari_fsdp_point(const dpar_fsdp *fsdp, int32_t u, int32_t gradients,
                                     int32_t available);

#endif
