# SPDX-License-Identifier: MIT-0
# Sourced by tests/run and the gates: defines how a test is compiled. A test that calls private functions of a
# header includes the implementation in its own unit; the others link the library.

# Puts all that a program reaches into its own unit: the compiler drops what is not called.
reached='-DDPAR_STATIC -DDPAR_IMPLEMENTATION'
# Succeeds if a source calls private functions. (dpari_hx_traffic is in the library, because headers share it.)
looks_inside() { grep 'dpari_[a-z]' "$1" | grep -qv 'dpari_hx_traffic'; }
# code_of SOURCE LIBRARY: prints what the compiler gets in addition to the source
code_of() { if looks_inside "$1"; then echo "$reached"; else echo "$2"; fi; }
