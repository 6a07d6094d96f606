"""The cost model: what collectives cost, predictions of a session before it is run, and how good they are.

  bandwise costs probe              what collectives cost on emulated links here: results/tables/collectives.csv
  bandwise costs predict SESSION    seconds of a session that has not been run, with a hash: results/predictions
  bandwise costs score              all sessions predicted with one rate, delay, size, model or method left out
  bandwise costs keep               the model and all that advice needs in a file, so that `advise` answers in a second
  bandwise costs scaling            efficiency over workers, break-even bandwidths, maps: results/tables; measures nothing
  bandwise costs external           what others published, predicted and scored: results/external; measures nothing

`probe` needs what sessions need (`bandwise doctor`) and about 20 minutes in which nothing else runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bandwise.options import TOP, add_action, add_results_option, require_checkout, results_root
from bandwise.output import duration, print_json, table

if TYPE_CHECKING:
    from suite.costs.samples import Known
    from suite.costs.step import Model

NAME = "costs"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, parser_class=argparse.ArgumentParser)
    probe = _action(actions, "probe", _probe, "what collectives cost on emulated links here")
    probe.add_argument("--quick", action="store_true", help="four workers and two rates; nothing is written")
    predict = _action(actions, "predict", _predict, "predict a session before it is run")
    predict.add_argument("session", help="name of a session, or path of a .yaml file")
    _action(actions, "score", _score, "predict what was measured with one thing left out at a time")
    keep = _action(actions, "keep", _keep, "keep the model, and all that advice needs, in a file")
    keep.add_argument(
        "--published",
        action="store_true",
        help="of published tables alone: what `bandwise publish costs` ships",
    )
    _action(
        actions, "scaling", _scaling, "efficiency over workers and break-even bandwidths; measures nothing"
    )
    external = _action(actions, "external", _external, "predict what others published, and score it")
    external.add_argument(
        "--folder", type=Path, help="of rules.yaml and of files of points (default: results/external)"
    )
    external.add_argument("--points", action="store_true", help="list every point, not the score alone")
    external.add_argument(
        "--open", action="store_true", help="only points that are not held back; nothing is written"
    )


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    require_checkout(NAME)
    return int(args.action(args))


def _action(actions: Any, name: str, act: Any, text: str) -> argparse.ArgumentParser:
    parser = add_action(actions, name, act, text)
    add_results_option(parser)
    return parser


def _probe(args: argparse.Namespace) -> int:
    from suite.analysis.tables import rows_of, table_path
    from suite.costs.columns import CALIBRATION
    from suite.costs.facts import Watch, write_with_facts
    from suite.costs.prices import Grid, calibrate

    started, watch = time.monotonic(), Watch()
    grid = Grid(worlds=(4,), rates_bps=(100e6, 1e9), delays_s=()) if args.quick else Grid()

    def show(text: str) -> None:
        print(f"costs: {text}, {duration(time.monotonic() - started)}", file=sys.stderr, flush=True)

    if args.quick:
        rows = rows_of(calibrate(grid.links(), show))
        print_json({"collectives": rows}) if args.json else print(table(rows, CALIBRATION.names))
        return 0
    root = results_root(args)
    exchanges = calibrate(
        grid.links(),
        show,
        keep=lambda so_far: write_with_facts(root, CALIBRATION, rows_of(so_far), watch.facts(threads=1)),
    )
    path = table_path(root, CALIBRATION)
    return _answer(
        args, {"exchanges": len(exchanges), "table": str(path)}, f"{len(exchanges)} exchanges: {path}"
    )


def _predict(args: argparse.Namespace) -> int:
    from suite.costs.model import model_of
    from suite.costs.samples import known
    from suite.costs.score import predict_session, write_prediction
    from suite.timing.spec import load_session

    root = results_root(args)
    everything = known(root)
    made = predict_session(
        load_session(args.session), everything.samples, model_of(everything), everything.cores
    )
    path = write_prediction(root, made)
    if args.json:
        print_json({**made, "path": str(path)})
        return 0
    rows = [
        {"link": row["link"], "case": row["case"], "step_ms": round(1e3 * row["step_s"], 1)}
        for row in made["predictions"]
    ]
    print(table(rows, ("link", "case", "step_ms")))
    for row in made["not_predicted"]:
        print(f"not predicted: {row['case']} at {row['link']}: {row['why']}")
    print(f"sha256 {made['sha256']}\n{path}")
    return 0


def _score(args: argparse.Namespace) -> int:
    from suite.analysis.session_tables import collect_session
    from suite.analysis.tables import rows_of, table_path, write_table
    from suite.costs.columns import ADVISED, BESIDE, PREDICTIONS, PRICES, SCORE
    from suite.costs.model import model_of, prices_table
    from suite.costs.samples import known
    from suite.costs.score import advised_table, beside_table, predictions_table, score_table
    from suite.timing.spec import session_names

    root = results_root(args)
    for name in session_names():
        collect_session(root, name)
    everything = known(root)
    model = model_of(everything)
    predictions = predictions_table(everything.samples, everything.calibration, everything.cores)
    score = score_table(predictions)
    tables = {
        PREDICTIONS: predictions,
        SCORE: score,
        BESIDE: beside_table(predictions, everything.samples, everything.cores),
        PRICES: prices_table(model),
        ADVISED: advised_table(everything),
    }
    paths = [str(write_table(table_path(root, one), one, frame)) for one, frame in tables.items()]
    paths.append(str(_kept(root, root, everything, model)))
    if args.json:
        print_json({"tables": paths, "score": rows_of(score), "left_aside": list(everything.left_aside)})
        return 0
    print(table([_percent(row) for row in rows_of(score)], SCORE.names))
    if everything.left_aside:
        print(f"of other machines, left aside: {', '.join(everything.left_aside)}")
    print("\n".join(paths))
    return 0


def _keep(args: argparse.Namespace) -> int:
    from suite.analysis.published import published_root
    from suite.costs.model import model_of
    from suite.costs.samples import known

    root = results_root(args)
    tables = published_root(root) if args.published else root
    everything = known(tables)
    path = str(_kept(root, tables, everything, model_of(everything)))
    return _answer(args, {"tables": [path]}, path)


def _kept(root: Path, tables: Path, everything: Known, model: Model) -> Path:
    """Write what is kept of the tables in one results folder into another, or the same."""
    from suite.costs.advice import kept_json
    from suite.costs.methods import gathered, with_traffic
    from suite.costs.model import write_model

    kept = with_traffic(gathered(tables, everything, model))
    return write_model(root, model, everything, kept_json(kept, tables))


def _scaling(args: argparse.Namespace) -> int:
    from suite.analysis.tables import table_path, write_table
    from suite.costs.break_even import break_even_tables, write_maps
    from suite.costs.columns import BREAK_EVEN, BREAK_EVEN_CHECKS, SCALING
    from suite.costs.model import scored_model
    from suite.costs.samples import known
    from suite.costs.scaling import scaling_table

    root = results_root(args)
    everything = known(root)
    model = scored_model(everything)
    rates, checks = break_even_tables(everything, model)
    tables = {SCALING: scaling_table(everything, model), BREAK_EVEN: rates, BREAK_EVEN_CHECKS: checks}
    paths = [str(write_table(table_path(root, one), one, frame)) for one, frame in tables.items()]
    paths += map(str, write_maps(everything, model))
    return _answer(args, {"tables": paths}, "\n".join(paths))


def _external(args: argparse.Namespace) -> int:
    from suite.analysis.tables import rows_of, table_path, write_table
    from suite.costs.columns import EXTERNAL, EXTERNAL_SCORE
    from suite.costs.external import FOLDER, score_folder
    from suite.costs.facts import write_with_facts

    root = results_root(args)
    points, score, facts = score_folder(args.folder or TOP / "results" / FOLDER, root)
    if args.open:
        points, score = points[~points["held_back"]], score[~score["held_back"]]
        paths = []
    else:
        paths = [
            str(write_with_facts(root, EXTERNAL, rows_of(points), facts)),
            str(write_table(table_path(root, EXTERNAL_SCORE), EXTERNAL_SCORE, score)),
        ]
    now = rows_of(score[(score["rules"] == facts["rules"]) & (score["inputs"] == facts["inputs"])])
    if args.json:
        print_json({"facts": facts, "points": rows_of(points), "score": rows_of(score), "tables": paths})
        return 0
    if args.points:
        print(table([_point(row) for row in rows_of(points)], POINT))
    print(table([_scored(row) for row in now], SCORED))
    for row in rows_of(points):
        if row["contradiction"]:
            print(
                f"against physics, or what is assumed is wrong: {row['source']}/{row['point']}: {row['contradiction']}"
            )
    print("\n".join([f"rules {facts['rules']}, version {facts['version']}", *paths]))
    return 0


POINT = ("point", "held_back", "published_ms", "model", "local + bytes", "bytes / rate")
SCORED = (
    "source", "points", "predictor", "n", "median_error", "within", "worst_error", "n_exposed", "exposed_error", "near", "easy",
)  # fmt: skip


def _point(row: dict[str, Any]) -> dict[str, Any]:
    ratios = {"model": "model_ratio", "local + bytes": "naive_ratio", "bytes / rate": "bytes_ratio"}
    return {
        "point": f"{row['source']}/{row['point']}" + (" (anchor)" if row["anchor"] else ""),
        "held_back": "yes" if row["held_back"] else "no",
        "published_ms": f"{1e3 * row['published_s']:.4g}",
        **{name: f"x {row[column]:.2f}" for name, column in ratios.items()},
    }


def _scored(row: dict[str, Any]) -> dict[str, Any]:
    exposed = row["exposed_error"]
    return {
        **row,
        "points": "held back" if row["held_back"] else "open",
        **{name: f"{100 * row[name]:.1f} %" for name in ("median_error", "within", "worst_error")},
        "exposed_error": "-" if exposed is None else f"{100 * exposed:.1f} %",
        "near": f"{row['near_right']} of {row['n_near']}",
        "easy": f"{row['easy_right']} of {row['n_easy']}",
    }


def _percent(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{name: f"{100 * row[name]:.1f} %" for name in ("median_error", "worst_error")}}


def _answer(args: argparse.Namespace, document: dict[str, Any], text: str) -> int:
    print_json(document) if args.json else print(text)
    return 0
