"""Checks a program of this folder: `check.py X.spec X.p4`. `check.py --tie` writes `forms.txt`.

- Each register array is accessed at most once per packet, as a switch can: in the .spec by a single instruction (or a
  read and a write at the same index, without a jump or label between), in the .p4 by a read and a write at the same
  index. Both texts have no loops after the parser, so what is there once runs at most once.
- Each table is applied at most once.
- The metadata of the .spec has at most 256 bytes, and results of `hash` are in the first 128: DPDK 22.11 does not say
  so, and takes other fields.
- Both have the same register arrays, and the same tables with the same keys, actions and sizes: the .spec is written
  by hand, so nothing else ties them.
- `forms.txt` has the hashes of both, without comments: neither was changed since they were last compared. After a
  change of one, change the other alike, run the tests, and write the hashes again.
"""

import hashlib
import re
import sys
from pathlib import Path

FORMS = "forms.txt"

# The position of the register array among the operands.
ACCESSES = {"regrd": 1, "regwr": 0, "regadd": 0}


def spec_of(text):
    """Register arrays, tables and problems of a .spec."""
    lines = [re.split(r"[;#]|//", line)[0].split() for line in text.splitlines()]
    lines = [words for words in lines if words]
    registers, tables, problems = {}, {}, []
    accesses, applied, run = {}, {}, 0
    block = table = part = None
    for words in lines:
        if words == ["}"]:
            if part:
                part = None
            else:
                block = table = None
        elif words[0] == "regarray":
            registers[words[1]] = int(words[3], 0)
        elif block is None and words[-1] == "{":
            block = words[0]
            if block == "table":
                table = tables.setdefault(words[1], {"keys": [], "actions": [], "size": None})
        elif table is not None:
            if words[-1] == "{":
                part = words[0]
            elif part == "key":
                table["keys"].append((words[0].split(".")[-1], words[1].replace("wildcard", "ternary")))
            elif part == "actions":
                table["actions"].append(words[0])
            elif words[0] == "size":
                table["size"] = int(words[1], 0)
        elif block in ("apply", "action"):
            run += words[1:2] == [":"] or words[0].startswith("jmp")
            instruction(words[2:] if words[1:2] == [":"] else words, block, run, accesses, applied)
    for name, found in accesses.items():
        kinds = [kind for kind, _, _ in found]
        is_one = len(found) == 1 or (
            kinds == ["regrd", "regwr"] and found[0][1] == found[1][1] and found[0][2] == found[1][2]
        )
        if not is_one:
            problems.append(f"register {name} is accessed {len(found)} times")
        if name not in registers:
            problems.append(f"register {name} is not declared")
    for name, times in applied.items():
        if times > 1:
            problems.append(f"table {name} is applied {times} times")
    for name in sorted(tables.keys() - applied.keys()):
        problems.append(f"table {name} is never applied")
    return registers, tables, problems


def instruction(words, block, run, accesses, applied):
    """Notes the register array or table of an instruction, in a run of instructions without jumps and labels."""
    name, operands = words[0], words[1:]
    if name == "table":
        applied[operands[0]] = applied.get(operands[0], 0) + 1
    elif name in ACCESSES:
        at = ACCESSES[name]
        # An action may run for several tables.
        times = 2 if block == "action" else 1
        accesses.setdefault(operands[at], []).extend([(name, operands[at + 1], run)] * times)


