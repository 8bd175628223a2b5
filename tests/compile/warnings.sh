#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Checks that no compiler found gives a warning, as C99 and C17, C++11 and C++20: for each header with its
# implementation, for only its declarations, for all of them private to a unit; and that no frame exceeds 12 KB.
# Does the same for dpar_mpi.h with each MPI found. DPAR_PARTS: only some of c, cxx and mpi. Warnings that only
# an optimiser gives are checked in one dialect of each language; the other dialects are compiled without it
# (clang's to object code, which it writes faster).
. tests/compile/common.sh
cd "$work" || exit 1
: "${DPAR_PARTS:=c cxx mpi}"
part() { case " $DPAR_PARTS " in *" $1 "*) ;; *) return 1 ;; esac; }
for each in $headers; do
    printf '#define %s\n#include "%s.h"\nint main(void) { return 0; }\n' "$(implements "$each")" "$each" > "$each.c"
    printf '#include "%s.h"\n' "$each" >> whole.c
done
printf 'int main(void) { return 0; }\n' >> whole.c
printf '#include "dpar_mpi.h"\nint main(void) { return 0; }\n' > mpi.c
for each in $headers whole mpi; do cp "$each.c" "$each.cc"; done
frames=-Wframe-larger-than=12288

# Compiles one "source compiler flags"; in_pairs counts them in k
compile() {
    source=${1%% *} flags=${1#* }
    cc=${flags%% *} flags=${flags#* } emit="-c -o unit_$k.o"
    case "$cc $flags" in *-O1*) ;; g*) emit='-S -o /dev/null' ;; esac
    case $cc in
    *++) try $cc $flags $strict -I"$DPAR_DIR" "$source.cc" $emit ;;
    *) try $cc $flags $strict_c -I"$DPAR_DIR" "$source.c" $emit ;;
    esac
}

# The optimiser takes longest, so its compilations are all first, and two at a time end together.
long() { optimised="$optimised$*
"; }
short() { plain="$plain$*
"; }
optimised= plain= ran=0
for cc in clang gcc; do
    part c || break
    have $cc || { echo "$cc: not found, skipped"; continue; }
    for each in $headers; do long "$each" $cc -std=c99 -O1 $frames; done
    for flags in '-std=c17 -DDPAR_IMPLEMENTATION' -std=c99 '-std=c99 -DDPAR_STATIC -DDPAR_IMPLEMENTATION'; do
        short whole $cc $flags
    done
    ran=$((ran + 1))
done
for cxx in clang++ g++; do
    part cxx || break
    have $cxx || { echo "$cxx: not found, skipped"; continue; }
    for each in $headers; do long "$each" $cxx -std=c++11 -O1; done
    for flags in '-std=c++20 -DDPAR_IMPLEMENTATION' -std=c++11; do
        short whole $cxx $flags
    done
done
[ $ran -gt 0 ] || ! part c || { echo 'gcc and clang: not found'; exit 77; }

# MPI headers are included as system headers, because their warnings are not ours.
seen= optimised_mpi=
for mpicc in mpicc.openmpi mpicc.mpich mpicc; do
    part mpi || break
    have $mpicc || continue
    headers_of_mpi=$($mpicc -show | tr ' ' '\n' | sed -n 's/^-I\(.*\)/-isystem \1/p' | tr '\n' ' ')
    case $seen in *"<$headers_of_mpi>"*) continue ;; esac
    seen="$seen<$headers_of_mpi>"
    alone="-DDPAR_MPI_IMPLEMENTATION $headers_of_mpi"
    for cc in clang gcc; do
        have $cc || continue
        [ -n "$optimised_mpi" ] || long mpi $cc -std=c99 -O1 $frames $alone # ours is the same code with each
        short mpi $cc -std=c17 $reached $headers_of_mpi
    done
    for cxx in clang++ g++; do
        have $cxx || continue
        no_cxx="-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $alone"
        short mpi $cxx -std=c++11 $no_cxx
        short mpi $cxx -std=c++20 $no_cxx
    done
    optimised_mpi=yes
    echo "dpar_mpi.h with $mpicc"
done
IFS='
'
set -f
set -- $(some_of $optimised $plain)
set +f
unset IFS
in_pairs compile "$@"
[ -n "$seen" ] || ! part mpi || echo 'mpicc: not found, dpar_mpi.h skipped'
