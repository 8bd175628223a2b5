/* SPDX-License-Identifier: MIT-0 */
#include "fsdp_arrays.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../host/elements.h"
#include "fsdp_place.h"

/* Returns the caller's pointer, whose type (such as float *) the library does not know. */
static unsigned char *dpari_fsdp_pointer(void *const *pointer)
{
    unsigned char *at = NULL;
    if (pointer != NULL) {
        dpari_elements_bits(&at, pointer, sizeof at);
    }
    return at;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_check_arrays(const dpar_fsdp *fsdp, dpar_why *why)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t each = dpar_type_bytes(desc->type);
    int32_t i, k;
    for (i = 0; i < desc->arrays; i++) {
        const dpar_fsdp_array *a = &desc->array[i];
        const uintptr_t begin = (uintptr_t)dpari_fsdp_pointer(a->weights);
        const uintptr_t end = begin + (uintptr_t)(a->count * dpari_fsdp_slices(a) * each);
        for (k = 0; k < i; k++) {
            const dpar_fsdp_array *b = &desc->array[k];
            const uintptr_t other = (uintptr_t)dpari_fsdp_pointer(b->weights);
            const uintptr_t other_end = other + (uintptr_t)(b->count * dpari_fsdp_slices(b) * each);
            if ((a->weights != NULL && a->weights == b->weights) ||
                (a->gradients != NULL && a->gradients == b->gradients) ||
                (begin != 0 && other != 0 && begin < other_end && other < end)) {
                return dpari_wrong(
                    why,
                    "dpar_fsdp_make: arrays %d and %d overlap or have the same pointer, but a "
                    "weight that several layers use must be listed once, in a resident unit",
                    k, i);
            }
        }
    }
    return DPAR_OK;
}

/* Returns the bytes from slice 0 of parameter i's array to the parameter. */
static uintptr_t dpari_fsdp_before(const dpar_fsdp *fsdp, int32_t i, int32_t type)
{
    const int64_t slice = fsdp->home[i] - fsdp->array[fsdp->array_of[i]].unit;
    return (uintptr_t)(slice * fsdp->count[i] * dpar_type_bytes(type));
}

DPARI_INTERNAL DPARI_COLD const void *dpari_fsdp_first_values(const dpar_fsdp *fsdp, int32_t i)
{
    const unsigned char *values = dpari_fsdp_pointer(fsdp->array[fsdp->array_of[i]].weights);
    return values != NULL ? values + dpari_fsdp_before(fsdp, i, fsdp->desc.type) : NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_point(const dpar_fsdp *fsdp, int32_t u, int32_t gradients,
                                                int32_t available)
{
    const dpari_fsdp_unit *unit = &fsdp->unit[u];
    const int32_t place = gradients ? unit->bucket : unit->slot;
    int32_t i, type = fsdp->desc.compute_type;
    const unsigned char *whole;
    if (place < 0 || fsdp->desc.arrays == 0) {
        return;
    }
    whole = dpari_fsdp_slot_at(fsdp, place);
    if (gradients) {
        whole = dpari_fsdp_bucket_at(fsdp, place);
        type = fsdp->desc.gradient_type;
    }
    for (i = unit->first; i < unit->last; i++) {
        const dpar_fsdp_array *a = &fsdp->array[fsdp->array_of[i]];
        void **pointer = gradients ? a->gradients : a->weights;
        /* the address of slice 0, if it were in the memory before this slice */
        uintptr_t at = (uintptr_t)(whole + fsdp->start[i] * dpar_type_bytes(type)) -
                       dpari_fsdp_before(fsdp, i, type);
        if (pointer == NULL || (!available && (uintptr_t)dpari_fsdp_pointer(pointer) != at)) {
            continue;
        }
        at = available ? at : 0;
        dpari_elements_bits(pointer, &at, sizeof at);
    }
}
