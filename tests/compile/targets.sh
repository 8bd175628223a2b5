#!/bin/sh
# SPDX-License-Identifier: MIT-0
# RUNS dpar.h and dpar_schedule.h on other processors, in emulators, with other compilers and other C libraries:
# all of their unit tests (tests/index, tests/schedule), and golden.c, whose sums are those of golden.txt
# everywhere. If a double has 64 bits those of plans are included. On AVR and the micro:bit runs only
# dpar_selftest, in 4 KB of RAM.
#     targets.sh            all of that which takes less than a minute each; a push takes a quarter of the targets
#     targets.sh whole      every test on every target that is installed (some hours)
#     targets.sh TARGET [TEST...]   every test on this one, or these tests: index/split
#     targets.sh quick TARGET       what a push runs on this one
#     targets.sh packages   Debian packages that the targets of this push need
#     targets.sh table      the results of the last run, as in docs/embedded.md
. tests/compile/common.sh
embedded=tests/embedded results=build/targets

# Each push takes one of the four rows by the commit's number; nightly takes all.
parts='cortex-m3 cortex-m4 cortex-m0 microbit
wasm32 avr tcc musl windows-msvc riscv32
s390x powerpc64 mingw
i686 mips aarch64'

# Sets for a target: its description; its packages; its compiler and flags; where the tests run; which tests
# (units: all of them; comm: those of ranks, too; selftest; syntax).
target() {
    tests=units flags='-std=gnu99 -O1' link= run=
    case $1 in
    cortex-m3 | cortex-m4 | cortex-m0)
        what="Cortex-M${1#cortex-m}, bare metal" packages='gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm'
        board=mps2-an385
        [ $1 != cortex-m4 ] || board=mps2-an386
        compiler=arm-none-eabi-gcc flags="$flags -mcpu=$1 -mthumb"
        link="--specs=rdimon.specs -nostartfiles -T $embedded/mps2.ld $embedded/cortex_m.c"
        run="qemu-system-arm -M $board -nographic -monitor none -serial none -semihosting-config enable=on,target=native -kernel" ;;
    microbit)
        what='BBC micro:bit (Cortex-M0), 4 KB of RAM' packages='gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm'
        tests=selftest compiler=arm-none-eabi-gcc
        flags='-std=gnu99 -Os -mcpu=cortex-m0 -mthumb -DSAY_BY_SEMIHOSTING -ffunction-sections -fdata-sections'
        link="-Wl,--gc-sections -nostartfiles -T $embedded/microbit.ld $embedded/cortex_m.c"
        run='qemu-system-arm -M microbit -nographic -monitor none -serial none -semihosting-config enable=on,target=native -kernel' ;;
    avr)
        what='AVR ATmega1284 (16-bit int), 4 KB of RAM' packages='gcc-avr avr-libc simavr'
        tests=selftest compiler=avr-gcc
        flags='-std=gnu99 -Os -mmcu=atmega1284p -ffunction-sections -fdata-sections' link=-Wl,--gc-sections
        run='simavr -m atmega1284 -f 16000000' ;;
    riscv32)
        what='RISC-V 32 (rv32imac), bare metal' packages='gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc'
        compiler=riscv64-unknown-elf-gcc flags="$flags -march=rv32imac -mabi=ilp32 -DEXACT_LIBC=0"
        link='--specs=picolibc.specs --oslib=semihost --crt0=hosted
            -Wl,--defsym=__flash=0x80000000,--defsym=__flash_size=0x400000,--defsym=__ram=0x80400000,--defsym=__ram_size=0x8000000'
        # without a chardev the output goes to stderr
        run='qemu-system-riscv32 -M virt -m 256 -bios none -nographic -monitor none -serial none
            -chardev stdio,id=out -semihosting-config enable=on,target=native,chardev=out -kernel' ;;
    wasm32)
        what='wasm32 (WASI)' packages='clang lld wasi-libc libclang-rt-14-dev-wasm32'
        compiler=clang flags="$flags --target=wasm32-wasi" link='-Wl,-z,stack-size=1048576'
        run="node --no-warnings $embedded/wasi.mjs" ;;
    s390x) user 'IBM Z, big-endian' s390x-linux-gnu qemu-s390x-static s390x ;;
    powerpc64) user 'POWER, big-endian' powerpc64-linux-gnu qemu-ppc64-static ppc64 ;;
    mips) user 'MIPS 32, big-endian' mips-linux-gnu qemu-mips-static mips ;;
    i686) user 'x86, 32 bits' i686-linux-gnu '' i386 ;;
    aarch64) user 'AArch64' aarch64-linux-gnu qemu-aarch64-static arm64 ; tests=comm ;;
    tcc) what='x86-64, tcc' packages=tcc compiler=tcc flags='-std=c99' ;;
    musl) what='x86-64, musl' packages=musl-tools compiler=musl-gcc link=-static ;;
    mingw)
        what='Windows, mingw' packages='gcc-mingw-w64-x86-64-win32 wine64'
        compiler=x86_64-w64-mingw32-gcc flags="$flags -D__USE_MINGW_ANSI_STDIO=1" link=-static
        export WINEPREFIX="$PWD/build/wine" WINEDEBUG=-all
        run=/usr/lib/wine/wine64 ;;
    windows-msvc)
        what="Windows, clang-cl's target" packages=clang tests=syntax compiler=clang
        flags='--target=x86_64-pc-windows-msvc -std=c99 -ffreestanding -nostdlibinc -Wall -Wextra -Werror -Wno-frame-larger-than' ;;
    *) echo "no target $1: one of $(echo $parts)" >&2; return 2 ;;
    esac
}
user() { # what, prefix of gcc, emulator, Debian's name of the architecture
    what="$1, Linux" packages="gcc-$2 libc6-dev-$4-cross${3:+ qemu-user-static}" compiler=$2-gcc link=-static run=$3
}

