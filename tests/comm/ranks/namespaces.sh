#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Tests ranks in different namespaces (namespaces.c). fixed: without PIE, so that all ranks have their memory at
# the same addresses and a read from the wrong process would succeed; placed: with PIE, where such a read mostly
# fails. whole: all pairs of namespaces.
: "${CC:=cc}" "${CFLAGS:=-O2}"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpar.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
if [ "$(uname -s)" != Linux ]; then
    echo 'skipped: namespaces are of Linux'
    exit 77
fi
case $1 in fixed) pie='-fno-pie -no-pie' ;; placed) pie='-fPIE -pie' ;; *) echo 'fixed or placed?' >&2; exit 2 ;; esac
$CC $CFLAGS $pie -DDPAR_STATIC -D_GNU_SOURCE -I. -Itests/lib tests/comm/ranks/namespaces.c -o "$work/namespaces" -lm -pthread || exit 1
timeout 900 "$work/namespaces" $2
