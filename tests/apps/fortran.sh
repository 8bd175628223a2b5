#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests bindings/fortran: the module compiles without warnings, has every function of its headers, and has C's
# sizes, offsets and values; calls of each kind work over ranks of dpar_launch, of mpiexec (dpar_init) and over
# MPI. Tests apps/lbm.f90: published tables, mass, the same bits on 1 to 8 ranks.
. tests/compile/common.sh
need gfortran
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$work" || exit 1
top=$OLDPWD
case $DPAR_DIR in /*) ;; *) DPAR_DIR=$top/$DPAR_DIR ;; esac
include="-I$DPAR_DIR -I$top"
strict='-std=f2018 -Wall -Wextra -Werror -Wno-function-elimination -Wno-compare-reals'
exact='-O2 -ffp-contract=off -cpp'
f90=$top/bindings/fortran/dpar.f90

complete() {
    headers=$(sed -n "/^headers=/,/'\$/p" "$top/tools/fortran" | tr -d "'" | sed 's/headers=//')
    names=$(cd "$top" && sed -n 's/^DPAR_API.*[ *]\(dpar_[a-z0-9_]*\)(.*/\1/p' $headers | sort -u)
    [ "$(echo "$names" | wc -l)" -gt 100 ] || { echo 'too few functions'; exit 1; }
    for name in $names; do
        grep -q "^        \(function\|subroutine\) $name(" "$f90" ||
            { echo "dpar.f90 has no $name"; exit 1; }
    done
    for name in $(sed -n 's/.*bind(c, name="\([a-z_]*\)").*/\1/p' "$f90"); do
        grep -q "dpar_status $name(" "$top/bindings/fortran/dpar.c" ||
            { echo "dpar.c has no $name"; exit 1; }
    done
}

sizes() {
    awk -v lang=c -f "$top/tests/fortran/sizes.awk" "$f90" > sizes.c
    awk -v lang=f90 -f "$top/tests/fortran/sizes.awk" "$f90" > sizes.f90
    try $1 -O0 -w $include $2 sizes.c -o sizes_c
    try gfortran -O0 sizes.f90 dpar_f.o dpar.o -o sizes_f
    ./sizes_c > c.txt && ./sizes_f > f90.txt || exit 1
    if [ -z "$2" ]; then
        grep -v '^dpar_mpi' f90.txt > f90.rest && mv f90.rest f90.txt
    fi
    diff c.txt f90.txt || { echo 'C and Fortran differ'; exit 1; }
    [ "$(wc -l < c.txt)" -gt 300 ] || { echo 'too few sizes'; exit 1; }
}

# Runs a command, checks that the mass stays constant, and writes the output's bits into FILE.
flow() { # file, command...
    said=$1
    shift
    timeout 300 "$@" > "$said.all" 2>&1 || { echo "failed: $*"; cat "$said.all"; exit 1; }
    sed -n 's/.*mass gained: *\([-+0-9.E]*\).*bits: *\([0-9A-F]*\)$/\2/p' "$said.all" > "$said"
    [ -s "$said" ] || { echo "no fingerprint: $*"; cat "$said.all"; exit 1; }
    awk '/mass gained/ { sub(/.*gained: */, ""); if ($1 > 1e-13 || $1 < -1e-13) exit 1 }' \
        "$said.all" ||
        { echo "mass: $*"; cat "$said.all"; exit 1; }
}

same() { # name, command...: the bits of reference.name
    flow now "$@"
    cmp now "reference.$case" || { echo "other bits: $*"; exit 1; }
}

# Checks that with finer resolution both profiles converge to Marchi's with the square of the cells (with order
# 1.2 if the lid moves the corners too), and are as far from Ghia's as Ghia's are from Marchi's.
table() {
    try timeout 300 ./lbm 1 n=64 re=400 u=0.2 table > now.all
    awk '$1 == 100 && $2 == 64 { fine += $3 < 0.0008 && $4 < 0.0009 && $6 < 0.006 && $7 < 0.010 }
        $1 == 400 && $2 == 64 { fine += $3 < 0.0075 && $4 < 0.0085 && $6 < 0.007 && $7 < 0.003 }
        $5 ~ /^[0-9]/ { orders++; fine += $5 >= 2 && $5 < 3 }
        END { exit fine != 5 || orders != 3 }' now.all ||
        { echo 'lbm: not as near to the tables as it was'; cat now.all; exit 1; }
    sed -n 's/^ *\(Re\|[14]00\) /lbm: &/p' now.all
}

