/* SPDX-License-Identifier: MIT-0 */
/* cortex_m - the start of a program on a Cortex-M without an operating system: vectors, then main.
 * The emulator has put data where it belongs, and memory is zero. Files and texts go through
 * semihosting: newlib's librdimon, or, with SAY_BY_SEMIHOSTING, say.h alone and no library. A fault
 * ends the program with a code of its own. */
#include <stdlib.h>

extern char dpar_stack_top; /* of the linker script */
int main(void);
void dpar_reset(void);
void dpar_fault(void);

#ifdef SAY_BY_SEMIHOSTING
void dpar_reset(void)
{
    main(); /* does not come back */
    for (;;) {
    }
}

void dpar_fault(void)
{
    for (;;) { /* the emulator is stopped from outside */
    }
}
#else
void initialise_monitor_handles(void);
void _fini(void);

void dpar_reset(void)
{
    initialise_monitor_handles();
    exit(main());
}

void dpar_fault(void)
{
    exit(99);
}

void _fini(void) /* newlib's exit calls it */
{
}
#endif

/* What the processor reads at 0: the first stack pointer, reset, and the faults. */
__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    &dpar_stack_top,          (const void *)dpar_reset, (const void *)dpar_fault,
    (const void *)dpar_fault, (const void *)dpar_fault, (const void *)dpar_fault,
    (const void *)dpar_fault};
