#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests dpar_mpi.h with each installed MPI: no warnings as C and C++; tests/mpi, the programs of tests/*/ranks
# and of apps/ with 1 to 8 ranks (nightly: every program with both MPIs on all eight numbers). A push runs all
# of it with one MPI on one number, as DPAR_PART and DPAR_MPI (0 or 1) choose, and a part of tests/mpi with the
# other, and every other program; with the second, MPICH, whose waits never yield, on at most as many ranks as there are cores, and on 4.
# Runs all of it with messages only, as between nodes, then some through the node's memory, which is the
# default. DPAR_MPIS=openmpi5: the MPI whose commands are mpicc.openmpi5 and so on. DPAR_MPI_INSIDES=1: only
# tests/mpi.
. tests/compile/common.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DPAR_MPI_FLAT=1
export OMP_WAIT_POLICY=passive # ranks and their threads are more than there are cores
mpis=
for kind in ${DPAR_MPIS:-openmpi mpich}; do
    ! have mpicc.$kind || mpis="$mpis .$kind"
done
counts='1 2 3 4 5 6 7 8 '
whole() { [ "${DPAR_PARTS_OF:-1}" -eq 1 ]; }
# A push runs with one MPI what waits for deadlines or spins for long, and programs that give the same result
# with each.
turn() { whole || [ "${mpis#* .*.}" = "$mpis" ] || [ "${DPAR_MPI:-0}" -eq "$([ -n "$yields" ] && echo 0 || echo 1)" ]; }
whole || counts="$(($(some_of 1 2 3 4 | head -n 1) + ${DPAR_MPI:-0} * 4)) "
if [ -z "$mpis" ]; then
    have mpicc || { echo 'mpicc: not found'; exit 77; }
    mpis=plain
fi
tests='-Wall -Wextra -Werror'
cores=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 1)

run() { # ranks, program, words
    case " $left_out " in *" ${2##*/} "*) return 0 ;; esac
    n=$1 yield=
    shift
    # yielding while anything else runs costs a time slice each time, so only if ranks share cores
    [ "$n" -le "$cores" ] || yield=$yields
    $launch $yield -np "$n" "$@" > "$work/said" 2>&1 ||
        { echo "failed: $launch $yield -np $n $*"; grep -v UCX "$work/said"; exit 1; }
    grep "^skipped: " "$work/said" | sort -u
}

# Compiles the engine with all warnings, which the rank tests link, and the tests of its private functions.
build() {
    case $1 in
    engine) try mpicc$suffix -std=c99 -D_GNU_SOURCE -O1 $system $strict_c -DDPAR_MPI_IMPLEMENTATION -I"$DPAR_DIR" -I. -Itests/lib \
        -c "$work/unit.c" -o "$work/engine.o" ;;
    engine_cxx) try mpicxx$suffix -x c++ -std=c++20 -D_GNU_SOURCE $no_cxx $system $strict -DDPAR_MPI_IMPLEMENTATION \
        -I"$DPAR_DIR" -I. -Itests/lib -fsyntax-only "$work/unit.c" ;;
    three_cxx) try mpicxx$suffix -x c++ -std=c++11 -O1 $no_cxx $tests $reached -I"$DPAR_DIR" -I. -Itests/lib \
        tests/mpi/three.c -o "$work/three_cxx" ;;
    every_7) try mpicc$suffix -O1 $tests -DDPAR_MPI_LIMIT=7 $reached -I"$DPAR_DIR" -I. -Itests/lib \
        tests/mpi/every.c -o "$work/every_7" -lm ;;
    doctor) try mpicc$suffix -O1 $tests -DDOCTOR_MPI $reached -I"$DPAR_DIR" -I. -Itests/lib commands/doctor.c -o "$work/doctor" ;;
    scale_few) try mpicc$suffix -O1 $tests -DDPAR_MPI_LIMIT=100000000 $reached -I"$DPAR_DIR" -I. -Itests/lib \
        tests/mpi/scale.c -o "$work/scale_few" -lm ;;
    threads) try mpicc$suffix -O1 $tests $openmp $reached -I"$DPAR_DIR" -I. -Itests/lib \
        tests/mpi/threads.c -o "$work/threads" -lm -lpthread ;;
    planet) try $CC -O1 $reached -I"$DPAR_DIR" -I. -Itests/lib apps/shallow_water.c -o "$work/planet_shm" -lm ;;
    *) try mpicc$suffix -O1 $tests $reached -I"$DPAR_DIR" -I. -Itests/lib "tests/mpi/$1.c" -o "$work/$1" -lm ;;
    esac
}

