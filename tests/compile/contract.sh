#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests the contract: cc -DDPAR_IMPLEMENTATION -I. FILE.c -o FILE needs no other flag. What users copy has -O2
# as well, for speed; it is left out here, so that the contract is tested. Each numbered example has at most 75
# lines; its first lines show the commands and their output, and running them must print these lines in any
# order ("..." stands for the rest of a line, or for a part of it). The same command must compile a program that
# includes one header, for each header, and the program in its first comment; those of dpar_mpi.h, dpar_nccl.h
# and dpar_cuda.h are compiled, the second over the stand-ins for CUDA and NCCL.
#     contract.sh quick   for make test: the first example by the contract, the others linked with the library
#     contract.sh         all by the contract; a push takes one in four
. tests/compile/common.sh
quick=
if [ "${1:-}" = quick ]; then
    quick=yes
    usual_library "$work/quick.a" -O1
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# Prints a command and the lines of its output from the first comment: behind " *   cc ", " *   build/" and the
# like.
commands_of() {
    awk 'NR == 1 { next }
        /^ ?[*!]   / { sub(/^ ?[*!]   /, ""); if ($0 ~ /^(cc|mpicc|mpifort|gfortran|mpiexec|build\/)/) { n++; print "C " $0 } else if (n) print "L " $0; next }
        /\*\// || /^[^ !\/*]/ { exit }' "$1"
}
# Checks that each expected line was printed once.
compare() {
    awk 'FNR == NR { said[++n] = $0; next }
        { expected[++m] = $0 }
        function fits(line, form,   part, k, i, at) {
            k = split(form, part, "[.][.][.]")
            if (k == 1) return line == form
            if (substr(line, 1, length(part[1])) != part[1]) return 0
            line = substr(line, length(part[1]) + 1)
            for (i = 2; i <= k; i++) {
                if (part[i] == "" && i == k) return 1
                at = index(line, part[i])
                if (!at) return 0
                line = substr(line, at + length(part[i]))
            }
            return line == ""
        }
        END {
            for (i = 1; i <= m; i++) {
                for (j = 1; j <= n && (used[j] || !fits(said[j], expected[i])); j++) { }
                if (j > n) { print "expected, and not printed: " expected[i]; bad = 1 } else used[j] = 1
            }
            for (j = 1; j <= n; j++) if (!used[j]) { print "printed, and not expected: " said[j]; bad = 1 }
            exit bad
        }' "$1" "$2"
}
run_as_said() { # source, command, file of what it prints
    program=$(echo "$2" | sed 's/ .*//')
    case $program in
    cc | build/*) ;;
    *) have "$program" || { echo "$program: not found, $1 skipped"; return; } ;;
    esac
    here=$(echo "$2" | sed "s|^cc |$CC |; s| -O2 | |; s| -I\\. | -I$DPAR_DIR |; s|build/|$work/|g")
    case "$quick $2" in
    'yes cc '*/01_*) ;;
    'yes cc '*-DDPAR_IMPLEMENTATION*) # the objects of the library in place of the implementation
        here=$(echo "$here" | sed "s| -DDPAR_IMPLEMENTATION | |; s|\( -o [^ ]*\)|\1 $work/quick.a -lm|")
        ;;
    esac
    timeout 120 sh -c "$here" < /dev/null > "$3.said" 2>&1 || { cat "$3.said"; echo "$1: exit $? of: $2"; exit 1; }
    sed 's/^ *//; s/ *$//' "$3.said" > "$3.trimmed"
    compare "$3.trimmed" "$3" || { echo "$1: another thing is printed than it says: $2"; exit 1; }
}
example() {
    name=$(basename "$1" | sed 's/\..*//') command= runs=0
    number=${name%%_*}
    [ "$(wc -l < "$1")" -le 75 ] || { echo "$1: more than 75 lines"; exit 1; }
    case $number in # the strategies of training: few lines call dpar, apart from main's and dpar_fail; none counts bytes
    07 | 08 | 10 | 12 | 13 | 14)
        [ "$(sed '/^int main/,$d; s/dpar_fail(//g' "$1" | grep -c 'dpar_[a-z0-9_]*(')" -le 10 ] || { echo "$1: more than 10 lines call dpar"; exit 1; }
        ! grep -q '_bytes' "$1" || { echo "$1: it counts bytes"; exit 1; } ;;
    esac
    commands_of "$1" > "$work/$name.lines"
    if grep -q '^#include <fftw3.h>' "$1" && ! echo '#include <fftw3.h>' | $CC -E - > /dev/null 2>&1; then
        echo "fftw3.h: not found, $1 skipped"
        return
    fi
    case $1 in
    *.c) grep -q "cc -O2 -DDPAR_IMPLEMENTATION -I[.] $1 -o build/$number \(&&\|-l\)" "$work/$name.lines" ||
        { echo "$1: its first lines do not say: cc -O2 -DDPAR_IMPLEMENTATION -I. $1 -o build/$number && ..."; exit 1; } ;;
    esac
    while read -r kind line; do
        case $kind in
        C)
            [ -z "$command" ] || run_as_said "$1" "$command" "$work/$name.$runs"
            command=$line runs=$((runs + 1))
            : > "$work/$name.$runs"
            ;;
        L) printf '%s\n' "$line" >> "$work/$name.$runs" ;;
        esac
    done < "$work/$name.lines"
    [ -s "$work/$name.$runs" ] || { echo "$1: its first lines do not say what it prints"; exit 1; }
    run_as_said "$1" "$command" "$work/$name.$runs"
}
# Prints the program in a header's first comment; a line of code may have a word at its end in place of a
# comment.
program_of() {
    awk 'NR == 1 { next } /\*\//{ last = 1 } / \*     (cc|mpicc|nvcc) / { exit } / \*     #include "/ { on = 1 }
        on && / \*     / { sub(/ \*     /, ""); sub(/ *\*\/$/, ""); if (match($0, /[;{]   +[^ ]/)) $0 = substr($0, 1, RSTART); print }
        last { exit }' "$1"
}
first_screen() {
    program_of "$DPAR_DIR/$1.h" > "$work/first_$1.c"
    grep -q 'int main' "$work/first_$1.c" ||
        printf '#include "%s.h"\nint main(void) { return dpar_status_text(0) == 0; }\n' "$1" > "$work/first_$1.c"
    if [ -n "$quick" ]; then
        try $CC "-I$DPAR_DIR" "$work/first_$1.c" -o "$work/first_$1" "$work/quick.a" -lm
    else
        try $CC -DDPAR_IMPLEMENTATION "-I$DPAR_DIR" "$work/first_$1.c" -o "$work/first_$1"
    fi
    try timeout 60 "$work/first_$1" > "$work/first_$1.said"
}
in_pairs first_screen $headers
# Lines that users copy have -O2 or -O1, because without it dpar takes several times as long.
bare=$(grep -nE '(^|[^a-z])(mpi)?cc (-I[^ ]* )*-D(DPAR_|USE_MPI|DOCTOR_MPI)' README.md docs/*.md docs/guide/*.md examples/* apps/*.* commands/*.[ch] \
    bindings/fortran/dpar.c bindings/fortran/dpar.f90 dpar*.h)
bare=$bare$(grep -nE '(^|[^a-z])gfortran [^`]*\.f90' README.md docs/*.md docs/guide/*.md examples/* apps/*.* | grep -v ' -O[23] ')
[ -z "$bare" ] || { echo "compiled without -O2: $bare"; exit 1; }
engine() { # header, compiler and its flags
    header=$1
    shift
    program_of "$header.h" > "$work/engine_$header.c"
    grep -q 'int main' "$work/engine_$header.c" || { echo "$header.h: no program in its first comment"; exit 1; }
    try "$@" -Wall -Wextra -Werror -Wno-unused-function -I. "-I$DPAR_DIR" -c "$work/engine_$header.c" -o "$work/engine.o"
}
if have mpicc; then engine dpar_mpi mpicc -std=c99; else echo 'mpicc: not found, skipped'; fi
engine dpar_nccl $CC -std=c99 -Itests/gpu/fake
engine dpar_cuda $CC -std=c99
[ "$(grep -l '^#include <stdio' "$work"/first_*.c | wc -l)" -ge 7 ] || { echo 'first comments without programs'; exit 1; }
if [ -n "$quick" ]; then
    in_pairs example $(ls examples/[0-9]*)
else
    in_pairs example $(some_of $(ls examples/[0-9]*))
fi
