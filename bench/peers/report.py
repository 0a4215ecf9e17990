"""Medians, ratios and tables of a comparison."""
import os
import statistics


def machine():
    """What the figures were measured on."""
    fields = {}
    with open("/proc/cpuinfo") as file:
        for line in file:
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", "unknown"), "cores": len(os.sched_getaffinity(0)),
            "isa": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]}


def row(workload, peer, ballast):
    """One workload's figures. peer, ballast: tokens/s of each repetition, in the order measured; either may be empty."""
    out = workload.as_json() | {"unit": "tokens/s", "peer": side(peer), "ballast": side(ballast), "ratio": None}
    if peer and ballast:
        out["ratio"] = out["ballast"]["median"] / out["peer"]["median"]
        out["pair_ratios"] = [b / p for p, b in zip(peer, ballast)]
    return out


def side(raw):
    return {"raw": raw, "median": statistics.median(raw) if raw else None}


def figure(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def spread(raw):
    return f"{figure(min(raw))}-{figure(max(raw))}" if len(raw) > 1 else ""


HEADER = f"{'workload':18} {'peer':>10} {'':>15} {'ballast':>10} {'':>15} {'ratio':>6}  reps"


def line(r):
    """A row of the table on the terminal: medians, the range of each, and the ratio of the medians."""
    p, b = r["peer"], r["ballast"]
    ratio = f"{r['ratio']:.2f}" if r["ratio"] else "-"
    return (f"{r['name']:18} {figure(p['median']):>10} {spread(p['raw']):>15} {figure(b['median']):>10} "
            f"{spread(b['raw']):>15} {ratio:>6}  {max(len(p['raw']), len(b['raw']))}")


def markdown(result):
    """The README's table of one comparison."""
    m = result["machine"]
    head = [f"{result['model']}, {result['peer_version']} against {result['ballast_version']}, {result['threads']} threads "
            f"on {m['cpu']} ({', '.join(m['isa'])}), {result['date']}; tokens/s, medians.", "",
            "| workload | peer | Ballast | ratio | repetitions |", "|---|---:|---:|---:|---:|"]
    rows = []
    for r in result["workloads"]:
        ratio = f"**{r['ratio']:.2f}**" if r["ratio"] else "-"
        rows.append(f"| {r['name']} | {figure(r['peer']['median'])} | {figure(r['ballast']['median'])} | {ratio} "
                    f"| {len(r['peer']['raw'])} |")
    return "\n".join(head + rows) + "\n"