missing() { # of the target that was set: what is not here, or nothing
    for tool in $compiler ${run%% *}; do
        have $tool || { echo $tool; return; }
    done
    [ $compiler != clang ] || [ -z "$run" ] || [ -e /usr/include/wasm32-wasi ] || echo wasi-libc
}

# build UNIT FILE FLAGS...: makes this target's program of a test
build() {
    source=$1 program=$2
    shift 2
    math=-lm
    case $tests in selftest) math= ;; esac
    try $compiler $flags -D_GNU_SOURCE $reached -I"$DPAR_DIR" -Itests/lib "$@" $source $link -o "$program" $math
}
on_it() {  timeout "${TARGET_SECONDS:-900}" $run "$1" < /dev/null; }

# Builds and runs "target test", and keeps its output in build/targets.
one() {
    name=${1%% *} test=${1#* }
    target "$name" || exit 1
    program=$work/${name}_$(echo "$test" | tr '/' '_').exe
    mkdir -p "$results/$name"
    kept=$results/$name/$(echo "$test" | tr '/' '_')
    began=$(date +%s)
    rm -f "$kept"
    case $test in
    golden)
        build $embedded/golden.c "$program"
        on_it "$program" 2> "$program.errors" | tr -d '\r' > "$program.said"
        [ "$(tail -n 1 "$program.said")" = done ] || { tail "$program.said"; echo "$name: golden did not come to its end"; exit 1; }
        sed '$d' "$program.said" > "$program.sums"
        diff "$embedded/golden.txt" "$program.sums" ||
            { echo "$name: sums of golden.c are not those of $embedded/golden.txt"; exit 1; } ;;
    selftest)
        build $embedded/selftest.c "$program" -DSELFTEST_SCHEDULES
        on_it "$program" > "$program.said" 2>&1
        grep -q 'dpar computes here as elsewhere' "$program.said" && grep -q done "$program.said" ||
            { cat "$program.said"; echo "$name: selftest"; exit 1; }
        ram=$(sed -n 's/.*RAM, data and stack: \([0-9]*\) bytes.*/\1/p' "$program.said")
        [ "$tests" != selftest ] || [ "${ram:-4097}" -le 4096 ] || { echo "$name: ${ram:-unknown} bytes of RAM, 4096 at most"; exit 1; }
        cp "$program.said" "$program.sums" ;;
    syntax)
        for header in dpar dpar_schedule dpar_cost; do
            echo "#include \"$header.h\"" > "$program.c"
            try $compiler $flags -DDPAR_IMPLEMENTATION -I"$DPAR_DIR" -fsyntax-only "$program.c"
        done
        : > "$program.sums" ;;
    ranks/*) # words: what the program is started with
        unit=${test#ranks/}
        build $(echo tests/*/ranks/${unit%%:*}.c) "$program"
        words=$(echo "${unit#*:}" | tr '+' ' ')
        [ "$unit" != "${unit%%:*}" ] || words=
        timeout "${TARGET_SECONDS:-900}" $run "$program" $words > "$program.said" 2>&1 < /dev/null ||
            { tail -n 25 "$program.said"; echo "$name: $test"; exit 1; }
        cp "$program.said" "$program.sums" ;;
    *)
        build "tests/$test.c" "$program"
        on_it "$program" > "$program.said" 2>&1 && grep -q ' checks, 0 failed' "$program.said" ||
            { tail -n 25 "$program.said"; echo "$name: $test"; exit 1; }
        cp "$program.said" "$program.sums" ;;
    esac
    rm -f "$program"
    mv "$program.sums" "$kept"
    echo "$name: $test ($(($(date +%s) - began)) s)" | tee -a "$work/done"
}

