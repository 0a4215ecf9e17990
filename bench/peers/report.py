"""Medians, ratios and tables of a comparison."""
import os
import statistics

from floors import SHARE_OF_READS


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


def row(workload, peer, ballast, bar, floor, reads):
    """One workload's figures. peer, ballast: tokens/s of each repetition, in the order measured; either may be empty. bar: the ratio
    that is asked for; floor: the tokens/s that the machine allows; reads: those that its bandwidth alone allows; each may be None."""
    out = workload.as_json() | {"unit": "tokens/s", "peer": side(peer), "ballast": side(ballast), "ratio": None}
    if peer and ballast:
        out["ratio"] = out["ballast"]["median"] / out["peer"]["median"]
        out["pair_ratios"] = [b / p for p, b in zip(peer, ballast)]
        out["of_floor"], out["of_reads"] = (out["ballast"]["median"] / most if most else None for most in (floor, reads))
        out |= {"bar": bar, "met": met(out["ratio"], bar, out["of_reads"])}
    return out


def met(ratio, bar, of_reads):
    """Whether the bar is met: for decode, the lesser of the ratio and a share of what the bandwidth allows."""
    if bar is None:
        return None
    return ratio >= bar or (of_reads is not None and of_reads >= SHARE_OF_READS)


def side(raw):
    return {"raw": raw, "median": statistics.median(raw) if raw else None}


def figure(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def spread(raw):
    return f"{figure(min(raw))}-{figure(max(raw))}" if len(raw) > 1 else ""


HEADER = f"{'workload':18} {'peer':>10} {'':>15} {'ballast':>10} {'':>15} {'ratio':>6} {'bar':>5} {'floor':>6}  reps"


def line(r):
    """A row of the table on the terminal: medians, the range of each, the ratio of the medians, the bar, the share of the floor."""
    p, b = r["peer"], r["ballast"]
    ratio = f"{r['ratio']:.2f}" if r["ratio"] else "-"
    return (f"{r['name']:18} {figure(p['median']):>10} {spread(p['raw']):>15} {figure(b['median']):>10} "
            f"{spread(b['raw']):>15} {ratio:>6} {r.get('bar') or '-':>5} {share(r):>6}  {max(len(p['raw']), len(b['raw']))}")


def share(r):
    of = r.get("of_floor")
    return f"{100 * of:.0f} %" if of else "-"


def asked(r):
    """The bar, and whether it was missed."""
    bar, met = r.get("bar"), r.get("met")
    return "-" if bar is None else f"{bar}" if met else f"{bar}, missed"


def markdown(results):
    """A table of some comparisons that were made on one machine."""
    m = results[0]["machine"]
    head = [f"{m['cores']} cores of {m['cpu']} ({', '.join(m['isa'])}), {results[0]['threads']} threads; tokens/s, medians.", "",
            "| model, peer | workload | peer | Ballast | ratio | bar | of the floor | repetitions |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    rows = []
    for result in results:
        name = f"{result['model']}, {result['peer_version']}"
        if result.get("isa") or result.get("ballast_args"):
            name += f" ({' '.join(filter(None, [result.get('isa'), result.get('ballast_args')]))})"
        for r in result["workloads"]:
            ratio = f"**{r['ratio']:.2f}**" if r["ratio"] else "-"
            rows.append(f"| {name} | {r['name']} | {figure(r['peer']['median'])} | {figure(r['ballast']['median'])} | {ratio} "
                        f"| {asked(r)} | {share(r)} | {len(r['peer']['raw'])} |")
    return "\n".join(head + rows) + "\n"
