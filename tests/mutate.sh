#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Breaks src/index one operator, constant or bound at a time and runs the module's unit test, which must fail:
#     tests/mutate.sh [EVERY [MODULE...]]     EVERY: take only each EVERY-th mutant (1: all)
# Lists the survivors; fails for each one that tests/mutants.txt does not explain. MUTANTS=FILE: take only those
# that the file lists. MUTANTS_FROM: the first one to take (0).
cd "$(dirname "$0")/.." || exit 1
: "${CC:=cc}" "${MUTANTS:=}"
every=${1:-1}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- $(ls src/index/*.c | sed 's|.*/||; s|\.c$||')
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/o" "$work/inc"
for c in src/base/*.c src/index/*.c; do
    $CC -O2 -c "$c" -o "$work/o/$(basename "$c" .c).o" || exit 1
done
# Tests see what modules share privately. Those that call what a module keeps to itself are compiled together
# with the module (`beside`).
{
    printf '#ifndef DPAR_H\n#define DPAR_H\n'
    for h in src/base/*.h src/index/*.h; do
        echo "#include \"$PWD/$h\""
    done
    printf '#ifdef MUTANT\n#include MUTANT\n#endif\n#endif\n'
} > "$work/inc/dpar.h"
beside=' cart mesh sampler '

list_mutants() {
    awk -f tests/mutants.awk "$1" |
        awk -v every="$every" -v from="${MUTANTS_FROM:-0}" '(NR - 1) % every == from % every'
}

# Limits the processor time in seconds, because a busy machine must not kill a mutant.
passes() {
    (ulimit -c 0; ulimit -t "${MUTANT_SECONDS:-20}"; exec timeout 120 "$1") > /dev/null 2>&1
    failed=$?
    return $failed
}

killed=0 survived=0 explained=0 broken=0
for module in "$@"; do
    source=src/index/$module.c
    case $module in # several tests, which end at the first failure
    halo | reach | window) tests='window halo_cgrid halo_cube halo halo_geometry halo_window' ;;
    *) tests=$module ;;
    esac
    for test in $tests; do
        [ ! -e "$work/$test.test.o" ] || continue
        case $beside in *" $module "*) continue ;; esac
        $CC -O2 -DCHECK_STOP "-I$work/inc" -Itests/lib -c "tests/index/$test.c" -o "$work/$test.test.o" || exit 1
    done
    cp "$work/o/$module.o" "$work/whole.o"
    list_mutants "$source" > "$work/mutants"
    while IFS='	' read -r line column length new name; do
        [ -z "$MUTANTS" ] || grep -qxF "$module: $name" "$MUTANTS" || continue
        # a sample trusts the explanations, because a survivor has to pass all tests, which takes long
        if [ "$every" -gt 1 ] && grep -qxF "$module: $name" tests/mutants.txt 2> /dev/null; then
            explained=$((explained + 1))
            continue
        fi
        awk -v line="$line" -v column="$column" -v old="$length" -v new="$new" '
            NR == line { $0 = substr($0, 1, column - 1) new substr($0, column + old) } { print }' \
            "$source" > "$work/$module.c"
        case $beside in
        *" $module "*)
            rm -f "$work/o/$module.o"
            $CC -O1 -w -U__SIZEOF_INT128__ -DCHECK_STOP "-DMUTANT=\"$work/$module.c\"" "-I$work/inc" \
                -Itests/lib -Isrc/index -c "tests/index/$module.c" -o "$work/$module.test.o" 2> /dev/null ;;
        *)
            $CC -O1 -w -U__SIZEOF_INT128__ -Isrc/index -c -o "$work/o/$module.o" -x c - \
                < "$work/$module.c" 2> /dev/null ;;
        esac || {
            broken=$((broken + 1))
            continue
        }
        for test in $tests; do
            $CC "$work/$test.test.o" "$work"/o/*.o -lm -o "$work/test" || exit 1
            passes "$work/test" || break
        done
        if [ $failed -ne 0 ]; then
            killed=$((killed + 1))
        elif grep -qxF "$module: $name" tests/mutants.txt 2> /dev/null; then
            explained=$((explained + 1))
        else
            survived=$((survived + 1))
            echo "$module: $name"
        fi
    done < "$work/mutants"
    cp "$work/whole.o" "$work/o/$module.o"
done
echo "$killed mutants killed, $explained survive and are explained, $survived survive, $broken do not compile"
[ "$survived" -eq 0 ] && [ "$killed" -gt 0 ]
