#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares the exchanges of simulation codes with MPI written by hand, in turns in one run: sums at grid points that
# blocks share, lattice Boltzmann populations, halos with cold caches, sums of shared ids, ghosts of particles, and the
# transposes of FFT codes. Builds a program for each with Open MPI and MPICH, or with the one that is installed, and
# prints a section of docs/records/performance.md. A ratio is dpar's time over that by hand: less than 1 is faster.
#
#   sh bench/by_hand.sh [ROUNDS [RANKS]]         default 3 rounds of a minute, 2 ranks
#
# With 0 rounds it prints the tables of the rows that an earlier run has left in build/by_hand.rows.
#
# In the environment:
#   PROGRAMS   some of (default all): grid_reduce lattice_speed cold_halo shared_ids particles pencil
#   SECONDS    of each row of grid_reduce and lattice_speed (default 0.2)
#   BEFORE     a command that is put before each program, such as: chrt -r 1
#   CFLAGS     default -O2
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN   default mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
case ${1:-} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
esac
rounds=${1:-3} ranks=${2:-2}
case $rounds/$ranks in
*[!0-9/]* | /* | */ | */0 | */1)
    echo "by_hand: ROUNDS is '$rounds' and RANKS is '$ranks'; both have to be whole numbers, RANKS above 1 (--help)" >&2
    exit 2 ;;
esac
: "${CC:=cc}" "${CFLAGS:=-O2}" "${PROGRAMS:=grid_reduce lattice_speed cold_halo shared_ids particles pencil}" "${SECONDS:=0.2}"
: "${BEFORE:=}" "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi}" "${MPICH_CC:=mpicc.mpich}"
: "${MPICH_RUN:=mpirun.mpich}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
# gcc warns because it takes constants of MPI for arrays
flags="$CFLAGS -Wno-stringop-overflow -Wno-stringop-overread -I. -DDPAR_STATIC -DDPAR_IMPLEMENTATION"

build() { # library, compiler, program
    # the FFTW of Debian, which has transposes over MPI, is linked with Open MPI
    if [ "$1/$3" = openmpi/pencil ]; then
        "$2" $flags -DPENCIL_FFTW bench/pencil.c -lfftw3_mpi -lfftw3 -lm -o build/pencil_openmpi \
            2> build/by_hand.err && return
    fi
    "$2" $flags "bench/$3.c" -lm -o "build/$3_$1"
}

# Prints "case|us by hand|us of dpar" for each row that a program has printed.
rows() {
    case $1 in
    grid_reduce) sed -n 's/^\(.*[^ ]\)  *reduce *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1|\3|\2/p' ;;
    lattice_speed) sed -n 'h
        s/^ *\([^ ]* [a-z]*\)  *direction *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1, `direction`|\3|\2/p
        g
        s/^ *\([^ ]* [a-z]*\)  *direction .* all *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1, all populations|\3|\2/p' ;;
    cold_halo) sed -n 's/^\(.*\), after.*: by hand \([0-9.]*\) .* dpar \([0-9.]*\) .* 0 wrong$/\1|\2|\3/p' |
        sed 's/ 1 fields/ 1 field/' ;;
    shared_ids) sed -n 's/^\(.*[^ ]\)  *\([0-9]* values\): by hand *\([0-9.]*\) us, dpar *\([0-9.]*\) .*/\1, \2|\3|\4/p' ;;
    particles) sed -n 's/^\(.*[^ ]\)  *[0-9]* ranks, \(.*\): by hand \([0-9.]*\) us, dpar \([0-9.]*\) .*/\1, \2|\3|\4/p' ;;
    pencil) awk '$2 == "x" && $4 == "x" { # the last columns are dpar, private, mpi, fftw and two ratios
        peer = $(NF - 3)
        if ($(NF - 2) != "-" && $(NF - 2) < peer) { peer = $(NF - 2) }
        print $1 " x " $3 " x " $5 ", grid " $6 " x " $8 ", " $(NF - 8) " to " $(NF - 6) ($9 == "axis" ? ", axis last" : "") \
            "|" peer "|" $(NF - 5) }' ;;
    esac
}

run() { # library, program, arguments
    library=$1 program=$2
    shift 2
    case $library in
    openmpi) start="$OPENMPI_RUN --mca btl self,vader --bind-to core -np $ranks" ;;
    *) start="$MPICH_RUN -bind-to core -np $ranks" ;;
    esac
    if ! timeout -k 5 300 $start $BEFORE "build/${program}_$library" "$@" > build/by_hand.out 2> build/by_hand.err; then
        echo "by_hand: $program failed or took longer than 300 s with $library:" >&2
        tail -n 5 build/by_hand.out build/by_hand.err >&2
        exit 1
    fi
    rows "$program" < build/by_hand.out | sed "s/^/row|$library|$program|/" >> build/by_hand.rows
}