# Programs that also run without MPI.
programs='tests/comm/ranks/collectives tests/comm/ranks/messages tests/comm/ranks/several tests/comm/ranks/errors tests/comm/ranks/simple tests/comm/ranks/scan tests/comm/ranks/move
    tests/exchange/ranks/exchange tests/exchange/ranks/exchange_faults tests/halo/ranks/halo_exchange tests/halo/ranks/grid tests/halo/ranks/grid_reduce tests/halo/ranks/grid_steps tests/debug/ranks/halo_check tests/debug/ranks/grid_check apps/ranks apps/shallow_water tests/spatial/ranks/spatial tests/spatial/ranks/types apps/unet apps/train_gpt
    tests/halo/ranks/halo_oracle tests/halo/ranks/halo_cgrid tests/points/ranks/points tests/points/ranks/points_part tests/points/ranks/points_lists tests/points/ranks/points_move tests/particles/ranks/neighbours tests/particles/ranks/particles tests/particles/ranks/particles_errors tests/pencil/ranks/pencil tests/blocks/ranks/blocks tests/blocks/ranks/blocks_more tests/exact/ranks/exact_ranks tests/train/ranks/ddp tests/train/ranks/update tests/train/ranks/ddp_codes tests/train/ranks/ddp_arrays tests/train/ranks/zero1 tests/train/ranks/moments tests/train/ranks/matrices tests/train/ranks/fsdp_arrays tests/train/ranks/made tests/train/ranks/fsdp tests/train/ranks/tensor
    tests/debug/ranks/doctor_ranks tests/train/ranks/sequence tests/train/ranks/ulysses tests/spatial/ranks/window_attention tests/train/ranks/expert tests/train/ranks/pipeline tests/train/ranks/wire'
# A push takes every other program, alternately, and always those that the checks of files need.
chosen=$(half_of $programs; printf '%s\n' tests/comm/ranks/move apps/shallow_water)
left_out=$(for each in $programs; do
    case " $(echo $chosen) " in *" $each "*) ;; *) echo "${each##*/}" ;; esac
done)
left_out=$(echo $left_out)
link() {
    name=${1##*/} code=$(code_of "$1.c" "$work/engine.o $work/dpar.a")
    try mpicc$suffix -O1 $tests -Wno-unused-parameter -Wno-unused-function -DUSE_MPI -I"$DPAR_DIR" -I. -Itests/lib \
        "$1.c" $code -o "$work/$name" -lm
}

insides() {
    for n in 1 2 3 4 5 6 7 8; do
        run "$n" "$work/three"
    done
    for n in $counts; do
        run "$n" "$work/every"
        run "$n" "$work/node"
    done
    run 2 "$work/every" order
    run 2 "$work/every" block
    turn || return 0
    run "$most" "$work/three_cxx"
    run 2 "$work/every_7"
    run 2 "$work/every" two
    run 3 "$work/every_7" order check
    run 3 "$work/every" check
    run "$blocked" "$work/every" block order check
    run 2 "$work/order"
    run 3 "$work/order"
    run 4 "$work/cart"
    run 3 "$work/late"
    run 4 "$work/scale"
    run "$most" "$work/scale_few"
    ! whole || [ -z "$yields" ] || run 18 "$work/scale"
    threads 2 $([ -z "$yields" ] || echo 3)
}

# Tests MPI with OpenMP threads, at each level of MPI_Init_thread.
threads() { # ranks...
    for n in "$@"; do
        for how in funneled serialized multiple; do
            run "$n" "$work/threads" "$how"
        done
    done
}

programs() {
    run 2 "$work/move" 20
    run "$most" "$work/move" 5
    run 2 "$work/ranks" --size 1048576
    for n in $counts; do
        for name in collectives messages several errors simple scan exchange exchange_faults halo_oracle halo_exchange grid grid_reduce grid_steps points points_part points_lists points_move neighbours particles particles_errors pencil blocks blocks_more exact_ranks halo_check grid_check types ddp update ddp_codes moments matrices fsdp_arrays halo_cgrid sequence ulysses window_attention \
            doctor_ranks fsdp pipeline tensor expert; do
            run "$n" "$work/$name"
        done
        [ "$n" -gt 4 ] || run "$n" "$work/spatial" # it is for 1 to 4
        # the same checkpoint on all, with every MPI and without
        run "$n" "$work/shallow_water" --case 5 --rows 19 --days 0.2 --save "$work/planet"
        cmp "$work/planet" "$work/planet_before" ||
            { echo "another state on $n ranks"; exit 1; }
        mv "$work/planet" "$work/planet_before"
        run "$n" "$work/unet" --size 42x22 --steps 2 --check
    done
    run 2 "$work/shallow_water" --resume "$work/planet_before" --days 0.3
    run 2 "$work/spatial"
    run 4 "$work/wire"
    [ ! -e "$work/train_gpt" ] || program=$work/train_gpt launch="$launch $yields" most=$most sh tests/apps/train_gpt.sh all || exit 1
}

some() { # ranks
    for name in collectives messages several errors exchange exchange_faults halo_oracle halo_exchange grid grid_reduce grid_steps points points_part points_lists points_move neighbours particles particles_errors pencil blocks blocks_more exact_ranks halo_cgrid types fsdp tensor expert; do
        run "$1" "$work/$name"
    done
    run "$1" "$work/move" 5
    run "$1" "$work/shallow_water" --case 5 --rows 19 --days 0.2 --save "$work/planet"
    cmp "$work/planet" "$work/planet_before" || { echo "another state on $1 ranks"; exit 1; }
}

# Tests the doctor command over MPI; with a small /dev/shm, for both ranks or for one that has the name of
# another node; started by the other MPI.
doctor() {
    says() { # words, how to start it...
        words=$1
        shift
        "$@" --join > "$work/said" 2>&1
        case $? in 0 | 1) ;; *) false ;; esac && grep -q -e "$words" "$work/said" ||
            { echo "failed: $*: no '$words' in"; grep -v UCX "$work/said"; exit 1; }
    }
    says '^within     a node, by messages: 8 B in [0-9.]* [um]s, 1 MiB at [0-9.]* GB/s (ranks 0 and 1 on ' \
        $launch -np 2 "$work/doctor"
    grep -q '^launcher   .*, MPI libmpi' "$work/said" || { echo 'failed: which MPI?'; cat "$work/said"; exit 1; }
    if [ "$(df -k /dev/shm 2> /dev/null | awk 'NR == 2 { print ($2 > 700000) }')" = 1 ] &&
        unshare -mu mount -t tmpfs -o size=64m none /dev/shm 2> /dev/null; then
        says "^WRONG: both ranks: /dev/shm holds 12 MiB, and libmpi[a-z]*\\.so.* takes some 4 MiB of it for each of 2 ranks" \
            unshare -m sh -c "mount -t tmpfs -o size=12m none /dev/shm && exec $launch -np 2 '$work/doctor' \"\$@\"" sh
        [ -z "$yields" ] || says '^WRONG: rank 1 on far: /dev/shm holds 64.0 MiB, that of rank 0 on ' \
            $launch --mca btl tcp,self -np 1 "$work/doctor" --join : -np 1 unshare -mu sh -c \
            "hostname far && mount -t tmpfs -o size=64m none /dev/shm && exec '$work/doctor' --join" sh
    else
        echo 'skipped: doctor with a small /dev/shm (needs unshare -m, and a large one)'
    fi
    [ "${mpis#* .*.}" = "$mpis" ] || says 'WRONG: .*started 2 ranks, but MPI knows only this one -> start it with the mpirun' \
        timeout 60 "mpiexec$other" -np 2 "$work/doctor"
}

