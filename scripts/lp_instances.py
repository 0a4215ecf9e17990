#!/usr/bin/env python3
"""Solves the planner's linear programmes with HiGHS and keeps what it found for the test of our own solver.

    pip install scipy
    cargo run -q -p policy --example lp_instances | python3 scripts/lp_instances.py

Writes crates/policy/tests/instances/highs.json: for each programme its least sum and the values of its variables, or
nothing where it has no solution.
"""

import json
import pathlib
import sys

import numpy
from scipy.optimize import linprog


def solve(programme):
    count = len(programme["weights"])
    sides = {"AtMost": ([], []), "Equals": ([], [])}
    for row in programme["rows"]:
        line = numpy.zeros(count)
        for variable, factor in row["terms"]:
            line[variable] += factor
        lines, rights = sides[row["compare"]]
        lines.append(line)
        rights.append(row["right"])
    result = linprog(
        programme["weights"],
        A_ub=numpy.array(sides["AtMost"][0]),
        b_ub=sides["AtMost"][1],
        A_eq=numpy.array(sides["Equals"][0]),
        b_eq=sides["Equals"][1],
        bounds=[(0, most) for most in programme["most"]],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
    )
    if result.status == 2:
        return {"sum": None, "values": None}
    if result.status != 0:
        sys.exit(f"HiGHS: {result.message}")
    return {"sum": float(result.fun), "values": [float(value) for value in result.x]}


def main():
    programmes = json.load(sys.stdin)
    found = {name: solve(programme) for name, programme in programmes}
    root = pathlib.Path(__file__).resolve().parent.parent
    path = root / "crates/policy/tests/instances/highs.json"
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    path.write_text("{\n" + lines + "\n}\n")
    solved = sum(value["sum"] is not None for value in found.values())
    print(f"{solved} solved, {len(found) - solved} without a solution: {path.relative_to(root)}")


if __name__ == "__main__":
    main()