# Checks that bad input gives exit code 2 and one line on stderr.
refuses() { # words of the sentence, arguments of lbm...
    said=$1
    shift
    timeout 60 ./lbm "$@" > now.out 2> now.err
    [ $? -eq 2 ] && grep -qF -e "$said" now.err && [ "$(wc -l < now.err)" -eq 1 ] && [ ! -s now.out ] ||
        { echo "lbm $*: not refused with '$said'"; cat now.out now.err; exit 1; }
}

refusals() {
    for bad in '' -5 3 4097 8,9 '8 9' 3.5 1*5 nan 99999999999999; do
        refuses "n is a whole number from 4 to 4096, not '$bad'" "n=$bad"
    done
    for bad in '' nan inf 0 -1 1e999 1,2; do
        refuses "re is a number from 1.0E-02 to 1.0E+05, not '$bad'" "re=$bad"
        refuses "u is a number from 1.0E-03 to 3.0E-01, not '$bad'" "u=$bad"
        refuses "until is a number from 1.0E-15 to 1.0E+00, not '$bad'" "until=$bad"
    done
    refuses 'span is a whole number from 0' span=-1
    refuses 'span is n' span=64
    refuses 'steps is a whole number from 0' steps=-1
    refuses 'the number of ranks is a whole number from 1 to 1024' 0
    refuses "'n=9' is the second" n=8 n=9
    refuses "'3' is the second" 2 3
    refuses "'table' is the second" table table
    refuses "'tabel' is no setting" tabel
    refuses "no setting is as long" n=$(printf '%0200d' 8)
    refuses 'no grid of 17 ranks' 17 n=8 # 17 is no product of two numbers up to 8
    refuses 'no grid of 257 ranks' 257 n=64 table
    refuses 'a table begins with n=16 and re=100' n=8 table
    refuses 'a table begins with n=16 and re=100' n=64 re=99 table
    # a flow that becomes unstable ends with a message, whether it runs until it is steady or for a number of
    # steps
    for words in '1 n=8' '2 n=4 steps=20000'; do
        timeout 60 ./lbm $words re=100000 u=0.3 quiet > now.out 2> now.err
        [ $? -eq 1 ] && grep -q '^lbm: blown up by step [0-9]' now.err || { echo "lbm $words: not blown up"; exit 1; }
    done
}

words() {
    case $1 in
    plane) echo 'n=24 steps=240 quiet' ;;
    slab) echo 'n=9 steps=60 span=7 quiet' ;;
    cube) echo 'n=10 steps=60 span=0 quiet' ;;
    esac
}

# Makes the objects and what links them: the module, and the library without MPI and (.openmpi, .mpich) over it.
object() {
    case $1 in
    module) try gfortran $strict -O1 -c "$f90" -o dpar_f.o ;;
    library) try $CC -O0 $include -c "$top/bindings/fortran/dpar.c" -o dpar.o ;;
    *) try mpicc$1 -O0 $include -DUSE_MPI -c "$top/bindings/fortran/dpar.c" -o "dpar_mpi$1.o" ;;
    esac
}
program() { # file, or suffix:file
    name=$(basename "${1#*:}" .f90) modules="-I. -Jmodules_$k" # its own, which another must not read half-written
    mkdir "modules_$k"
    case $1 in
    .*) try mpif90${1%%:*} $modules $exact -DUSE_MPI "$top/${1#*:}" dpar_f.o "dpar_mpi${1%%:*}.o" -o "${name}_mpi${1%%:*}" ;;
    *) try gfortran $modules $strict $exact "$top/$1" dpar_f.o dpar.o -o "$name" ;;
    esac
}

