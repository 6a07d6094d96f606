"""A workload from outside: begun by `new`, given by `--plugin`, trained by sweeps, on the report; and data of the user's."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from bandwise.cli import main
from reference_impls import load_plugin
from suite import DATA
from suite.runs.spec import resolve_workload, workload_hash
from suite.workloads import DataError, DataWorkload, WorkloadDeclarationError, get, names, user_data
from suite.workloads import base as workloads
from suite.workloads.base import imported_beside
from tests.bandwise.said import answer, forget_plugins, refusal
from tests.suite.runs.project import SWEEP, train_here
from tests.support import Capsys, Patch

RINGS = (
    SWEEP.replace("[quadratic]", "[my-rings]").replace("[iid]", "[by-class]").replace("seeds: 3", "seeds: 2")
)


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    """What the test loads is unknown to the tests after it, and nothing was named before."""
    forget_plugins(monkeypatch)
    monkeypatch.setenv(DATA, "")
    monkeypatch.chdir(tmp_path)


def begin(*changes: tuple[str, str], path: str = "my_rings.py") -> str:
    """The file that `new` writes, with changes."""
    if not Path("my_rings.py").exists():
        assert main(["new", "workload", "my-rings"]) == 0
    text = Path("my_rings.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    Path(path).write_text(text)
    # by which two files of one second and one length are the same
    shutil.rmtree("__pycache__", ignore_errors=True)
    return path


def stale(capsys: Capsys, *plugin: str) -> tuple[int, list[str]]:
    """Runs that `sweep --dry-run` counts as older than the code, and what `publish --check` says of them."""
    planned = answer(capsys, *plugin, "sweep", "mine.yaml", "--dry-run", "--results", "r")
    assert planned["to_do"] == 0
    main([*plugin, "publish", "mine.yaml", "--check", "--results", "r", "--json"])
    found = json.loads(capsys.readouterr().out)
    return planned["stale_code"], [one["what"] for one in found["findings"] if one["rule"] == "stale"]


def test_what_new_writes_trains_and_a_change_makes_runs_stale(capsys: Capsys, monkeypatch: Patch) -> None:
    path = begin()
    assert f"bandwise --plugin {path} run --workload my-rings" in capsys.readouterr().out
    plugin = ("--plugin", path)
    rows = {row["name"]: row for row in answer(capsys, *plugin, "list", "workloads")["workloads"]}
    assert rows["my-rings"]["metric"] == "error_rate"
    assert {"digits-mlp", "quadratic"} <= rows.keys()
    assert answer(capsys, "info", "my-rings")["metric"] == "error_rate (percent, lower is better)"

    Path("mine.yaml").write_text(RINGS)
    train_here("mine.yaml", Path("r"))
    results = [json.loads(file.read_text()) for file in Path("r/runs").rglob("result.json")]
    assert [(one["status"], one["metric"]) for one in results] == [("done", "error_rate")] * 4
    assert {one["sources"]["workload"] for one in results} == {workload_hash("my-rings")}
    assert stale(capsys, *plugin) == (0, [])

    forget_plugins(monkeypatch)
    begin(("margin = 1.0", "margin = 2.0"))
    count, said = stale(capsys, *plugin)
    assert count == 4
    assert len(said) == 2
    assert all("2 runs come from another source of method or workload" in one for one in said)

    forget_plugins(monkeypatch)
    begin(("version = 1", "version = 2"))
    again = answer(capsys, *plugin, "sweep", "mine.yaml", "--dry-run", "--results", "r")
    assert (again["to_do"], again["stale_code"]) == (4, 0)


DEFAULT = """dataclasses.field(default=0.15, metadata={"help": "standard deviation of a point's distance"})"""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("add(MyRings)\n", "")], "registers no method and no workload: end it with registry.add(NAME, Entry(...)) or add("),
        ([('name = "my-rings"', 'name = "digits-mlp"')], "wrong:MyRings: there is a workload called digits-mlp already"),
        ([('name = "my-rings"', 'name = "My rings"')], "name is 'My rings': state a name in lower case"),
        ([('    metric = "error_rate"', "    # ")], "state metric, a key of what evaluate answers"),
        ([('metric = "error_rate"', 'metric = "step"')], "metric is 'step': state a key of what evaluate answers"),
        ([('unit = "percent"', 'unit = ""')], "unit is '': state that of the metric"),
        ([('"lower"', '"down"')], "direction is 'down': state \"higher\" or \"lower\""),
        ([("margin = 1.0", "margin = 0")], "margin is 0: state the largest difference"),
        ([("version = 1", "version = '1'")], "version is '1': state an integer"),
        ([('("iid", "by-class")', '"iid"')], "shardings is 'iid': state a tuple of names"),
        ([("noise: float =", "noise: list =")], "option noise is of type <class 'list'>: options are int, float, str or"),
        ([(DEFAULT, "dataclasses.field()")], "option noise has no default"),
        ([("def build(self)", "def built(self)")], "it lacks build"),
        ([("@dataclasses.dataclass(frozen=True)\n", "")], "write @dataclasses.dataclass(frozen=True) above the class"),
        ([("class MyRings(Workload)", "class MyRings")], "derive it from suite.workloads.Workload"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_workload_is_refused_by_name(
    changes: Sequence[tuple[str, str]], reason: str, capsys: Capsys
) -> None:
    path = begin(*changes, path="wrong.py")
    said = refusal(capsys, "--plugin", path, "list", "workloads")
    assert reason in said
    assert "wrong" in said
    assert "my-rings" not in names()


def test_scores_without_the_metric_end_a_run_with_what_to_answer(capsys: Capsys) -> None:
    path = begin(('"error_rate": 100.0', '"errors": 100.0'))
    run = ["run", "--workload", "my-rings", "--algorithm", "allreduce-sgd", "--lr", "0.1", "--steps", "2"]
    assert main(["--plugin", path, *run, "--results", "r"]) == 3
    (result,) = Path("r/runs").rglob("result.json")
    reason = json.loads(result.read_text())["reason"]
    assert "my-rings is judged by error_rate, and its evaluate or watch answers errors, nll" in reason


def test_an_installed_package_registers_by_its_entry_points(tmp_path: Path, monkeypatch: Patch) -> None:
    begin(("add(MyRings)\n", ""))
    package = tmp_path / "site" / "rings_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(Path("my_rings.py").read_text())
    info = tmp_path / "site" / "rings_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rings-package\nVersion: 1.0\n")
    points = info / "entry_points.txt"
    points.write_text("[bandwise.workloads]\nmy-rings = rings_package.tasks:MyRings\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    assert "my-rings" in names()
    assert "rings_package.tasks" not in sys.modules, "a list imports no package"
    assert get("my-rings", noise=1).options == {"noise": 1.0}
    before = workload_hash("my-rings")
    (package / "more.py").write_text("a = 1\n")
    assert workload_hash("my-rings") == before, "of the code that was loaded"
    monkeypatch.setattr(workloads, "_outside", {})
    assert workload_hash("my-rings") != before, "all files of the package count"
    points.write_text("[bandwise.workloads]\nother = rings_package.tasks:MyRings\n")
    importlib.invalidate_caches()
    monkeypatch.setattr(workloads, "_outside", {})
    with pytest.raises(WorkloadDeclarationError, match="whose name is 'my-rings': give both one name"):
        get("other")
    monkeypatch.delitem(sys.modules, "rings_package.tasks")
    monkeypatch.delitem(sys.modules, "rings_package")


def test_what_a_file_imports_from_beside_it_counts_in_its_hash(monkeypatch: Patch, tmp_path: Path) -> None:
    """Directly, through another and as a package; not what has its name elsewhere, nor what lies there unused."""
    begin()
    alone = Path("my_rings.py")
    load_plugin(alone)
    before = workload_hash("my-rings")
    for name in ("rings_help", "rings_more", "rings_pack", "my_rings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("rings_help.py").write_text("from rings_more import A\n")
    Path("rings_more.py").write_text("import json, rings_pack\nA = 1\n")
    Path("json.py").write_text("raise SystemExit\n")
    Path("unused.py").write_text("")
    Path("rings_pack").mkdir()
    Path("rings_pack/__init__.py").write_text("")
    Path("rings_pack/part.py").write_text("B = 1\n")
    assert workload_hash("my-rings") == before, "nothing of that is imported"
    alone.write_text("from rings_help import A\n" + alone.read_text())
    pack = {"rings_pack/__init__.py", "rings_pack/part.py"}
    assert set(imported_beside(alone)) == {"rings_help.py", "rings_more.py", *pack}
    monkeypatch.syspath_prepend(str(tmp_path))

    def hashed() -> str | None:
        forget_plugins(monkeypatch)
        load_plugin(alone)
        return workload_hash("my-rings")

    seen = [before, hashed()]
    for changed in ("rings_more.py", "rings_pack/part.py"):
        Path(changed).write_text(Path(changed).read_text() + "C = 1\n")
        seen.append(hashed())
    assert len(set(seen)) == 4
    Path("unused.py").write_text("C = 1\n")
    assert hashed() == seen[-1]


# ---- data of the user's

READS = (
    ("from suite.workloads import Task, Workload, add", "from suite.workloads import DataWorkload, Task, add"),
    ("class MyRings(Workload)", "class MyRings(DataWorkload)"),
    ("    noise: float", '    files = {"points.npy": "float64 [3072, 2], points"}\n    noise: float'),
    ("        points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * distances[:, None]\n",
     '        points = np.load(self.path("points.npy"))\n'),
)  # fmt: skip


def write_points(folder: Path, first: float = 0.0) -> Path:
    """A folder with the file that the workload reads."""
    import numpy as np

    user_data.digest_of.cache_clear()  # a clock of milliseconds may not tell two writes apart
    folder.mkdir(exist_ok=True)
    points = np.linspace(0.0, 1.0, 2 * 3072).reshape(3072, 2)
    points[0] = first
    np.save(folder / "points.npy", points)
    return folder


def test_where_data_lie_is_no_part_of_a_run_and_what_is_in_them_is(tmp_path: Path, capsys: Capsys) -> None:
    path = begin(*READS)
    run = [
        "run", "--workload", "my-rings", "--algorithm", "allreduce-sgd", "--lr", "0.1", "--steps", "2", "--results", "r",
    ]  # fmt: skip
    said = refusal(capsys, "--plugin", path, *run, code=3)
    assert "my-rings needs data of yours (points.npy, float64 [3072, 2], points): name the folder" in said
    assert "my-rings" in {
        row["name"] for row in answer(capsys, "--plugin", path, "list", "workloads")["workloads"]
    }
    assert f"no folder {tmp_path / 'gone'}" in refusal(capsys, "--data-dir", "gone", "--plugin", path, *run)
    Path("empty").mkdir()
    said = refusal(capsys, "--data-dir", "empty", "--plugin", path, *run, code=3)
    assert (
        f"my-rings lacks {tmp_path / 'empty' / 'points.npy'}, float64 [3072, 2], points: put it there" in said
    )

    here, there = write_points(tmp_path / "here"), write_points(tmp_path / "there")
    ids = [
        answer(capsys, "--data-dir", str(folder), "--plugin", path, *run)["run_id"]
        for folder in (here, there, write_points(tmp_path / "other", first=0.5))
    ]
    assert ids[0] == ids[1] != ids[2]
    spec = json.loads(next(Path("r/runs").rglob(f"{ids[0]}/spec.json")).read_text())
    assert spec["workload"]["options"]["data"].startswith("sha256:")
    assert str(tmp_path) not in json.dumps(spec)


def test_a_run_does_not_train_on_other_files_than_planned(tmp_path: Path, monkeypatch: Patch) -> None:
    assert main(["--plugin", begin(*READS), "--data-dir", str(write_points(tmp_path / "d")), "list"]) == 0
    part = resolve_workload("my-rings", {}, "iid")
    workload = get("my-rings", **part.options)
    assert workload.task(0, 2).train_size == 2048
    write_points(tmp_path / "d", first=0.5)
    with pytest.raises(
        DataError, match=r"the run is of files with the digest sha256:[0-9a-f]{32}, and those in"
    ):
        workload.task(0, 2)
    assert resolve_workload("my-rings", {}, "iid") != part
    (tmp_path / "d" / "points.npy").unlink()
    assert resolve_workload("my-rings", dict(part.options), "iid") == part, (
        "a digest that is stated needs no files"
    )


class Folder(DataWorkload):
    """Reads a folder and a file."""

    name = "folder"
    files: ClassVar[Mapping[str, str]] = {"images": "a folder of images", "labels.txt": "a label a line"}
    build = task = None  # type: ignore[assignment]


def digest(root: Path, monkeypatch: Patch) -> str:
    user_data.digest_of.cache_clear()
    monkeypatch.setenv(DATA, str(root))
    return Folder().digest()


def test_the_digest_is_of_names_sizes_and_content_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    def write(name: str, **files: str) -> Path:
        for file, text in {"images/a/1": "one", "images/b/2": "two", "labels.txt": "0\n1", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / name

    first = digest(write("first"), monkeypatch)
    again = write("again", **{"images/.hidden": "x", "beside": "not of its files"})
    os.utime(again / "labels.txt", (1, 1))
    assert digest(again, monkeypatch) == first
    others = (
        write("content", **{"images/b/2": "owt"}),
        write("more", **{"images/b/3": ""}),
        write("moved", **{"images/a/1": "onet", "images/b/2": "wo"}),
    )
    found = [digest(folder, monkeypatch) for folder in others]
    assert len({first, *found}) == 4
    (again / "images" / "b" / "broken").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"cannot read .*broken"):
        digest(again, monkeypatch)


def test_large_data_are_sampled_from_end_to_end(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, value in (("WHOLE_BYTES", 1000), ("BLOCKS", 5), ("BLOCK_BYTES", 100)):
        monkeypatch.setattr(user_data, name, value)
    (tmp_path / "images").mkdir()
    first, last = tmp_path / "images" / "a", tmp_path / "labels.txt"
    contents = [bytearray(500), bytearray(600)]  # blocks begin at 0, 250, 500, 750, 1000 of 1,100 bytes

    def found(flip: int | None = None) -> str:
        changed = [bytearray(one) for one in contents]
        if flip is not None:
            changed[flip >= 500][flip - 500 * (flip >= 500)] ^= 1
        for path, content in zip((first, last), changed, strict=True):
            path.write_bytes(content)
        return digest(tmp_path, monkeypatch)

    whole = found()
    assert whole.startswith("sampled:")
    assert all(found(at) != whole for at in (0, 99, 250, 349, 500, 599, 750, 1000, 1099))
    assert all(found(at) == whole for at in (100, 249, 350, 499, 600, 749, 850, 999)), (
        "what is between is not read"
    )
    contents[1].append(0)
    assert found() != whole
