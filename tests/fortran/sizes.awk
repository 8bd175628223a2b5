# SPDX-License-Identifier: MIT-0
# Of dpar.f90's types and constants: the program that prints their sizes, offsets and values, in C
# (-v lang=c) or in Fortran (-v lang=f90). Both must print the same.
BEGIN {
    if (lang == "c") {
        print "#include \"dpar_blocks.h\"\n#include \"dpar_cost.h\"\n#include \"dpar_debug.h\"\n#include \"dpar_particles.h\"\n#include \"dpar_pencil.h\"\n#include \"dpar_points.h\"\n#include \"dpar_proof.h\"\n#include \"dpar_halo.h\"\n#include \"dpar_exact.h\"\n#ifdef USE_MPI\n#include \"dpar_mpi.h\"\n#endif\n#include <stdio.h>"
        print "#define AT(t, m) printf(\"%s %d %d\\n\", #t \".\" #m, (int)offsetof(t, m), (int)sizeof(((t *)0)->m))"
        print "#define IS(name, c) printf(\"%s %lld\\n\", name, (long long)(c))"
        print "int main(void) {"
    }
}
/^    type, bind\(c\) :: / { type = $NF; n_types++; types[n_types] = type; next }
/^    end type/ { type = ""; next }
type != "" && /::/ {
    m = $0; sub(/.*:: /, "", m); sub(/[ (].*/, "", m)
    member[n_types] = member[n_types] " " m; members++
}
/integer\(c_int32_t\), parameter :: DPAR_/ { c = $0; sub(/.*:: /, "", c); sub(/ .*/, "", c); constant[++constants] = c }
END {
    if (lang == "f90") {
        print "module sizes\n use dpar\n implicit none\ncontains"
        for (i = 1; i <= n_types; i++) {
            print "subroutine size_" i "()\n type(" types[i] "), target :: v\n integer(c_intptr_t) :: b"
            print " b = transfer(c_loc(v), b)"
            print " print '(a,1x,i0)', '" types[i] "', c_sizeof(v)"
            n = split(member[i], m_, " ")
            for (k = 1; k <= n; k++) {
                e = "v%" m_[k]
                print " print '(a,1x,i0,1x,i0)', '" types[i] "." m_[k] "', transfer(c_loc(" e "), b) - b, &"
                print "  int(storage_size(" e ") / 8 * size([" e "]))"
            }
            print "end subroutine"
        }
        print "end module\nprogram all_sizes\n use sizes\n implicit none"
        for (i = 1; i <= n_types; i++) print " call size_" i "()"
        for (i = 1; i <= constants; i++) print " print '(a,1x,i0)', '" constant[i] "', " constant[i]
        print "end program"
        exit
    }
    for (i = 1; i <= n_types; i++) {
        mpi = types[i] ~ /^dpar_mpi/
        if (mpi) print "#ifdef USE_MPI"
        print "printf(\"" types[i] " %d\\n\", (int)sizeof(" types[i] "));"
        n = split(member[i], m_, " ")
        for (k = 1; k <= n; k++) print "AT(" types[i] ", " m_[k] ");"
        if (mpi) print "#endif"
    }
    for (i = 1; i <= constants; i++) {
        c = constant[i]; sub(/_KIND$/, "", c)
        print "IS(\"" constant[i] "\", " c ");"
    }
    print "return 0;\n}"
    print "/* " n_types " types, " members " members, " constants " constants */"
}
