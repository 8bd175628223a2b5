#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that each header's object exports dpar_ names and the private names that headers share, and no others;
# and that it has no data and no bss. Without an operating system (dpar.h, dpar_schedule.h, dpar_cost.h) it
# needs only what compilers call anyway; the others need the functions of the C library and POSIX named below
# and no other. A push takes the first flags and one of the others in turns. DPAR_PARTS: only these flags.
. tests/compile/common.sh
need nm
cd "$work" || exit 1

always='memcpy memset memmove memcmp _GLOBAL_OFFSET_TABLE_ __stack_chk_fail'
time='clock_gettime nanosleep sched_yield time'
strings='memchr strchr strcspn strlen strncmp strspn strstr'
memory='mmap munmap madvise'
files='open close dup2 read pread write fcntl stat fstat lstat access readlink ftruncate posix_fallocate statvfs fstatvfs unlink
    opendir readdir closedir'
sockets='socket bind connect listen accept recv recvmsg sendmsg getsockopt poll'
processes='fork execve exit _exit waitpid kill getpid getppid getuid getrlimit prctl'
threads='pthread_create pthread_join'
# environ is read, never written; errno; fflush before a fork; syscall is for futex, memfd_create,
# sched_getaffinity, process_vm_readv; the CPU of a rank; the clock of a process
system='environ __errno_location clock_getcpuclockid fflush gethostname sched_getcpu sysconf syscall'
openmp='omp_pause_resource_all' # weak: of the program's OpenMP, if it has one
# in the library of the compiler (libgcc, compiler-rt): which vectors the CPU has, without asking it each time
cpu=
[ "$(uname -m)" != x86_64 ] || cpu=__cpu_model
run="$time $strings $memory $files $sockets $processes $threads $system $openmp $cpu"

# look "HEADER FLAGS": writes the names that it needs into needed.header.flags
look() {
    header=${1%% *} flags=${1#* } at=$(echo "$1" | tr -d ' ')
    parts "$header"
    may=$always
    [ -z "$posix" ] || may="$always $run"
    # Some compilers turn _FORTIFY_SOURCE on, which would rename listed functions.
    try $CC $flags -U_FORTIFY_SOURCE "-D$(implements "$header")" -I"$DPAR_DIR" -x c -c "$DPAR_DIR/$header.h" -o "unit$at.o"
    nm "unit$at.o" > "names$at"
    if grep -E ' [TDBCRVW] ' "names$at" | grep -v ' T dpari\{0,1\}_'; then
        echo "exports other names ($1)"; exit 1
    fi
    if grep -E ' [dDbBC] ' "names$at"; then
        echo "holds data or bss ($1)"; exit 1
    fi
    sed -n 's/.* T \(dpari_.*\)/\1/p' "names$at" > "inner$at"
    while read -r name; do
        grep -q "^DPARI_API.*[ *]$name(" "$DPAR_DIR/$header.h" || { echo "$name is exported but not marked DPARI_API ($1)"; exit 1; }
    done < "inner$at"
    sed -n 's/^ *[Uw] //p' "names$at" | sort -u > "needed$at"
    printf '%s\n' $may | sort -u > "listed$at"
    # dpar's own names are those of headers below, which levels.sh and linking check
    if comm -23 "needed$at" "listed$at" | grep -v '^dpari\{0,1\}_' | grep .; then
        echo "needs other functions ($1)"; exit 1
    fi
}

set --
for flags in ${DPAR_PARTS:--O0+-fPIC $(some_of -O0 -O2+-fPIC -O2 -Os)}; do
    for each in $headers; do set -- "$@" "$each $(echo "$flags" | tr + ' ')"; done
done
in_pairs look "$@"
# Checks that the list has no unnecessary names (where it was made: Linux).
if [ "$(uname -s)" = Linux ] && [ -z "${DPAR_ONLY:-}" ]; then
    printf '%s\n' $run | sort -u > listed
    cat needed*-O0-fPIC | sort -u > needed
    if comm -23 listed needed | grep .; then
        echo 'listed above and not needed'; exit 1
    fi
fi
