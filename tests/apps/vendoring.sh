#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests docs/vendoring: three MPI codes before and after dpar took over the exchange. Both versions compile
# without warnings and print the same bits on every number of ranks; only few lines were added to each (quick:
# one MPI, fewer ranks). A file that two ranks wrote can be read by any number. The code shown in
# docs/vendoring.md is in the files, and its commands compile them.
. tests/compile/common.sh
need mpicc
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
at=docs/vendoring
no_cxx='-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX'
exact="-O1 -ffp-contract=off -J$work"
ranks='1 2 3 4 6 8'
[ "${1:-}" != quick ] || ranks='1 2 4'

# Counts the lines of the diff with this sign, without comments and closing braces.
lines() { # sign, before, after
    diff "$2" "$3" | sed -n "s/^$1 *//p" | grep -vc '^};*$\|^$\|^/\*\|^\* \|^//\|^!'
}

few() { # name, suffix, the most lines that may be new
    old=$(lines '<' "$at/$1_before.$2" "$at/$1_after.$2")
    new=$(lines '>' "$at/$1_before.$2" "$at/$1_after.$2")
    [ "$new" -gt 5 ] && [ "$new" -le "$3" ] || { echo "$1: $new lines are new"; exit 1; }
    grep -q "^| $1, .*| $old lines | $new |\$" docs/vendoring.md ||
        { echo "docs/vendoring.md does not say of $1: $old lines before, $new new"; exit 1; }
}

