/* SPDX-License-Identifier: MIT-0 */
/* points_run - packs and takes the values of exchanges. Private. */
#ifndef DPARI_POINTS_POINTS_RUN_H
#define DPARI_POINTS_POINTS_RUN_H

#include "points_plan.h"

/* Sets the functions that ../exchange calls. The peers must be known. */
DPARI_INTERNAL void dpari_pt_set_functions(dpari_points *plan);

#endif
