"""The page of advice: a model, workers and a link are chosen, and what each method would gain is answered while they are.

It answers without a network from what `costs-model.json` keeps; `advice.js` plays steps as `suite.costs.step` does, and a test
holds its numbers against those of `bandwise advise`. Workers share neither processors nor nodes here.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from report.rendering import ALONE, Links, ReportError, asset, embedded, script, template
from suite.costs.advice import (
    CAPS_BYTES,
    LARGER,
    NEAR,
    OWN,
    RATES,
    REFERENCES,
    SIZES,
    Kept,
    Question,
    best_known,
    kept_json,
    of_configuration,
    read_kept,
    shown_worse,
    size,
    verdict,
)
from suite.costs.step import DDP_BYTES, FORWARD, OF_PROBE, REDUCED, THREADS
from suite.runs.files import write_atomic


def build_advice_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page, by default <root>/reports/advice.html, and its findings in sentences.

    Raises ReportError where no model is kept of the tables that are there.
    """
    kept = read_kept(results_root)
    if kept is None:
        raise ReportError(
            "what advice needs is not kept, or was made of other tables: run `bandwise costs keep`"
        )
    found = findings(kept)
    path = out if out is not None else results_root / "reports" / "advice.html"
    page = template("advice_page.html.j2").render(
        links=links,
        headline=found,
        css=asset("style.css"),
        js=script("advice.js"),
        kept=embedded(page_data(kept, results_root)),
        devices=list(kept.constants.devices),
        transports=list(kept.constants.stacks),
        own=OWN,
        timed_on=kept.timed_on,
    )
    write_atomic(path, page)
    return path, found


def page_data(kept: Kept, results_root: Path) -> dict[str, Any]:
    """All that the page's script reckons with."""
    plain = kept_json(kept, results_root)
    methods: dict[str, dict[str, Any]] = {}
    for one, method in zip(plain["methods"], kept.methods, strict=True):
        judged = of_configuration(method.configuration, kept.studies)
        methods.setdefault(method.name, {
            **{name: one[name] for name in ("name", "family", "world_size", "shares", "overhead", "traffic")},
            "verdict": _verdict(judged),
            "worse": shown_worse(judged),
        })  # fmt: skip
    own = kept.model.backend
    question = Question(1e6, 2, 1e9, 0.1)
    return {
        "methods": list(methods.values()),
        "workers": sorted({n for method in kept.methods for of in method.traffic.values() for n in of}),
        "backend": {
            "prices": {name: asdict(price) for name, price in own.prices.items()},
            "efficiency": own.efficiency, "delayed": own.delayed,
        },
        "constants": plain["constants"],
        "references": {name: DDP_BYTES[name] for name in REFERENCES},
        "forms": dict(OF_PROBE), "reduced": dict(REDUCED), "sizes": SIZES, "caps": CAPS_BYTES, "rates": RATES, "near": NEAR,
        "forward": FORWARD, "threads": THREADS, "error": kept.band(question), "elsewhere": kept.elsewhere,
    }  # fmt: skip


def _verdict(judged: list[Any]) -> dict[str, Any] | None:
    """What studies say, up to which size of a model, and on which they say it; None where none does."""
    best = best_known(judged)
    if not best:
        return None
    most = max(best, key=lambda study: (study.accuracy.word != "not known", study.accuracy.pairs))
    return {
        "words": verdict(judged, most.parameters),
        "up_to": LARGER * most.parameters,
        "measured_on": size(most.parameters),
    }


def findings(kept: Kept) -> list[str]:
    """What a reader should know first."""
    error = kept.band(Question(1e6, 2, 1e9, 0.1))
    own = "it was not scored" if error is None else f"half of them are off by at most {error:.0%}"
    other = (
        "not scored"
        if kept.elsewhere is None
        else f"half of such predictions of published measurements are off by at most {kept.elsewhere:.0%}"
    )
    return [
        f"Predicted, not measured. With codecs as timed on {kept.timed_on} and gloo, {own} where something was not seen before; "
        "that is the band of a speedup.",
        f"Other devices, other transports, and systems that do not overlap are predicted by the rules of published measurements: "
        f"{other}.",
        "Accuracy is what a study of this project says of the same configuration, on a model of at most ten times its size; of "
        "larger models, and where no study has it, it is not known.",
    ]
