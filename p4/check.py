"""Checks a program of this folder: `check.py X.spec X.p4`.

- Each register array is accessed at most once per packet, as a switch can: in the .spec by a single instruction (or a
  read and a write at the same index, without a jump or label between), in the .p4 by a read and a write at the same
  index. Both texts have no loops after the parser, so what is there once runs at most once.
- Each table is applied at most once.
- Both have the same register arrays, and the same tables with the same keys, actions and sizes: the .spec is written
  by hand, so nothing else ties them.
"""

import re
import sys
from pathlib import Path

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


def check(spec, program):
    """The problems of a program in both forms."""
    ours, theirs = spec_of(spec), p4_of(program)
    problems = [f".spec: {problem}" for problem in ours[2]] + [f".p4: {problem}" for problem in theirs[2]]
    if not ours[0] or not ours[1]:
        problems.append("neither registers nor tables found in the .spec")
    for what, one, other in (("register", ours[0], theirs[0]), ("table", ours[1], theirs[1])):
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                problems.append(f"{what} {name}: {one.get(name)} in the .spec, {other.get(name)} in the .p4")
    return problems


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: check.py X.spec X.p4")
    problems = check(*(Path(name).read_text() for name in sys.argv[1:]))
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
