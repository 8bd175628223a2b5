# SPDX-License-Identifier: MIT-0
# Builds the benchmarks of communicators and of halo exchanges (of f64 and f32) with each installed MPI library,
# runs them, and checks that every result is right: one row of each operation with each engine. Does the same
# without MPI for those of strategies, of overlap, of messages and of predicted against measured times, and for
# those of simulation codes beside MPI by hand. The times are not checked. A push runs those of one kind, with one
# MPI (DPAR_MPI), in turns.
. tests/compile/common.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Compiles only what the benchmarks reach, as static functions.
build() {
    mpi=${1#*:}
    case ${1%%:*} in
    coll) try "mpicc.$mpi" -O2 -Wall -Wextra -I"$DPAR_DIR" -Ibench $reached -DENGINE_H='"comm_engine.h"' \
        bench/mpi_coll.c -o "$work/comm_speed_$mpi" ;;
    halo | f32) float= && [ "${1%%:*}" = halo ] || float=-DHALO_F32
        try "mpicc.$mpi" -O2 -w -I"$DPAR_DIR" -Ibench $reached $float -DENGINE_H='"halo_engine.h"' \
            bench/mpi_halo.c -o "$work/${1%%:*}_$mpi" ;;
    held) try "mpicc.$mpi" -O1 -Wall -Wextra -Wno-stringop-overflow -Wno-stringop-overread -I"$DPAR_DIR" -DOVER_MPI $reached \
        bench/scale.c -o "$work/held_$mpi" ;;
    loop) try $CC -O1 -w -D_GNU_SOURCE -I"$DPAR_DIR" -I. $reached "$mpi.c" -o "$work/$(basename "$mpi")" -lm ;;
    here) try $CC -O1 -Wall -Wextra -I"$DPAR_DIR" $reached "bench/$mpi.c" -o "$work/$mpi" ;;
    esac
}
alone() {
    in_pairs build here:strategies here:overlap here:p2p_speed here:grid_speed here:scale
    timeout -k 5 60 "$work/strategies" 0.001 > "$work/rows" || { echo 'strategies:'; cat "$work/rows"; exit 1; }
    timeout -k 5 60 "$work/overlap" --steps 1 --trace "$work/trace" > "$work/rows" &&
        grep -q '"bucket 0"' "$work/trace" || { echo 'overlap:'; cat "$work/rows"; exit 1; }
    timeout -k 5 120 "$work/p2p_speed" 0.0005 > "$work/rows" && # a row of each size, all five columns
        [ "$(grep -c '^ *[0-9]*\( *[0-9.]* */ *[0-9.]* *([ 0-9.]*)\)\{5\}$' "$work/rows")" -eq 12 ] ||
        { echo 'p2p_speed:'; cat "$work/rows"; exit 1; }
    timeout -k 5 60 "$work/grid_speed" 0.001 > "$work/rows" && # 3 sizes, 2 widths, 3 lists of arrays
        [ "$(grep -c '^ *[0-9]* *[12]  [a-z]\+\( *[0-9.]\+\)\{6\}$' "$work/rows")" -eq 18 ] || { echo 'grid_speed:'; cat "$work/rows"; exit 1; }
    timeout -k 5 60 "$work/scale" nodes=2,64 ranks=8 > "$work/rows" && # all_reduce, all_to_all, halos; cache lines
        [ "$(grep -c '^| [0-9]* x 8 |' "$work/rows")" -eq 14 ] && [ "$(grep -c '^| [0-9]* | .*: [0-9]* B' "$work/rows")" -eq 11 ] ||
        { echo 'scale:'; cat "$work/rows"; exit 1; }
}

predicted() {
    in_pairs build here:loop loop:commands/doctor loop:commands/plan loop:apps/shallow_water loop:apps/unet loop:apps/train_gpt
    LOOP_BIN=$work LOOP_OUT=$work/closed timeout -k 5 120 sh bench/loop.sh short > "$work/rows" 2> "$work/err" &&
        # 4 all_reduces, 3 halos, 9 steps; of one rank 9
        [ "$(grep -c '^  [a-z_]* .* 1 .* [mu]s *[0-9.]* [mu]s  [0-9.]*$' "$work/rows")" -eq 16 ] &&
        [ "$(grep -c '^C [a-z_]* .* 1 .* [mu]s *[0-9.]* [mu]s  [0-9.]*$' "$work/rows")" -eq 9 ] &&
        grep -q '^16 rows (C apart), [0-9]* within 20 %: median off by ' "$work/rows" ||
        { echo 'loop.sh short:'; cat "$work/rows" "$work/err"; exit 1; }
}

