/* SPDX-License-Identifier: MIT-0 */
/* pencil_run - runs transposes. Private. */
#ifndef DPARI_PENCIL_PENCIL_RUN_H
#define DPARI_PENCIL_PENCIL_RUN_H

#include "pencil_plan.h"

/* Sets the functions that ../exchange calls. */
DPARI_INTERNAL void dpari_pencil_set_functions(dpari_pencil *plan);

#endif
