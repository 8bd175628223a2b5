#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compares the exchanges of simulation codes with MPI written by hand, in turns in one run: sums at grid points that
# blocks share, lattice Boltzmann populations, halos with cold caches, sums of shared ids, ghosts of particles, and the
# transposes of FFT codes. It builds a program for each with Open MPI and MPICH, or with the one that is installed, and
# prints a section of docs/records/performance.md. A ratio is dpar's time over that by hand: less than 1 is faster.
#
#   sh bench/by_hand.sh [ROUNDS [RANKS]]                  default 3 rounds of about a minute, 2 ranks
#
# In the environment:
#   PROGRAMS   some of (default all): grid_reduce lattice_speed cold_halo shared_ids particles pencil
#   SECONDS    of each row of grid_reduce and lattice_speed (default 0.2)
#   BEFORE     a command that is put before the programs, such as: chrt -r 1
#   OPENMPI_CC, OPENMPI_RUN, MPICH_CC, MPICH_RUN          default mpicc.openmpi, mpirun.openmpi, ...
cd "$(dirname "$0")/.." || exit 1
case ${1:-3} in
-h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "bench/${0##*/}"; exit 0 ;;
*[!0-9]* | 0) echo "by_hand: ROUNDS is '$1'; it has to be a whole number above 0 (--help)" >&2; exit 2 ;;
esac
case ${2:-2} in
*[!0-9]* | 0 | 1) echo "by_hand: RANKS is '$2'; it has to be a whole number above 1 (--help)" >&2; exit 2 ;;
esac
rounds=${1:-3} ranks=${2:-2}
: "${PROGRAMS:=grid_reduce lattice_speed cold_halo shared_ids particles pencil}" "${SECONDS:=0.2}" "${BEFORE:=}"
: "${OPENMPI_CC:=mpicc.openmpi}" "${OPENMPI_RUN:=mpirun.openmpi --mca btl self,vader --bind-to core -np $ranks}"
: "${MPICH_CC:=mpicc.mpich}" "${MPICH_RUN:=mpirun.mpich -bind-to core -np $ranks}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p build
# gcc warns because it takes constants of MPI for arrays
flags='-O2 -Wno-stringop-overflow -Wno-stringop-overread -I. -DDPAR_STATIC -DDPAR_IMPLEMENTATION'
fftw='-DPENCIL_FFTW -lfftw3_mpi -lfftw3'

build() { # library, compiler, program
    # FFTW's transposes are those of Debian's library, which is linked with Open MPI
    if [ "$1/$3" = openmpi/pencil ] &&
        "$2" $flags bench/pencil.c $fftw -lm -o build/pencil_openmpi 2> build/by_hand.err; then
        return
    fi
    "$2" $flags "bench/$3.c" -lm -o "build/$3_$1"
}

# Reads what a program printed, and prints "program|case|us by hand|us of dpar" for each row.
rows() {
    case $1 in
    grid_reduce) sed -n 's/^\(.*[^ ]\)  *reduce *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1|\3|\2/p' ;;
    lattice_speed) sed -n 'h
        s/^ *\([^ ]* [a-z]*\)  *direction *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1, `direction`|\3|\2/p
        g
        s/^ *\([^ ]* [a-z]*\)  *direction .* all *\([0-9.]*\) .* MPI *\([0-9.]*\) .*/\1, all populations|\3|\2/p' ;;
    cold_halo) sed -n 's/^\(.*\), after.*: by hand \([0-9.]*\) .* dpar \([0-9.]*\) .* 0 wrong$/\1|\2|\3/p' ;;
    shared_ids) sed -n 's/^\(.*[^ ]\)  *\([0-9]* values\): by hand *\([0-9.]*\) us, dpar *\([0-9.]*\) .*/\1, \2|\3|\4/p' ;;
    particles) sed -n 's/^\(.*[^ ]\)  *[0-9]* ranks, \(.*\): by hand \([0-9.]*\) us, dpar \([0-9.]*\) .*/\1, \2|\3|\4/p' ;;
    pencil) awk '$2 == "x" && $4 == "x" { # the numbers are dpar, private, mpi, fftw and two ratios
        peer = $(NF - 3)
        if ($(NF - 2) != "-" && $(NF - 2) < peer) { peer = $(NF - 2) }
        name = $1 " x " $3 " x " $5 ", grid " $6 " x " $8 ", " $9
        for (i = 10; i <= NF - 6; i++) { name = name ($i == "to" || $(i - 1) == "to" ? " " : i == NF - 8 ? ", " : " ") $i }
        print name "|" peer "|" $(NF - 5) }' ;;
    esac < "$2" | sed "s/^/$1|/"
}