def p4_of(text):
    """Register arrays, tables and problems of a .p4."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    registers = {name: int(size, 0) for size, name in re.findall(r"\bRegister<[^()]*>\((\w+)[^)]*\)\s*(\w+)\s*;", text)}
    tables, problems = {}, []
    for name, body in re.findall(r"\btable\s+(\w+)\s*\{(.*?\n\s*size\s*=\s*\w+\s*;)", text, flags=re.S):
        keys = re.search(r"key\s*=\s*\{(.*?)\}", body, flags=re.S).group(1)
        actions = re.search(r"actions\s*=\s*\{(.*?)\}", body, flags=re.S).group(1)
        tables[name] = {
            "keys": re.findall(r"(\w+)\s*:\s*(\w+)\s*;", keys),
            "actions": re.findall(r"\w+", actions),
            "size": int(re.search(r"size\s*=\s*(\w+)", body).group(1), 0),
        }
    for name in registers:
        reads = re.findall(rf"\b{name}\.read\(([^;]*)\)\s*;", text)
        writes = re.findall(rf"\b{name}\.write\(\s*([^,;]*),", text)
        if len(reads) > 1 or len(writes) > 1:
            problems.append(f"register {name} is accessed {max(len(reads), len(writes))} times")
        elif reads and writes and reads[0].strip() != writes[0].strip():
            problems.append(f"register {name} is read and written at two indices")
    for name in tables:
        times = len(re.findall(rf"\b{name}\.apply\(", text))
        if times != 1:
            problems.append(f"table {name} is applied {times} times")
    return registers, tables, problems


def room_of(text):
    """Problems of the metadata's size."""
    widths = [
        (name, int(width) // 8)
        for body in re.findall(r"^struct meta_t \{(.*?)^\}", text, flags=re.S | re.M)
        for width, name in re.findall(r"bit<(\d+)>\s+(\w+)", body)
    ]
    ends, end = {}, 0
    for name, width in widths:
        ends[name] = end = end + width
    problems = [f"metadata of {end} bytes, more than 256"] if end > 256 else []
    for name in re.findall(r"^\s*(?:\w+ : )?hash \w+ m\.(\w+)", text, flags=re.M):
        if ends.get(name, 0) > 128:
            problems.append(f"the result of `hash` in {name} ends at byte {ends[name]}, after 128")
    return problems


def check(spec, program):
    """The problems of a program in both forms."""
    ours, theirs = spec_of(spec), p4_of(program)
    problems = [f".spec: {problem}" for problem in ours[2] + room_of(spec)]
    problems += [f".p4: {problem}" for problem in theirs[2]]
    if not ours[0] or not ours[1]:
        problems.append("neither registers nor tables found in the .spec")
    for what, one, other in (("register", ours[0], theirs[0]), ("table", ours[1], theirs[1])):
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                problems.append(f"{what} {name}: {one.get(name)} in the .spec, {other.get(name)} in the .p4")
    return problems


def p4_whole(path):
    """A .p4 with the files of this project that it includes, each once, without comments."""
    seen, folder = set(), path.parent

    def read(path):
        if path in seen:
            return ""
        seen.add(path)
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        include = re.compile(r'^[ \t]*#include[ \t]+"([^"]*)"[^\n]*$', flags=re.M)
        # Relative to the file that includes it, or to the program.
        found = lambda name: next(root / name for root in (path.parent, folder) if (root / name).exists())
        return include.sub(lambda match: read(found(match[1])), text)

    return read(path)


def hashes(folder, name):
    """The hashes of a program's .p4 and .spec, which blanks and comments do not change."""
    spec = "\n".join(re.split(r"[;#]|//", line)[0] for line in (folder / f"{name}.spec").read_text().splitlines())
    texts = (p4_whole(folder / f"{name}.p4"), spec)
    return tuple(hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16] for text in texts)


def tied(folder):
    """The hashes that were written when both forms of each program agreed."""
    lines = (line.split() for line in (folder / FORMS).read_text().splitlines() if not line.startswith("#"))
    return {name: (program, spec) for name, program, spec in lines}


def tie(folder):
    names = sorted(path.stem for path in folder.glob("*.spec"))
    head = "# name, hash of the .p4 and of the .spec when both said the same: check.py --tie\n"
    lines = (f"{name} {' '.join(hashes(folder, name))}\n" for name in names)
    (folder / FORMS).write_text(head + "".join(lines))


def changed(folder, name):
    """What was changed since both forms agreed."""
    was, now = tied(folder).get(name), hashes(folder, name)
    if was is None:
        return [f"{name} is not in forms.txt: run check.py --tie once both forms say the same"]
    what = [form for form, one, other in zip((".p4", ".spec"), was, now) if one != other]
    if not what:
        return []
    return [f"{name}: {' and '.join(what)} changed, forms.txt did not: see check.py"]


def main():
    if sys.argv[1:] == ["--tie"]:
        return tie(Path(__file__).resolve().parent)
    if len(sys.argv) != 3:
        sys.exit("usage: check.py X.spec X.p4, or check.py --tie")
    spec, program = (Path(name).resolve() for name in sys.argv[1:])
    problems = check(spec.read_text(), program.read_text())
    if spec.parent == program.parent and (program.parent / FORMS).exists():
        problems += changed(program.parent, program.stem)
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
