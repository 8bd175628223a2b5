/* SPDX-License-Identifier: MIT-0 */
/* machines - machines and chips by name, and the default calibration of each generation. */
#ifndef DPARI_COST_MACHINES_H
#define DPARI_COST_MACHINES_H

#include "cluster.h"

/* Finds a machine by its name ("derecho", "dgx-h100"), in upper or lower case. *cluster is written
 * on success only. O(presets). Fails with DPAR_E_UNKNOWN; the message names the nearest machine. */
DPAR_API dpar_status dpar_cluster_find(dpar_cluster *cluster, const char *name, dpar_why *why);
/* Returns the name of machine number `index`, or NULL if there is none. Indices count from 0. The
 * text is static. O(1). */
DPAR_API const char *dpar_cluster_name(int32_t index);
/* Returns the name of chip number `index`, or NULL if there is none. Indices count from 0. To get
 * the chip itself, read the machine "1:NAME" with dpar_cluster_read and take its gpu. The text is
 * static. O(1). */
DPAR_API const char *dpar_gpu_name(int32_t index);

/* Sets the default constants of a generation, with their source, date and errors. An unknown
 * generation gets the constants of DPAR_GEN_OTHER. O(1). */
DPAR_API void dpar_calibration_init(dpar_calibration *cal, int32_t generation);

#endif