# Tests a rank that dies while the others continue: mpirun reports a failure, but they do not.
gone() {
    [ -n "$yields" ] || return 0
    for what in 'killed 0' 'killed 1' 'killed 2' 'killed 3' 'killed 4' aborts other late; do
        $launch $yields $recovers -np 4 "$work/gone" $what > "$work/said" 2>&1
        [ "$(grep -c 'checks, 0 failed' "$work/said")" -ge 3 ] && ! grep -q '[1-9][0-9]* failed' "$work/said" ||
            { echo "failed: gone $what"; cat "$work/said"; exit 1; }
    done
    DPAR_MPI_NODE=0 $launch $yields $recovers -np 4 "$work/gone" one_node > "$work/said" 2>&1
    [ "$(grep -c 'checks, 0 failed' "$work/said")" -eq 3 ] || { echo 'failed: gone one_node'; cat "$work/said"; exit 1; }
    # random ones, as if on two nodes; with ULFM a rank learns of a death from MPI
    [ "$recovers" = '--mca orte_enable_recovery 1' ] || return 0
    RUN="$launch $yields $recovers -np 4" \
        sh tests/mpi/faults.sh "$work/faults" "${MPI_FAULT_ROUNDS:-20}" "${FAULT_SEED:-1}" || exit 1
}

# Tests too little space in /dev/shm, in a mount namespace of its own; MPI itself uses TCP then.
full() {
    [ -n "$yields" ] && [ "$recovers" = '--mca orte_enable_recovery 1' ] || return 0
    [ "$(uname)" = Linux ] && unshare -m sh -c 'mount -t tmpfs -o size=64k none /dev/shm' 2> /dev/null ||
        { echo 'a full /dev/shm: skipped, no mount namespaces'; return 0; }
    for kib in 64 1024 4096 65536; do
        unshare -m sh -c 'mount -t tmpfs -o size="$1"k none /dev/shm && shift && exec "$@"' sh "$kib" \
            $launch $yields --mca btl tcp,self -np 4 "$work/full" "$kib" > "$work/said" 2>&1 ||
            { echo "failed: full $kib"; cat "$work/said"; exit 1; }
    done
}

