/* SPDX-License-Identifier: MIT-0 */
/* Queries which vectors the CPU has, and whether the system saves their registers. */
#include "cpu.h"

DPARI_API DPARI_COLD int dpari_cpu_wide(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    uint32_t eax = 0, ebx, ecx = 0, kept;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    if (eax < 7) {
        return 0;
    }
    eax = 1;
    ecx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    if ((ecx >> 27 & 7) != 7) { /* OSXSAVE (xgetbv may be used), AVX, F16C */
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(kept) : "c"(0) : "edx");
    eax = 7;
    ecx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    /* the system saves the registers of vectors (bits 1 and 2); AVX2 */
    return (kept & 6) == 6 && (ebx >> 5 & 1) != 0;
#else
    return 0;
#endif
}
