/* SPDX-License-Identifier: MIT-0 */
/* halo_run - packs and takes the boxes of exchanges. Private. */
#ifndef DPARI_HALO_HALO_RUN_H
#define DPARI_HALO_HALO_RUN_H

#include "halo_plan.h"

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_hx_set_functions(dpar_halo_plan *plan);

#endif