# Tests collectives in nodes and between them, with equal and different numbers of ranks, in any order.
by_levels() {
    run 4 "$work/every"
    run 4 "$work/every" turned private two
    run 4 "$work/every" ragged
    run 3 "$work/late"
    run 4 "$work/beside"
    run 4 "$work/deals"
    run 5 "$work/deals"
    threads 4
    gone
    full
    whole || return 0
    for n in 2 3 5 6 7 8; do
        run "$n" "$work/every" private
        run "$n" "$work/every" turned ragged
    done
    run 5 "$work/every_7" turned
    export DPAR_MPI_NODE=3
    run 8 "$work/every"
    run 6 "$work/every" turned
    run 6 "$work/every" check
    run 6 "$work/every" block
    export DPAR_MPI_NODE=2
}

# Runs on one node; then as if nodes had two ranks, or one, with an MPI that yields, or at night.
by_memory() {
    export DPAR_MPI_FLAT=0
    threads 2
    for n in $counts; do some $(whole || [ "$n" -le 4 ] && echo "$n" || echo $((n - 4))); done
    full
    if [ -n "$yields" ] || whole; then
        export DPAR_MPI_NODE=2
        for n in $(whole && echo 4 3 || echo $((3 + ${DPAR_PART:-0} % 2))); do
            run "$n" "$work/order"
            run "$n" "$work/cart"
            some "$n"
            run "$n" "$work/doctor_ranks"
        done
        by_levels
        unset DPAR_MPI_NODE
    fi
    export DPAR_MPI_FLAT=1
}

printf '#include "dpar_mpi.h"\n' > "$work/unit.c"
printf 'int main(void) { return 0; }\n' > "$work/main.c"
[ -n "${DPAR_MPI_INSIDES:-}" ] || usual_library "$work/dpar.a" -O1 # the same for each MPI
no_cxx='-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX'
linux=$([ "$(uname)" != Linux ] || echo full)
for suffix in $mpis; do
    [ "$suffix" != plain ] || suffix=
    # includes MPI's headers as system headers, because their warnings are not ours
    system=$(mpicc$suffix -show | tr ' ' '\n' | sed -n 's/^-I/-isystem /p' | tr '\n' ' ')
    launch="timeout 200 mpiexec$suffix" yields= most=4 blocked=3
    ! whole && blocked=2
    recovers='--mca orte_enable_recovery 1'
    ! mpiexec$suffix --version 2>&1 | grep -q 'Open MPI) [5-9]' || recovers='--with-ft ulfm --enable-recovery'
    if mpiexec$suffix --version 2>&1 | grep -qi 'open.*mpi\|OpenRTE'; then
        launch="$launch --oversubscribe" yields='--mca mpi_yield_when_idle 1' most=8 blocked=3
    fi
    openmp=-fopenmp
    mpicc$suffix -fopenmp "$work/main.c" -o "$work/main" > /dev/null 2>&1 ||
        { openmp=-Wno-unknown-pragmas; echo "OpenMP with mpicc$suffix: not found, skipped"; }
    if [ -n "${DPAR_MPI_INSIDES:-}" ]; then
        in_pairs build every every_7 three three_cxx order cart threads late gone beside node deals scale scale_few
        insides
        export DPAR_MPI_FLAT=0 DPAR_MPI_NODE=2
        by_levels
        unset DPAR_MPI_NODE
        export DPAR_MPI_FLAT=1
        echo "mpicc$suffix: tests/mpi; ${counts}ranks"
        continue
    fi
    planet=planet
    ! [ -e "$work/planet_shm" ] && turn || planet=
    more=
    ! turn || more="every_7 three_cxx order cart threads late gone faults $linux beside deals doctor scale scale_few $planet"
    in_pairs build engine every three node $more engine_cxx
    [ -z "$planet" ] ||
        try "$work/planet_shm" --case 5 --rows 19 --days 0.2 --ranks 2 --save "$work/planet_before" > /dev/null
    ! turn || in_pairs link $(printf '%s\n' $chosen | sort -u)
    insides
    for other in $mpis; do [ "$other" = "${suffix:-plain}" ] || break; done
    if turn; then
        programs
        doctor
        by_memory
    fi
    echo "mpicc$suffix: as C and C++; ${counts}ranks$(turn || echo ', some of tests/mpi alone')"
    # the next one's: its waits spin, and if they share cores each costs time slices
    share=$((cores < 4 ? cores : 4))
    whole || counts="$((${counts% } % share + 1)) "
done