# Lists the tests of the target that was set.
tests_of() { # all or quick
    case $tests in
    selftest | syntax) echo $tests; return ;;
    esac
    echo golden selftest
    for unit in tests/base/*.c tests/index/*.c tests/schedule/*.c; do
        unit=${unit#tests/} unit=${unit%.c}
        # takes seconds to compile, or a minute to emulate
        case $1:$unit in
        quick:index/halo* | quick:index/cart | quick:index/layout | quick:index/mesh | quick:index/redistribute | \
            quick:index/route | quick:schedule/[aceglop]*) continue ;;
        esac
        echo "$unit"
    done
    [ $tests$1 != commall ] || for unit in tests/host/kernel.c tests/host/mem.c tests/host/strided.c tests/comm/*.c; do
        unit=${unit#tests/}
        echo "${unit%.c}"
    done
    [ $tests$1 != commall ] || echo "ranks/collectives:processes+1-4 ranks/collectives:threads+2 ranks/messages:processes+1-4
        ranks/several:processes+1-3 ranks/teams:processes+2 ranks/errors:processes+1-3 ranks/mismatch:processes+1-3
        ranks/p2p ranks/move ranks/simple ranks/halo_exchange ranks/halo_oracle:processes ranks/halo_cgrid:processes+1-4 ranks/grid"
}

# Lists the targets of this push, or all.
rows() {
    set --
    while read -r row; do
        set -- "$@" "$row"
    done << END
$parts
END
    some_of "$@"
}

chosen= only= how=quick
case ${1:-} in
packages)
    for each in $(rows); do
        target $each && echo $packages
    done | tr ' ' '\n' | sort -u | tr '\n' ' '
    exit ;;
table)
    echo '| target | compiler, and what runs it | ran |'
    echo '|---|---|---|'
    for each in $parts; do
        target $each
        [ -n "$(ls $results/$each 2> /dev/null)" ] || { echo "| $what | $compiler${run:+, ${run%% *}} | did not run |"; continue; }
        files=$(ls $results/$each | grep -c -e ^base_ -e ^index_ -e ^schedule_)
        checks=$(cat $results/$each/* | sed -n 's/^\([0-9]*\) checks, 0 failed.*/\1/p' | awk '{ s += $1 } END { printf "%d", s }')
        case $tests in
        syntax) said='compiled, `dpar_cost.h` too' ;;
        selftest) said="$(sed -n 's/.*data and stack: \([0-9]*\) bytes.*/selftest, \1 bytes of RAM/p' $results/$each/selftest)" ;;
        *)
            all=$(ls tests/base/*.c tests/index/*.c tests/schedule/*.c | wc -l)
            said="$files of $all test programs, $checks checks"
            more=$(ls $results/$each | sed -n 's/:.*//; s/^host_//p; s/^comm_//p; s/^ranks_//p' | sort -u | tr '\n' ' ')
            [ -z "$more" ] || said="$said, with those of host, comm and halo: ${more% }"
            [ ! -e $results/$each/golden ] || said="$said; golden sums$(grep -q plan- $results/$each/golden && echo ' with plans')" ;;
        esac
        echo "| $what | \`$compiler\`${run:+, \`$(basename ${run%% *})\`} | $said |"
    done
    exit ;;
'') chosen=$(rows) ;;
whole) chosen=$parts how=all ;;
quick) chosen=$2 ;;
*)
    chosen=$1 how=all
    shift
    only=$* ;;
