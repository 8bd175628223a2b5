/* SPDX-License-Identifier: MIT-0 */
/* selftest - what a user of a new target runs first: dpar_selftest, and with SELFTEST_SCHEDULES
 * dpar_schedule_selftest. Where there is no operating system it says how much RAM that took. */
#define DPAR_IMPLEMENTATION
#define DPAR_STATIC
#ifdef SELFTEST_SCHEDULES
#include "dpar_schedule.h"
#else
#include "dpar.h"
#endif

#include "say.h"

#ifdef SAY_RAM_END
/* Fills what lies below the stack, and finds how far down the stack has been since. */
__attribute__((noinline)) static unsigned deepest(int fill)
{
    volatile unsigned char *low = (volatile unsigned char *)&SAY_RAM_END;
    volatile unsigned char *here = (volatile unsigned char *)__builtin_frame_address(0) - 16;
    while (low < here && (fill || *low == 0xA5)) {
        if (fill) {
            *low = 0xA5;
        }
        low++;
    }
    return (unsigned)((char *)SAY_RAM_TOP - (char *)low) +
           (unsigned)((char *)&SAY_RAM_END - (char *)SAY_RAM_BEGIN);
}

static void tell_ram(unsigned bytes)
{
    char digits[8] = {0};
    int k = 6;
    do {
        digits[k--] = (char)('0' + bytes % 10);
        bytes /= 10;
    } while (bytes > 0);
    say("RAM, data and stack: ");
    say(&digits[k + 1]);
    say(" bytes\n");
}
#endif

int main(void)
{
    static dpar_why why;
    dpar_status st;
    begin();
#ifdef SAY_RAM_END
    deepest(1);
#endif
    st = dpar_selftest(&why);
#ifdef SELFTEST_SCHEDULES
    st = st == DPAR_OK ? dpar_schedule_selftest(&why) : st;
#endif
    say(st == DPAR_OK ? "dpar computes here as elsewhere" : why.text);
    say("\n");
#ifdef SAY_RAM_END
    tell_ram(deepest(0));
#endif
    end(st != DPAR_OK);
    return st != DPAR_OK;
}
