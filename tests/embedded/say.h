/* SPDX-License-Identifier: MIT-0 */
/* say - how programs of the smallest targets print, and end, where there may be no stdio. */
#ifndef DPAR_SAY_H
#define DPAR_SAY_H

#if defined(__AVR__)
/* The first serial line, and then to sleep without interrupts: simavr ends there. */
#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>
extern char __heap_start;
#define SAY_RAM_BEGIN 0x100
#define SAY_RAM_END __heap_start
#define SAY_RAM_TOP (RAMEND + 1)
static void begin(void)
{
    UCSR0B = 1 << TXEN0;
}
static void say(const char *text)
{
    for (; *text != 0; text++) {
        while ((UCSR0A & (1 << UDRE0)) == 0) {
        }
        UDR0 = (unsigned char)*text;
    }
}
static void end(int failed)
{
    say(failed ? "failed\n" : "done\n");
    cli();
    sleep_enable();
    sleep_cpu();
}
#elif defined(SAY_BY_SEMIHOSTING)
/* A Cortex-M without newlib: the debugger's (the emulator's) SYS_WRITE0 and SYS_EXIT. */
extern char dpar_stack_end, dpar_stack_top;
#define SAY_RAM_BEGIN 0x20000000
#define SAY_RAM_END dpar_stack_end
#define SAY_RAM_TOP (&dpar_stack_top)
static void ask(int what, const void *with)
{
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}
static void begin(void)
{
}
static void say(const char *text)
{
    ask(4, text);
}
static void end(int failed)
{
    say(failed ? "failed\n" : "done\n");
    ask(0x18, failed ? (const void *)0x20023
                     : (const void *)0x20026); /* the two reasons: 0x20026 is a good end */
}
#else
#include <stdio.h>
static void begin(void)
{
}
static void say(const char *text)
{
    fputs(text, stdout);
}
static void end(int failed)
{
    puts(failed ? "failed" : "done");
}
#endif

#endif
