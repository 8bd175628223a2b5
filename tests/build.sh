# SPDX-License-Identifier: MIT-0
# Sourced by tests/run and the gates: how a test is compiled. One that calls what is private to a header
# has an implementation of its own, in its unit; the others link the library.

# All that a program reaches, in its own unit: the compiler drops what is not called.
reached='-DDPAR_STATIC -DDPAR_IMPLEMENTATION'
# (What headers share is in the library, too.)
looks_inside() { grep 'dpari_[a-z]' "$1" | grep -qv 'dpari_hx_traffic'; }
# source, library: what the compiler is given beside the source
code_of() { if looks_inside "$1"; then echo "$reached"; else echo "$2"; fi; }