over_mpi() {
    for mpi in $mpis; do
        case $mpi in
        openmpi) run='mpirun.openmpi --oversubscribe --mca mpi_yield_when_idle 1' ;;
        mpich) run=mpirun.mpich ;;
        esac
        for ranks in 2 3; do
            [ "$mpi" = mpich ] && [ "$ranks" -gt 2 ] && continue # it never yields: minutes on two cores
            timeout -k 5 120 $run -np "$ranks" "$work/comm_speed_$mpi" seconds=0.0005 max=65536 \
                > "$work/rows" || { echo "$mpi, $ranks ranks: exit $?"; exit 1; }
            for engine in mpi dpar dpar-heap; do
                for op in barrier broadcast all_reduce all_gather reduce_scatter all_to_all p2p; do
                    grep -q "^$engine,$ranks,$op," "$work/rows" ||
                        { echo "$mpi, $ranks ranks: no row of $engine, $op"; exit 1; }
                done
            done
            timeout -k 5 120 $run -np "$ranks" "$work/halo_$mpi" label="$mpi" n=5,24 w=1,2 samples=1 \
                seconds=0.0005 > "$work/rows" || { echo "halos, $mpi, $ranks ranks: exit $?"; exit 1; }
            for engine in types neighbour pack ordered windows registered private messages adjoint eight floor; do
                grep -q "^$mpi,$ranks,.*,5,2,full,$engine," "$work/rows" ||
                    { echo "halos, $mpi, $ranks ranks: no row of $engine"; exit 1; }
            done
        done
        [ "$mpi" = mpich ] || DPAR_MPI_NODE=2 timeout -k 5 120 $run -np 4 "$work/held_$mpi" rounds=1 > "$work/rows" &&
            { [ "$mpi" = mpich ] || [ "$(grep -c '^| .* | [0-9]* | .* | .* | [0-9.]* |$' "$work/rows")" -eq 13 ]; } ||
            { echo "scale, $mpi:"; cat "$work/rows"; exit 1; }
        for kind in halo f32; do # what short runs of other lengths go by
            timeout -k 5 120 $run -np 2 "$work/${kind}_$mpi" label="$mpi" n=24 w=1,3,4 samples=1 \
                seconds=0.0005 engines=pack,registered,adjoint > "$work/rows" || { echo "$kind, $mpi: exit $?"; exit 1; }
            for engine in pack registered adjoint; do
                grep -q "^$mpi,2,.*,24,4,full,$engine," "$work/rows" || { echo "$kind, $mpi: no row of $engine"; exit 1; }
            done
        done
    done
}

# Two ranks, because MPICH never yields. Open MPI's programs also compare FFTW, if it is installed.
by_hand() {
    case $mpis in *openmpi*) export MPICH_CC=none ;; *) export OPENMPI_CC=none ;; esac
    CFLAGS=-O1 SECONDS=0.001 timeout -k 5 400 sh bench/by_hand.sh 1 > "$work/rows" 2> "$work/err" &&
        [ "$(grep -c '^| .* | [0-9.]* | [0-9.]* | [0-9.]* |$' "$work/rows")" -eq 41 ] ||
        { echo 'by_hand:'; cat "$work/rows" "$work/err"; exit 1; }
}

mpis=
for mpi in openmpi mpich; do
    command -v "mpicc.$mpi" > /dev/null && command -v "mpirun.$mpi" > /dev/null || continue
    mpis="$mpis $mpi"
done
turn=$(some_of over_mpi alone by_hand predicted)
case $turn in *alone*) alone ;; esac
case $turn in *predicted*) predicted ;; esac
case $turn in *over_mpi* | *by_hand*) ;; *) exit 0 ;; esac
[ -n "$mpis" ] || { echo 'mpicc.openmpi, mpicc.mpich not found'; exit 77; }
mpis=$(one_mpi $mpis) all=
case $turn in *by_hand*) by_hand ;; esac
case $turn in *over_mpi*) ;; *) exit 0 ;; esac
for mpi in $mpis; do all="$all coll:$mpi halo:$mpi f32:$mpi held:$mpi"; done
in_pairs build $all
over_mpi
