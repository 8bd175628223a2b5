/* SPDX-License-Identifier: MIT-0 */
#include "base.h"

DPAR_API const char *dpar_status_text(dpar_status status)
{
    switch (status) {
#define DPARI_STATUS_CASE(name, value, text)                                                       \
    case DPAR_##name: return text;
        DPAR_STATUS_LIST(DPARI_STATUS_CASE)
#undef DPARI_STATUS_CASE
    default: return "unknown status";
    }
}

DPAR_API int32_t dpar_features(void)
{
    int32_t bits = 0;
#ifndef DPAR_NO_COST
    bits |= DPAR_FEATURE_COST;
#endif
#ifndef DPAR_NO_SHOW
    bits |= DPAR_FEATURE_SHOW;
#endif
#if DPARI_RUN
    bits |= DPAR_FEATURE_RUN;
#endif
    return bits;
}
