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

# "flags run" or "flags always", the names that may be undefined: leaves those that are in needed.FLAGS
look() {
    flags=${1% *} at=$(echo "$1" | tr -d ' ')
    case ${1##* } in run) may="$always $run" ;; *) may=$always ;; esac
    # Some compilers turn _FORTIFY_SOURCE on: it would rename what is listed.
    try $CC $flags -U_FORTIFY_SOURCE -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -c unit.c -o "unit$at.o"
    nm "unit$at.o" > "names$at"
    if grep -E ' [TDBCRVW] ' "names$at" | grep -v ' T dpar_'; then
        echo "exports other names ($flags)"; exit 1
    fi
    if grep -E ' [dDbBC] ' "names$at"; then
        echo "holds data or bss ($flags)"; exit 1
    fi
    sed -n 's/^ *[Uw] //p' "names$at" | sort -u > "needed$at"
    printf '%s\n' $may | sort -u > "listed$at"
    if comm -23 "needed$at" "listed$at" | grep .; then
        echo "needs other functions ($flags)"; exit 1
    fi
}

# Without the optimiser first: it is quick. Tables of pointers are data where code is position
# independent.
look '-O0 -DDPAR_NO_RUN always'
look '-O0 -fPIC run'
# The list is no longer than it must be (where it was made: Linux).
if [ "$(uname -s)" = Linux ]; then
    printf '%s\n' $run | sort -u > listed
    if comm -23 listed needed-O0-fPICrun | grep .; then
        echo 'listed above and not needed'; exit 1
    fi
fi
# What optimisers make of loops: memset, strlen.
in_pairs look '-O2 -fPIC run' '-O2 run' '-Os run' '-O2 -DDPAR_NO_RUN always'
