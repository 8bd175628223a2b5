/* SPDX-License-Identifier: MIT-0 */
/* Asks the CPU which vectors it has, and the system whether it saves their registers. */
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
    if ((kept & 6) != 6 || (ebx >> 5 & 1) == 0) { /* the system saves the registers of vectors (bits
                                                     1 and 2); AVX2 */
        return 0;
    }
    /* the system saves the registers of AVX-512 (bits 5 to 7); AVX-512 F, DQ, BW and VL; and VBMI2,
     * because processors that have it do not lower their clock for AVX-512 */
    if ((kept & 0xe0) == 0xe0 && (ebx & 0xc0030000u) == 0xc0030000u && (ecx >> 6 & 1) != 0) {
        return 2;
    }
    return 1;
#else
    return 0;
#endif
}