run() { # library, launcher, program, arguments
    library=$1 start=$2 program=$3
    shift 3
    if ! timeout -k 5 300 $start $BEFORE "build/${program}_$library" "$@" > build/by_hand.out 2> build/by_hand.err; then
        echo "by_hand: $program failed or took longer than 300 s with $library:" >&2
        tail -n 5 build/by_hand.out build/by_hand.err >&2
        exit 1
    fi
    rows "$program" build/by_hand.out | sed "s/^/$library|/" >> build/by_hand.rows
}

libraries=
: > build/by_hand.rows
for library in openmpi mpich; do
    case $library in openmpi) cc=$OPENMPI_CC ;; *) cc=$MPICH_CC ;; esac
    command -v "$cc" > /dev/null || { echo "by_hand: $cc: not found, so $library is left out" >&2; continue; }
    libraries="$libraries $library"
    for program in $PROGRAMS; do
        build $library "$cc" "$program" || exit 1
    done
done
[ -n "$libraries" ] || { echo 'by_hand: no MPI library was found' >&2; exit 77; }
for round in $(seq "$rounds"); do
    for library in $libraries; do
        case $library in openmpi) start=$OPENMPI_RUN ;; *) start=$MPICH_RUN ;; esac
        for program in $PROGRAMS; do
            case $program in
            grid_reduce | lattice_speed) run $library "$start" "$program" "$SECONDS" ;;
            cold_halo)
                run $library "$start" cold_halo 480 1 1
                run $library "$start" cold_halo 480 6 2 ;;
            *) run $library "$start" "$program" ;;
            esac
        done
    done
done

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo 2> /dev/null | head -n 1)
awk -F'|' -v machine="${cpu:-unknown processor}, $(getconf _NPROCESSORS_ONLN) cores" -v ranks="$ranks" \
    -v rounds="$rounds" -v date="$(date +%Y-%m-%d)" '
    BEGIN {
        title["grid_reduce"] = "Sums at grid points that blocks share: `dpar_grid_reduce`"
        text["grid_reduce"] = "n^3 cells a rank, cut in one dim, or a row of points. By hand, planes are sent dim by dim and added."
        title["lattice_speed"] = "Lattice Boltzmann populations, D3Q19: `dpar_grid_field.direction`"
        text["lattice_speed"] = "n^3 cells a rank. By hand, the 5 populations that cross a face are sent, dim by dim."
        title["cold_halo"] = "Halos with cold caches: `dpar_grid_exchange_many`"
        text["cold_halo"] = "Columns of a 2-D grid, after 8 MB of other memory were read and written; medians of 400 samples."
        title["shared_ids"] = "Sums of shared ids: `dpar_points_combine`"
        text["shared_ids"] = "By hand as in gslib: values are packed by index for each rank, sent and added."
        title["particles"] = "Ghosts of particles: `dpar_particles_ghosts`, `_update`, `_reduce`"
        text["particles"] = "By hand as in CoMD and LAMMPS: dim by dim, two messages in each."
        title["pencil"] = "Transposes of FFT codes: `dpar_pencil_transpose`"
        text["pencil"] = "Complex points in arrays of `dpar_pencil_array`. By hand is the faster of packed boxes in " \
            "`MPI_Alltoallv` and,\nfor slabs with Open MPI, FFTW'"'"'s own transposes."
    }
    !($1 in seen) { seen[$1] = 1; library[++libraries] = $1 }
    !($2 in known) { known[$2] = 1; program[++programs] = $2 }
    !(($2, $3) in row) { row[$2, $3] = 1; name[$2, ++rows[$2]] = $3 }
    !(($1, $2, $3) in hand) || $4 < hand[$1, $2, $3] { hand[$1, $2, $3] = $4 }
    !(($1, $2, $3) in dpar) || $5 < dpar[$1, $2, $3] { dpar[$1, $2, $3] = $5 }
    END {
        print "## Exchanges of simulation codes beside MPI by hand\n"
        printf "%d ranks on one node, us, in turns in the same processes (`bench/by_hand.sh`): the smallest time of %d " \
            "runs of\neach program, where a time is that of the slowest rank. All results are checked.\n\n", ranks, rounds
        printf "Measured: %s; %s.\n", machine, date
        for (p = 1; p <= programs; p++) {
            at = program[p]
            printf "\n### %s\n\n%s (`bench/%s.c`)\n\n| case |", title[at], text[at], at
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
                    printf " %s | %s | %.2f |", h + 0, d + 0, d / h
                }
                print ""
            }
        }
    }' build/by_hand.rows
