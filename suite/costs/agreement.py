"""Whether advice agrees with a session: asked from all that is known but that session, what its steps take on its links.

The question is what a user would ask: the model's shapes, workers, cores, bucket size, rate, delay, and what a step computes,
which is that of torch's DDP without messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from suite.analysis.tables import Row, number
from suite.costs.advice import Question, advise
from suite.costs.beyond import DDP
from suite.costs.candidates import Candidate, candidates
from suite.costs.known import Known, UnknownCostsError
from suite.costs.model import fit_model
from suite.costs.samples import Sample, Setting, middle, shapes_of

REFERENCES = {"all-reduce fp32": DDP, "all-reduce bf16": "DDP bf16"}
"""Names in advice -> of the samples that carry it out."""


def agreement_rows(found: Known) -> list[Row]:
    """Table `costs-advised`: every session none of whose settings another one shares."""
    settings: dict[str, set[tuple[str, int, str]]] = {}
    for sample in found.samples:
        at = sample.setting
        settings.setdefault(sample.session, set()).add((at.workload, at.world_size, at.link.label))
    return [
        row
        for session, own in sorted(settings.items())
        if not any(own & others for other, others in settings.items() if other != session)
        for row in agreement(found, session)
    ]


def agreement(found: Known, session: str) -> list[Row]:
    """Rows of a session, link by link, the fastest measured first. Raises `UnknownCostsError` where it was not held here."""
    held = [sample for sample in found.samples if sample.session == session]
    if not held:
        raise UnknownCostsError(
            f"session {session!r} was not held on a machine of the calibration's kind: `bandwise session {session}`"
        )
    rest = [sample for sample in found.samples if sample.session != session]
    model = fit_model(found.calibration, rest, found.cores)
    known = candidates(rest, found.cores)
    rows: list[Row] = []
    by_label = {sample.setting.link.label: sample.setting for sample in held}
    for label, setting in by_label.items():
        here = [sample for sample in held if sample.setting.link.label == label]
        if not any(sample.name == DDP for sample in here):
            continue
        measured = dict(_measured(here, known))
        asked = [one for one in known if one.label in measured]
        answers = advise(_question(setting, here, found.cores), asked, model, break_even=False)
        of_link: list[Row] = [
            {
                "session": session, "link": label, "method": one.label, "world_size": setting.world_size,
                "parameters": setting.parameters, "advised_s": one.step_s, "measured_s": measured[one.label],
                "error": one.step_s / measured[one.label] - 1,
            }
            for one in answers
            if one.label in measured and not one.refused
        ]  # fmt: skip
        rows += sorted(of_link, key=lambda row: number(row, "measured_s"))
    return rows


def _question(setting: Setting, here: Sequence[Sample], cores: int) -> Question:
    computing = middle([sample for sample in here if sample.name == DDP])
    assert computing is not None, "asked of links with DDP's steps alone"
    link = setting.link
    return Question(
        setting.parameters,
        setting.world_size,
        link.rate_bps,
        computing.total_s,
        link.delay_s,
        (setting.bucket_bytes,),
        cores,
        shapes=shapes_of(setting.workload),
    )


def _measured(here: Sequence[Sample], known: Sequence[Candidate]) -> Iterator[tuple[str, float]]:
    """Label -> seconds a step, of the methods all of whose kinds of steps were timed."""
    for label, name in REFERENCES.items():
        steps = [sample.step_s for sample in here if sample.name == name]
        if steps:
            yield label, min(steps)
    by_id = {sample.case.case_id: sample.step_s for sample in here}
    for candidate in known:
        kinds = {kind: by_id.get(case.case_id) for kind, case in candidate.cases.items()}
        if all(kinds.get(kind) is not None for kind, share in candidate.shares.items() if share):
            yield (
                candidate.label,
                sum(share * (kinds[kind] or 0.0) for kind, share in candidate.shares.items()),
            )
