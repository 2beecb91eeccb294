"""The table and the picture of benchmarks/README.md, from the results in benchmarks/speed.

python -m benchmarks.report
"""

import json
import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from benchmarks.against_trl import CASES, SPEED, SWEEP  # noqa: E402

HERE = Path(__file__).parent
PICTURE = SPEED / "group_size.png"


def results() -> dict[str, dict]:
    """The stored result of each case that has run."""
    files = {name: SPEED / f"{name}.json" for name in CASES}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.is_file()}


def table(found: dict[str, dict]) -> str:
    """One line for each case with a target."""
    lines = [
        "| case | ours | TRL | times (rounds) | target | mean length, ours and TRL | rounds × steps | source |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in found.items():
        if result["target"] is not None:
            rounds = ", ".join(f"{ratio:.2f}" for ratio in result["times_of_rounds"])
            lengths = f"{result['mean_length']['ours']:.1f}, {result['mean_length']['trl']:.1f}"
            lines.append(
                f"| `{name}`: {result['says']} | {result['ours']:.0f} | {result['trl']:.0f} | "
                f"**{result['times']:.2f}** ({rounds}) | {result['target']} | {lengths} | "
                f"{result['rounds']} × {result['steps']} | {result['source']} |"
            )
    return "\n".join(lines)


def steps_table() -> str:
    """One line for each stored run of ``benchmarks.grpo_step``."""
    lines = [
        "| run | per CPU-s | sample + update, ms | mean length | fraction of the floor | peak memory, MB | source |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for file in sorted(SPEED.glob("step-*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        lines.append(
            f"| `{file.stem}` | {run['samples_per_cpu_s']:.3g} | {run['phases_cpu_ms']['sample']:.0f} + "
            f"{run['phases_cpu_ms']['update']:.0f} | {run['mean_length']:.1f} | "
            f"{run['floor']['fraction_reached']:.1%} | {run['peak_mb']:.0f} | {run['source']} |"
        )
    return "\n".join(lines)


def draw(found: dict[str, dict]) -> None:
    """Completions per CPU-second over the group size, at 64 completions a step."""
    points = {8: found["trained"]} | {g: found[f"sweep{g}"] for g in SWEEP if f"sweep{g}" in found}
    sizes = sorted(points)
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for side, label in (("ours", "this package"), ("trl", "TRL")):
        axes.plot(sizes, [points[size][side] for size in sizes], "o-", label=label)
    axes.set(
        xscale="log",
        xticks=sizes,
        xticklabels=sizes,
        ylim=0,
        xlabel="completions of a prompt, at 64 completions a step",
        ylabel="completions per CPU-second",
    )
    axes.minorticks_off()
    axes.legend()
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    found = results()
    page = HERE / "README.md"
    text = page.read_text(encoding="utf-8")
    for name, written in {"speed": table(found), "steps": steps_table()}.items():
        begin, end = (f"<!-- {name}: {edge} (written by benchmarks.report) -->" for edge in ("begin", "end"))
        block = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
        text = block.sub(lambda _, block=f"{begin}\n\n{written}\n\n{end}": block, text)
    page.write_text(text, encoding="utf-8")
    draw(found)


if __name__ == "__main__":
    main()
