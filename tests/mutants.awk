# SPDX-License-Identifier: MIT-0
# Lists the mutants of a C source, one per line: line, column, length of the text to remove, its replacement,
# and a name that stays the same when lines are added above: the line's text with the change in brackets.
function mutant(at, old, new,    text) {
    text = substr(line, 1, at - 1) "[" old " -> " new "]" substr(line, at + length(old))
    sub(/^ +/, "", text)
    printf "%d\t%d\t%d\t%s\t%s\n", NR, at, length(old), new, text
}
BEGIN {
    flip["<"] = "<="; flip["<="] = "<"; flip[">"] = ">="; flip[">="] = ">"
    flip["=="] = "!="; flip["!="] = "=="; flip["+"] = "-"; flip["-"] = "+"; flip["*"] = "+"
    flip["/"] = "*"; flip["%"] = "/"; flip["&&"] = "||"; flip["||"] = "&&"
    flip["+="] = "-="; flip["-="] = "+="; flip[">>"] = "<<"; flip["&"] = "|"
}
{ line = $0 }
/^#if defined\(__SIZEOF_INT128__\)/ { other = 1 } # the branch that is not compiled here
/^#else|^#endif/ { other = 0 }
other { next }
/^ +return [01];/ { # truth
    at = index(line, "return ") + 7
    mutant(at, substr(line, at, 1), 1 - substr(line, at, 1))
    next
}
/^ +[a-z0-9_]+_t [^=(]*\[.*\];/ { next } # the sizes of arrays
saying || /dpari_[a-z_]*say[a-z_]*\(/ { saying = !/;$/; next } # sentences
/^#/ || /^ *\*/ || /^\/\*/ { next }
/^[a-z].*\(/ && !/;$/ { next } # the heads of functions
/enum|typedef/ { next }
{
    quoted = 0
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        if (c == "\"" || c == "\047") quoted = !quoted
        if (substr(line, i, 2) == "/*") break
        if (quoted) continue
        if (c == " ") { # an operator between blanks
            rest = substr(line, i + 1)
            op = substr(rest, 1, index(rest, " ") - 1)
            if (op == "<" && line ~ /^ *for \(/) mutant(i + 1, op, "+ 1 <") # one less
            else if (op in flip) mutant(i + 1, op, flip[op])
        } else if (substr(line, i, 2) == "++" || substr(line, i, 2) == "--") {
            if (line !~ /^ *for \(/) mutant(i, substr(line, i, 2), c == "+" ? "--" : "++")
            i++
        } else if (c ~ /[0-9]/ && substr(line, i - 1, 1) !~ /[A-Za-z0-9_.]/) {
            match(substr(line, i), /^[0-9]+/)
            number = substr(line, i, RLENGTH)
            if (substr(line, i + RLENGTH, 1) !~ /[A-Za-z_.]/ && number < 100) mutant(i, number, number + 1)
            i += RLENGTH - 1
        } else if (c == "!" && substr(line, i + 1, 1) != "=") {
            mutant(i, "!", "!!")
        }
    }
}
