#!/bin/sh
# SPDX-License-Identifier: MIT-0
# No warning from any compiler found, as any dialect from C99 to C17 and C++11 to C++20, with the
# implementation, and with each wing left out; no frame above 12 KB. dpar_mpi.h the same, with each
# MPI found. DPAR_PARTS: of c, cxx and mpi only some. What only an optimiser sees is looked for in one
# dialect of each language; elsewhere the front end is asked alone.
. tests/compile/common.sh
cd "$work" || exit 1
: "${DPAR_PARTS:=c cxx mpi}"
part() { case " $DPAR_PARTS " in *" $1 "*) ;; *) return 1 ;; esac; }
printf '#include "dpar.h"\nint main(void) { return 0; }\n' > unit.c
printf '#include "dpar_mpi.h"\nint main(void) { return 0; }\n' > mpi.c
cp unit.c unit.cc
cp mpi.c mpi.cc
frames=-Wframe-larger-than=12288

# "compiler flags" of one compilation; in_pairs counts them in k
compile() {
    cc=${1%% *} flags=${1#* }
    case $flags in
    *-O1*) output="-c -o unit_$k.o" ;;
    *) output=-fsyntax-only ;;
    esac
    case $cc in
    *++) try $cc $flags $strict -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" $output $source.cc ;;
    *) try $cc $flags $strict_c -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" $output $source.c ;;
    esac
}

ran=0 source=unit
for cc in gcc clang; do
    part c || break
    have $cc || { echo "$cc: not found, skipped"; continue; }
    in_pairs compile "$cc -std=c99 -O1 $frames" "$cc -std=c11" "$cc -std=c17" \
        "$cc -std=c99 -DDPAR_NO_RUN" "$cc -std=c99 -DDPAR_NO_COST" "$cc -std=c99 -DDPAR_NO_SHOW" \
        "$cc -std=c99 -DDPAR_STATIC" "$cc -std=c99 -DDPAR_NO_RUN -DDPAR_NO_COST -DDPAR_NO_SHOW"
    ran=$((ran + 1))
done
for cxx in g++ clang++; do
    part cxx || break
    have $cxx || { echo "$cxx: not found, skipped"; continue; }
    in_pairs compile "$cxx -std=c++11 -O1" "$cxx -std=c++14" "$cxx -std=c++17" "$cxx -std=c++20" \
        "$cxx -std=c++11 -DDPAR_NO_RUN"
done
[ $ran -gt 0 ] || ! part c || { echo 'gcc and clang: not found'; exit 77; }

# The headers of MPI come as system headers: their warnings are theirs.
seen= source=mpi
for mpicc in mpicc.openmpi mpicc.mpich mpicc; do
    part mpi || break
    have $mpicc || continue
    headers=$($mpicc -show | tr ' ' '\n' | sed -n 's/^-I\(.*\)/-isystem \1/p' | tr '\n' ' ')
    case $seen in *"<$headers>"*) continue ;; esac
    seen="$seen<$headers>"
    lean="-DDPAR_NO_COST -DDPAR_NO_SHOW $headers"
    for cc in gcc clang; do
        have $cc || continue
        in_pairs compile "$cc -std=c99 -O1 $frames $lean" "$cc -std=c17 -DDPAR_STATIC $lean"
    done
    for cxx in g++ clang++; do
        have $cxx || continue
        lean_cxx="-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX $lean"
        in_pairs compile "$cxx -std=c++11 $lean_cxx" "$cxx -std=c++20 $lean_cxx"
    done
    echo "dpar_mpi.h with $mpicc"
done
[ -n "$seen" ] || ! part mpi || echo 'mpicc: not found, dpar_mpi.h skipped'