esac

# Checks that the sums of this machine are the recorded ones.
try $CC -std=c99 -O1 -I"$DPAR_DIR" $embedded/golden.c -o "$work/golden"
"$work/golden" | sed '$d' | diff $embedded/golden.txt - || { echo "the sums of golden.c are not those of $embedded/golden.txt"; exit 1; }

# Checks that dpar_selftest notices errors and names them: makes one change each in a copy of the headers.
notices() { # what it must say, header, change
    mkdir -p "$work/broken"
    cp "$DPAR_DIR"/dpar.h "$DPAR_DIR"/dpar_schedule.h "$work/broken"
    sed "$3" "$DPAR_DIR/$2" > "$work/broken/$2"
    ! cmp -s "$DPAR_DIR/$2" "$work/broken/$2" || { echo "selftest: nothing is changed by $3"; exit 1; }
    try $CC -std=c99 -O1 -w -DSELFTEST_SCHEDULES -I"$work/broken" $embedded/selftest.c -o "$work/broken/selftest"
    ! timeout 10 "$work/broken/selftest" > "$work/broken/said" && grep -q "^$1 differ here" "$work/broken/said" ||
        { cat "$work/broken/said"; echo "selftest does not say '$1' of a change $3"; exit 1; }
}
[ -n "$only" ] || {
    notices '64-bit divisions' dpar.h 's|dividend / by)|dividend / by - 1)|'
    notices splits dpar.h 's|return (int32_t)dpari_zigzag_find(split, i, local)|return 6 - (int32_t)dpari_zigzag_find(split, i, local)|'
    notices halos dpar.h 's|t->theirs\[s\] = here;|t->theirs[s] = here + 1;|'
    notices schedules dpar_schedule.h 's/k.lifo = desc->lifo ||/k.lifo = !desc->lifo ||/'
}

set --
here=0
for each in $chosen; do
    target $each || exit 2
    lacks=$(missing)
    [ -z "$lacks" ] || { echo "$each: $lacks: not found, skipped"; continue; }
    here=$((here + 1))
    for test in ${only:-$(tests_of $how)}; do
        set -- "$@" "$each $test"
    done
done
[ $here -gt 0 ] || exit 77
case " $chosen " in # its own server, which goes with it
*mingw*) [ ! -x /usr/lib/wine/wineserver64 ] || trap 'WINEPREFIX="$PWD/build/wine" /usr/lib/wine/wineserver64 -k; rm -rf "$work"' EXIT ;;
esac
in_pairs one "$@"
echo "$# test programs on $here targets"
