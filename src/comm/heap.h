/* SPDX-License-Identifier: MIT-0 */
/* heap - private: the heaps of a world, whose memory all ranks reach by refs (world.h). */
#ifndef DPARI_COMM_HEAP_H
#define DPARI_COMM_HEAP_H

#include "world.h"

/* True if the addresses [low, high) are within one allocation of this rank, or outside its heap. If
 * not, *within is the number of bytes of the allocation that holds low, or 0 if none does. Costs
 * O(log allocations). */
DPARI_API int dpari_heap_holds(const dpari_world *world, int64_t low, int64_t high,
                               int64_t *within);
/* Returns the ref of `at`, or 0 if [at, at + bytes) is not within an extent of this rank's heap. */
DPARI_API uint64_t dpari_ref(const dpari_world *world, const void *at, int64_t bytes);
/* Returns this rank's address of a ref, or NULL if no addresses are left to map the extent. */
DPARI_API void *dpari_at(const dpari_world *world, uint64_t ref);
/* Appends why dpari_at returned NULL: "mapping 4194304 bytes of rank 3's memory: out of addresses
 * (...)". */
DPARI_API void dpari_put_unmapped(dpar_text *text, const dpari_world *world, uint64_t ref);

/* ---- of this header's own modules ---- */

/* Returns the offset in the file at which the range for this rank's heap begins. */
DPARI_INTERNAL int64_t dpari_part_begin(const dpari_world *world);
/* What memory of a heap is for. Scratch memory is not zeroed. Only user memory is in core files.
 * The library's own memory does not count against heap_bytes. */
enum { DPARI_HEAP_LIBRARY, DPARI_HEAP_USER, DPARI_HEAP_SCRATCH };
/* Allocates memory in this rank's heap, which all ranks can reach. purpose: DPARI_HEAP_x. Fails
 * with DPAR_E_MEMORY and sets world->lacks and world->number. */
DPARI_INTERNAL dpar_status dpari_heap_alloc(dpari_world *world, int64_t bytes, int purpose,
                                            void **memory);
/* Releases memory. Some user and scratch memory is kept for later allocations, which then take no
 * new memory from the system and cause no page faults. */
DPARI_INTERNAL void dpari_heap_release(dpari_world *world, void *memory);
/* Appends the reason of the last failed allocation, with numbers. If world is NULL or world->lacks
 * is DPARI_LACKS_NOTHING, private memory could not be allocated. */
DPARI_INTERNAL void dpari_put_lack(dpar_text *text, const dpari_world *world);

#endif