over_mpi() { # suffix
    launch="timeout 200 mpiexec$1"
    if mpiexec$1 --version 2>&1 | grep -qi 'open.*mpi\|OpenRTE'; then
        launch="$launch --oversubscribe --mca mpi_yield_when_idle 1"
    fi
    # started by the launcher, over shared memory
    try $launch -np 2 ./every
    case=plane
    same $launch -np 2 ./lbm $(words plane)
    for n in 1 2 3 4 6 8; do
        try $launch -np "$n" ./every_mpi$1
        for case in plane slab cube; do
            same $launch -np "$n" ./lbm_mpi$1 $(words $case)
        done
    done
    case=cube
    same env DPAR_MPI_FLAT=1 $launch -np 4 ./lbm_mpi$1 $(words cube)
    same env DPAR_MPI_NODE=2 $launch -np 4 ./lbm_mpi$1 $(words cube)
    echo "mpif90$1: 1 to 8 ranks"
}

complete
mpis= programs='apps/lbm.f90 tests/fortran/every.f90'
for suffix in .openmpi .mpich; do
    [ -z "${DPAR_NO_MPI:-}" ] && have mpif90$suffix && have mpicc$suffix || continue
    printf 'program p\nuse mpi\nend\n' > p.f90
    mpif90$suffix -c p.f90 2> /dev/null ||
        { echo "mpif90$suffix: its module mpi is of another compiler"; continue; }
    mpis="$mpis $suffix" programs="$programs $suffix:apps/lbm.f90 $suffix:tests/fortran/every.f90"
done
in_pairs object module library $mpis
in_pairs program $programs
sizes "$CC" ''
for n in 1 2 3 4 6 8; do
    try timeout 100 ./every "$n"
done
for case in plane slab cube; do
    flow "reference.$case" ./lbm 1 $(words $case)
    for n in 2 3 4 6 8; do
        same ./lbm "$n" $(words $case)
    done
done
refusals
[ "$(sort -u reference.plane reference.slab reference.cube | wc -l)" -eq 3 ] ||
    { echo 'different flows, one fingerprint'; exit 1; }
# compiles the Fortran blocks in docs/fortran.md, which are whole programs
awk '/^```fortran$/ { on = 1; next } /^```/ { on = 0 } on { print > "block.f90" }' \
    "${DPAR_README:-$top/docs/fortran.md}"
if [ -s block.f90 ]; then
    try gfortran $strict -Wno-unused-dummy-argument block.f90 dpar_f.o dpar.o -o block
    try timeout 60 ./block > block.txt
    try test -s block.txt
fi
# code of an older standard uses the module
cat > old.f90 << 'F'
program old
    use dpar
    implicit none
    type(c_ptr) :: world, grid
    type(dpar_why) :: why
    complex(c_double_complex), target :: psi(0:4, 0:5)
    if (dpar_init(world, why=why) < 0) stop 1
    call dpar_require(world, dpar_grid_make(world, dpar_grid_desc_init((/ 3, 4 /), 1), grid))
    call dpar_require(world, dpar_grid_attach_complex(grid, psi(1, 1)))
    if (dpar_grid_free(grid) < 0) stop 4
    if (command_argument_count() > 0) then ! prints its message and ends
        call dpar_require(world, dpar_grid_make(world, dpar_grid_desc_init((/ 3, -4 /), 1), grid))
        stop 5
    end if
    if (dpar_comm_free(world) < 0) stop 6
end program
F
for standard in f2003 f2008; do
    try gfortran "-std=$standard" -Wall -Werror old.f90 dpar_f.o dpar.o -o old
    try timeout 60 ./old
    status=0
    timeout 60 ./old refused > old.txt 2>&1 || status=$?
    try test "$status" = 1
    try grep -q 'cells\[0\]' old.txt
done
table
for suffix in $mpis; do
    [ $suffix != .openmpi ] || sizes mpicc$suffix -DUSE_MPI
    over_mpi $suffix
done
