/* SPDX-License-Identifier: MIT-0 */
/* inner - private: what the modules of index, and the rooms above, use of one another beyond what is
 * public. */
#ifndef DPARI_INDEX_INNER_H
#define DPARI_INDEX_INNER_H

#include "../base/inner.h"
#include "mesh.h"

/* The same ranks at the same coordinates, whatever the names? */
DPARI_API int dpari_mesh_same(const dpar_mesh *a, const dpar_mesh *b);
/* Does every rank have one coordinate only? For a mesh that the caller filled in by hand. Exact; as
 * quick as O(axes^2) for nested strides. */
DPARI_API int dpari_mesh_injective(const dpar_mesh *mesh);

#endif
