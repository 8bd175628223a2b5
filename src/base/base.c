/* SPDX-License-Identifier: MIT-0 */
/* Returns the texts of the statuses. They come from DPAR_STATUS_LIST, so that the list exists only
 * once. */
#include "base.h"

#include "arith.h"

DPAR_API DPARI_COLD const char *dpar_status_text(dpar_status status)
{
    switch (status) {
#define DPARI_STATUS_CASE(name, value, text)                                                       \
    case DPAR_##name: return text;
        DPAR_STATUS_LIST(DPARI_STATUS_CASE)
#undef DPARI_STATUS_CASE
    default: return "unknown status";
    }
}
