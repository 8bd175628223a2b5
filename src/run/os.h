/* SPDX-License-Identifier: MIT-0 */
/* os - what the run wing needs of POSIX and Linux, behind a few small functions. Private. */
#ifndef DPAR_OS_H
#define DPAR_OS_H

#if defined(DPARI_OWN_SYSTEM_HEADERS) || !defined(DPAR_IMPLEMENTATION)
#endif
#endif