if [ "$rounds" -gt 0 ]; then
    cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | head -n 1)
    libraries= machine="${cpu:-unknown processor}, $(getconf _NPROCESSORS_ONLN) cores; $($CC --version | sed -n 1p), $CFLAGS"
    for library in openmpi mpich; do
        case $library in openmpi) cc=$OPENMPI_CC ;; *) cc=$MPICH_CC ;; esac
        command -v "$cc" > /dev/null || { echo "by_hand: $cc: not found, so $library is left out" >&2; continue; }
        libraries="$libraries $library"
        case $library in
        openmpi) machine="$machine; Open MPI $("$OPENMPI_RUN" --version | sed -n '1s/.* //p')" ;;
        *) machine="$machine; MPICH $("$MPICH_RUN" --version | awk '$1 == "Version:" { print $2; exit }')" ;;
        esac
        for program in $PROGRAMS; do
            build $library "$cc" "$program" || exit 1
        done
    done
    [ -n "$libraries" ] || { echo 'by_hand: neither Open MPI nor MPICH was found' >&2; exit 77; }
    echo "machine|$machine${BEFORE:+; $BEFORE}; $(date +%Y-%m-%d)|$ranks|$rounds" > build/by_hand.rows
    for round in $(seq "$rounds"); do
        for library in $libraries; do
            for program in $PROGRAMS; do
                case $program in
                grid_reduce | lattice_speed) run $library "$program" "$SECONDS" ;;
                cold_halo)
                    run $library cold_halo 480 1 1
                    run $library cold_halo 480 6 2 ;;
                *) run $library "$program" ;;
                esac
            done
        done
    done
fi

awk -F'|' '
    BEGIN {
        title["grid_reduce"] = "Sums at grid points that blocks share: `dpar_grid_reduce`"
        text["grid_reduce"] = "n^3 cells a rank, or a row of points. By hand, planes are sent and added, one dim after the other"
        title["lattice_speed"] = "Lattice Boltzmann populations, D3Q19: `dpar_grid_field.direction`"
        text["lattice_speed"] = "n^3 cells a rank. By hand, the 5 populations that cross a face are sent, one dim after the other"
        title["cold_halo"] = "Halos with cold caches: `dpar_grid_exchange_many`"
        text["cold_halo"] = "Columns of a 2-D grid, after 8 MB of other memory were written; medians of 400 samples"
        title["shared_ids"] = "Sums of shared ids: `dpar_points_combine`"
        text["shared_ids"] = "By hand as in gslib: values are packed by index for each rank, sent and added"
        title["particles"] = "Ghosts of particles: `dpar_particles_ghosts`, `_update`, `_reduce`"
        text["particles"] = "By hand as in CoMD and LAMMPS: two messages in each dim, one dim after the other"
        title["pencil"] = "Transposes of FFT codes: `dpar_pencil_transpose`"
        text["pencil"] = "Complex points, arrays of `dpar_pencil_array`. By hand is the faster of packed boxes in" \
            " `MPI_Alltoallv` and,\nfor slabs with Open MPI, the transposes of FFTW"
    }
    $1 == "machine" { machine = $2; ranks = $3; rounds = $4; next }
    !($2 in seen) { seen[$2] = 1; library[++libraries] = $2 }
    !($3 in known) { known[$3] = 1; program[++programs] = $3 }
    !(($3, $4) in row) { row[$3, $4] = 1; name[$3, ++rows[$3]] = $4 }
    !(($2, $3, $4) in hand) || $5 < hand[$2, $3, $4] { hand[$2, $3, $4] = $5 }
    !(($2, $3, $4) in dpar) || $6 < dpar[$2, $3, $4] { dpar[$2, $3, $4] = $6 }
    END {
        print "## Exchanges of simulation codes beside MPI by hand\n"
        printf "%d ranks on one node; dpar and MPI by hand take turns in the same processes (`bench/by_hand.sh`). Cells are us, the\n", ranks
        printf "smallest of %d runs; each is the time of the slowest rank. All results are checked.\n\n", rounds
        print "Measured: " machine "."
        for (p = 1; p <= programs; p++) {
            at = program[p]
            printf "\n### %s\n\n%s (`bench/%s.c`).\n\n| case |", title[at], text[at], at
            for (l = 1; l <= libraries; l++) {
                printf " %s by hand | dpar | ratio |", library[l] == "openmpi" ? "Open MPI" : "MPICH"
            }
            printf "\n|---|"
            for (l = 1; l <= libraries; l++) { printf "---|---|---|" }
            print ""
            for (r = 1; r <= rows[at]; r++) {
                printf "| %s |", name[at, r]
                for (l = 1; l <= libraries; l++) {
                    h = hand[library[l], at, name[at, r]]
                    d = dpar[library[l], at, name[at, r]]
                    printf " %s | %s | %.2f |", h, d, d / h
                }
                print ""
            }
        }
    }' build/by_hand.rows
