#!/usr/bin/env python3
"""Writes src/text/jinja/case_tables.inc: the full case mappings that Python's str methods apply, as runs of code points
with one distance between letter and mapping, and the mappings that give several letters."""
import sys

MAPPINGS = {"upper": str.upper, "lower": str.lower, "title": str.title, "fold": str.casefold}


def runs_of(mapping):
    runs, specials = [], []
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        mapped = mapping(chr(code))
        if mapped == chr(code):
            continue
        if len(mapped) != 1:
            specials.append((code, [ord(c) for c in mapped]))
            continue
        delta = ord(mapped) - code
        if runs and runs[-1][3] == delta:
            first, last, step, _ = runs[-1]
            gap = code - last
            if gap <= 2 and (first == last or gap == step):
                runs[-1] = (first, code, gap, delta)
                continue
        runs.append((code, code, 1, delta))
    return runs, specials


def main():
    out = ["// Written by scripts/make-case-tables.py; do not edit."]
    for name, mapping in MAPPINGS.items():
        runs, specials = runs_of(mapping)
        out.append(f"constexpr CaseRun {name}_runs[] = {{")
        line = "   "
        for first, last, step, delta in runs:
            item = f" {{{first:#x}, {last:#x}, {step}, {delta}}},"
            if len(line) + len(item) > 118:
                out.append(line)
                line = "   "
            line += item
        out += [line, "};", f"constexpr CaseSpecial {name}_specials[] = {{"]
        line = "   "
        for code, letters in specials:
            letters = letters + [0] * (3 - len(letters))
            item = " {%#x, {%s}}," % (code, ", ".join("%#x" % letter for letter in letters))
            if len(line) + len(item) > 118:
                out.append(line)
                line = "   "
            line += item
        out += [line, "};"]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
