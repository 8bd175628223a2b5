#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Exports dpar_ names alone; holds no data, no bss. Without the run wing it needs nothing but what
# compilers call anyway; with it, the functions of the C library and POSIX named below and no other.
. tests/compile/common.sh
need nm
cd "$work" || exit 1
printf '#include "dpar.h"\n' > unit.c

always='memcpy memset memmove memcmp _GLOBAL_OFFSET_TABLE_ __stack_chk_fail'
time='clock_gettime nanosleep sched_yield time'
strings='strlen strncmp strstr'
memory='mmap munmap madvise'
files='open close read fcntl fstat lstat ftruncate posix_fallocate statvfs unlink
    opendir readdir closedir'
sockets='socket bind connect listen accept recv recvmsg sendmsg getsockopt poll'
processes='fork _exit waitpid kill getpid getppid getuid getrlimit prctl'
threads='pthread_create pthread_join'
# environ: read, never written; errno; fflush before a fork; syscall: futex, memfd_create,
# sched_getaffinity, process_vm_readv
system='environ __errno_location fflush gethostname sysconf syscall'
run="$time $strings $memory $files $sockets $processes $threads $system"

# flags, the names that may be undefined: leaves those that are in `needed`
look() {
    # Some compilers turn _FORTIFY_SOURCE on: it would rename what is listed.
    try $CC $1 -U_FORTIFY_SOURCE -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o unit.o
    nm unit.o > names
    if grep -E ' [TDBCRVW] ' names | grep -v ' T dpar_'; then
        echo "exports other names ($1)"; exit 1
    fi
    if grep -E ' [dDbBC] ' names; then
        echo "holds data or bss ($1)"; exit 1
    fi
    sed -n 's/^ *[Uw] //p' names | sort -u > needed
    printf '%s\n' $2 | sort -u > listed
    if comm -23 needed listed | grep .; then
        echo "needs other functions ($1)"; exit 1
    fi
}

# Without the optimiser first: it is quick. Tables of pointers are data where code is position
# independent.
look '-O0 -DDPAR_NO_RUN' "$always"
look '-O0 -fPIC' "$always $run"
# The list is no longer than it must be (where it was made: Linux).
if [ "$(uname -s)" = Linux ]; then
    printf '%s\n' $run | sort -u > listed
    if comm -23 listed needed | grep .; then
        echo 'listed above and not needed'; exit 1
    fi
fi
# What optimisers make of loops: memset, strlen.
look '-O2 -DDPAR_NO_RUN' "$always"
look '-O2' "$always $run"
look '-O2 -fPIC' "$always $run"
look '-Os' "$always $run"