# Checks that each line of a block below a link to vendoring/FILE is in that file.
shown() {
    awk '/\(vendoring\/[a-z_]*\.[a-z0-9]*\):$/ {
            file = $0; sub(/.*\(vendoring\//, "", file); sub(/\):$/, "", file)
        }
        /^```/ { on = !on && file != ""; if (!on) file = ""; next }
        on && !/^ *\.\.\./ && NF { print file "\t" $0 }' docs/vendoring.md > "$work/shown"
    [ "$(wc -l < "$work/shown")" -gt 30 ] || { echo 'docs/vendoring.md shows nothing'; exit 1; }
    while IFS='	' read -r file line; do
        grep -Fqe "$line" "$at/$file" || { echo "docs/vendoring.md shows of $file: $line"; exit 1; }
    done < "$work/shown"
}

# Runs the commands of docs/vendoring.md in a directory that has the files it tells to copy. To be quick,
# compiles only what is called, as static functions, and the library, which C and Fortran link, without the
# optimiser.
copy() {
    rm -rf "$work/user"
    mkdir -p "$work/user/docs"
    for each in $headers; do cp "$DPAR_DIR/$each.h" "$work/user" || exit 1; done
    cp -R dpar_mpi.h bindings "$work/user" || exit 1
    cp -R $at "$work/user/docs" || exit 1
    sed -n 's/^    \(mpi[a-z0-9]* .*\)/\1/p' docs/vendoring.md > "$work/commands"
    [ "$(wc -l < "$work/commands")" -eq 5 ] || { echo 'docs/vendoring.md: 5 commands'; exit 1; }
}
follow() { # number of the command
    read -r tool rest << C
$(sed -n "$1p" "$work/commands")
C
    case $tool in mpif90) [ "$names" != "${names%waves}" ] || return 0 ;; esac
    have $tool$suffix || return 0
    case $rest in
    *-DDPAR_IMPLEMENTATION*) rest=$(echo "$rest" | sed 's/-O2/-O1 -DDPAR_STATIC/') ;;
    *) rest=$(echo "$rest" | sed 's/-O2/-O0/') ;;
    esac
    (cd "$work/user" && try $tool$suffix $no_cxx $rest) || exit 1
}

say() { # program, ranks, file
    $launch -np "$2" $work/$1 > "$work/$3" 2> "$work/said" && [ -s "$work/$3" ] ||
        { echo "$1: $2 ranks failed"; cat "$work/$3" "$work/said"; exit 1; }
}

# Runs the version before on one rank, then the version after on all numbers; the version before with more ranks
# too, up to $most (MPICH's waits spin).
both() { # name
    say "$1_before" 1 alone
    for n in $ranks; do
        say "$1_after" "$n" after
        cmp "$work/alone" "$work/after" || { echo "$1_after: $n ranks differ"; exit 1; }
        [ "$n" -gt 1 ] && [ "$n" -le "$most" ] || continue
        say "$1_before" "$n" before
        cmp "$work/before" "$work/after" || { echo "$1: $n ranks differ"; exit 1; }
    done
    [ -x "$work/user/$1" ] || return 0
    say "user/$1" 2 after
    cmp "$work/alone" "$work/after" || { echo "$1, compiled as it says, differs"; exit 1; }
}

# Reads what two ranks have written on each number of ranks.
restarts() {
    rm -f "$work/field"
    say "restart write $work/field" 2 alone
    for n in $ranks; do
        say "restart read $work/field" "$n" after
        cmp "$work/alone" "$work/after" || { echo "restart: $n ranks read something else"; exit 1; }
    done
}

compile() {
    case $1 in
    command_*) follow ${1#command_}; return ;;
    library) try mpicc$suffix -O0 -DUSE_MPI -I"$DPAR_DIR" -I. -c bindings/fortran/dpar.c \
        -o "$work/dpar.o"; return ;;
    *_after) library=$work/dpar.o ;;
    *) library= ;;
    esac
    # gcc sees an overflow in MPICH's MPI_STATUSES_IGNORE
    flags="-O1 -Wall -Wextra -Werror -Wno-stringop-overflow -I$DPAR_DIR -I. $system"
    case $1 in
    restart) try mpicc$suffix $flags "$at/restart.c" "$work/dpar.o" -o "$work/restart" -lm ;;
    heat_*) try mpicc$suffix $flags "$at/$1.c" $library -o "$work/$1" -lm ;;
    wave_*) try mpicxx$suffix $flags $no_cxx "$at/$1.cpp" $library -o "$work/$1" -lm ;;
    waves_before) try mpif90$suffix $exact "$at/$1.f90" -o "$work/$1" ;;
    waves_after) try mpif90$suffix $exact bindings/fortran/dpar.f90 "$at/$1.f90" $library -o "$work/$1" ;;
    esac
}

few heat c 12
few wave cpp 16 # C++ fills the descriptor one field per line
few waves f90 12
shown
mpis=
for kind in openmpi mpich; do
    ! have mpicc.$kind || mpis="$mpis .$kind"
done
if [ "${1:-}" = quick ]; then # the first
    set -- $mpis
    mpis=${1:-}
else
    mpis=$(one_mpi $mpis)
fi
for suffix in ${mpis:-plain}; do
    [ "$suffix" != plain ] || suffix=
    system=$(mpicc$suffix -show | tr ' ' '\n' | sed -n 's/^-I/-isystem /p' | tr '\n' ' ')
    launch="timeout 200 mpiexec$suffix" most=4
    if mpiexec$suffix --version 2>&1 | grep -qi 'open.*mpi\|OpenRTE'; then
        launch="$launch --oversubscribe --mca mpi_yield_when_idle 1" most=8
    fi
    names=heat
    ! have mpicxx$suffix || names="$names wave"
    printf 'program p\nuse mpi\nend\n' > "$work/p.f90"
    if mpif90$suffix -c "$work/p.f90" -o "$work/p.o" > /dev/null 2>&1; then
        names="$names waves"
    else
        echo "mpif90$suffix: not found, or its module mpi is of another compiler: no Fortran here"
    fi
    copy
    # the library, which all three link; the last command links that of the third
    programs=
    for name in $names; do
        programs="$programs ${name}_before ${name}_after"
    done
    in_pairs compile library command_3 command_1 command_2
    in_pairs compile command_4 command_5 restart $programs
    for name in $names; do
        both $name
    done
    restarts
    echo "mpicc$suffix: $names; $ranks ranks"
done
