"""The recipes of docs/in-your-training.md, run as they stand on gloo processes.

Those of other packages run with the package, but for Lightning's: a stand-in calls it as the sources of the version that the page
names do.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import FileSystemReader
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer
from reference_impls.core.errors import LayoutError
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.states import contents
from tests.support import blocks

PAGE = "docs/in-your-training.md"
PATIENCE_S = 250.0
pytestmark = [pytest.mark.gloo, pytest.mark.timeout(2 * PATIENCE_S)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def _batches(rank: int, count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(rank)
    return [
        (torch.randn(4, 8, generator=generator), torch.randn(4, 3, generator=generator)) for _ in range(count)
    ]


def _block(marker: str) -> str:
    """The Python block of the page that holds these words."""
    (block,) = [block for block in blocks(PAGE, "python") if marker in block]
    return block


def _run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, PAGE, "exec"), names)
    return names


def _equal_replicas(values: Iterable[Tensor]) -> bool:
    """Whether all ranks have these, and they have moved from where `Net` starts."""
    own = torch.cat([value.detach().reshape(-1) for value in values])
    start = torch.cat([p.detach().reshape(-1) for p in Net().parameters()])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own)
    moved = own.numel() != start.numel() or not torch.equal(own, start)
    return moved and all(torch.equal(row, own) for row in rows)


def _all(task: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    results = run_ranks(task, size, *arguments, timeout_s=PATIENCE_S, joins=False)
    for result in results:
        assert isinstance(result, dict), result
    return results


# ---- torch alone ---------------------------------------------------------------------------------------------------------


def _plain(rank: int, size: int, folder: str) -> dict[str, Any]:
    model = Net()
    names = _run(
        _block('ddp_hook("qsgd", ddp'), model=model, loss=nn.functional.mse_loss, batches=_batches(rank, 3),
        folder=folder, rank=rank,
    )  # fmt: skip
    frame = names["state"].ledger.frame()
    return {
        "equal": _equal_replicas(model.parameters()),
        "steps": sorted(frame["step"].unique()),
        "sent": float(frame["wire_bytes"].sum()),
        "saved": contents(torch.load(f"{folder}/rank-{rank}.pt")["hook"])["step"],
    }


def test_the_plain_loop(tmp_path: Path) -> None:
    elements = sum(p.numel() for p in Net().parameters())
    for result in _all(_plain, 2, str(tmp_path)):
        assert result["equal"]
        assert result["steps"] == [0, 1, 2]
        assert result["saved"] == 3
        assert result["sent"] == 3 * (
            -(-elements // 2) + 4
        )  # 4 bits an element, a norm for up to 512 of them


def _around_an_optimizer(rank: int, size: int, folder: str) -> dict[str, Any]:
    local, reduced = Net(), Net()
    names = _run(
        _block("streaming-diloco"), model=local, loss=nn.functional.mse_loss, batches=_batches(rank, 5), folder=folder,
        rank=rank,
    )  # fmt: skip
    batches = [_batches(10 * rank + step, 2) for step in range(3)]
    _run(
        _block("register_step_pre_hook"), model=reduced, loss=nn.functional.mse_loss, batches=batches,
        folder=f"{folder}/dcp",
    )  # fmt: skip
    saved = contents(torch.load(f"{folder}/rank-{rank}.pt"))
    return {
        "equal": [_equal_replicas(model.parameters()) for model in (local, reduced)],
        "kinds": list(dict.fromkeys(names["frame"]["kind"])),
        "saved": saved["step"],
        "rate": saved["optimizer"]["param_groups"][0]["lr"],
        "keys": _own_keys(f"{folder}/dcp"),
    }


def _own_keys(folder: str) -> list[str]:
    """What a checkpoint by torch.distributed.checkpoint has of single ranks."""
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    return sorted(key.rpartition(".")[2] for key in keys if "rank_" in key)


def test_the_loop_with_an_optimizer_of_ones_own(tmp_path: Path) -> None:
    for result in _all(_around_an_optimizer, 2, str(tmp_path)):
        assert result.pop("keys") == ["rank_0", "rank_1"]
        assert result == {"equal": [True, True], "kinds": ["average", "final"], "saved": 5, "rate": 0.0}


def _sharded(rank: int, size: int, block: str, folder: str) -> dict[str, Any]:
    model = Net()
    batches = [_batches(10 * rank + step, 2) for step in range(2)]
    names = _run(
        _block(block), model=model, loss=nn.functional.mse_loss, batches=batches,
        device="cpu", nodes=2, ranks_a_node=2, folder=folder,
    )  # fmt: skip
    whole = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    ours = names.get("state", names["optimizer"])
    return {
        "equal": _equal_replicas(whole),
        "calls": contents(ours.state_dict())["calls"] if "state" in names else {},
        "keys": _own_keys(folder),
        "groups": set(ours.ledger.frame()["group"]),
    }


PLACES = ["place_0_rank_0", "place_0_rank_1", "place_1_rank_0", "place_1_rank_1"]


@pytest.mark.parametrize(
    ("block", "calls"),
    [
        ("fsdp_hook(model", {"the model": 2, "layers.0": 2, "layers.1": 2}),  # a step, not a micro-batch
        ("fsdp_optimizer(model", {}),
    ],
)
def test_the_sharded_loops(block: str, calls: dict[str, int], tmp_path: Path) -> None:
    for result in _all(_sharded, 4, block, str(tmp_path)):
        assert result == {"equal": True, "calls": calls, "keys": PLACES, "groups": {"world"}}


def _saved(rank: int, size: int, folder: str) -> dict[str, Any]:
    """The block saves and loads; with the lines of loading on objects that start elsewhere."""
    save, load = _block("consolidate()").split("\n\ndcp.load")
    held = _run(save, model=(model := Net()), optimizer=_optimizer(model, rank), folder=folder, rank=rank)
    whole = [p.detach().clone() for p in model.parameters()]
    again = Net()
    _run(
        f"{save.partition('dcp.save')[0]}\ndcp.load{load}",
        model=again, optimizer=_optimizer(again, rank, 1), folder=folder, rank=rank,
    )  # fmt: skip
    same = all(map(torch.equal, again.parameters(), whole))
    return {"equal": same, "keys": _own_keys(folder), "whole": held["whole"] is None}


def _optimizer(model: nn.Module, rank: int, steps: int = 3) -> DataParallelOptimizer:
    """Within a round of local steps, where every rank has parameters of its own."""
    optimizer = DataParallelOptimizer(model, "diloco", period=4, lr=0.1)
    _steps(model, optimizer, _batches(rank, steps), lambda loss: loss.backward())
    return optimizer


@pytest.mark.filterwarnings("ignore:model.state_dict")
def test_the_ways_of_saving(tmp_path: Path) -> None:
    for rank, result in enumerate(_all(_saved, 2, str(tmp_path))):
        assert result == {"equal": True, "keys": ["rank_0", "rank_1"], "whole": rank > 0}


# ---- Accelerate, and the Trainer that stands on it -----------------------------------------------------------------------


def _steps(model: Any, optimizer: Any, batches: Iterable[Any], backward: Callable[[Tensor], Any]) -> None:
    for x, y in batches:
        backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


class _Callback:
    """Stand-in for lightning.pytorch.callbacks.Callback."""


def _modules(**attributes: Any) -> types.ModuleType:
    module = types.ModuleType("stand-in")
    vars(module).update(attributes)
    return module


def _as_launched(rank: int, size: int) -> None:
    """What torchrun would have told the packages."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29599", ACCELERATE_USE_CPU="true", TORCHELASTIC_RUN_ID="none", GROUP_RANK="0", WANDB_DISABLED="true",
    )  # fmt: skip


def _trained(model: nn.Module, state: Any) -> dict[str, Any]:
    return {
        "equal": _equal_replicas(model.parameters()),
        "steps": contents(state.state_dict())["step"],
        "sent": sum(row["wire_bytes"] for row in state.ledger.totals()),
    }


def _held(result: dict[str, Any]) -> None:
    assert result["equal"]
    assert result["steps"] == 3
    assert result["resumed"]
    assert (
        0 < result["sent"] < 3 * 4 * sum(p.numel() for p in Net().parameters())
    )  # 8 bits and a scale, not 32


def _resumed(rank: int, begin: Callable[[], tuple[Any, ...]], folder: str) -> bool:
    """Whether a training that is saved after two steps of three, and one that is loaded there, end at the same bits.

    begin: makes an accelerator that saves all, the model that is stepped, its optimizer, and what has the parameters.
    """
    batches, ends = _batches(rank, 3), []
    for resumed in (False, True):
        accelerator, stepped, optimizer, model = begin()
        if resumed:
            accelerator.load_state(folder)
        else:
            _steps(stepped, optimizer, batches[:2], accelerator.backward)
            accelerator.save_state(folder)
        _steps(stepped, optimizer, batches[2:], accelerator.backward)
        ends.append([p.detach().clone() for p in model.parameters()])
    return all(map(torch.equal, *ends))


def _accelerate(rank: int, size: int, folder: str) -> dict[str, Any]:
    _as_launched(rank, size)
    names: dict[str, Any] = {}

    def begin() -> tuple[Any, ...]:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names.update(
            _run(_block("accelerator = Accelerator()"), model=model, optimizer=optimizer), trained=model
        )
        _run(_block("register_save_state_pre_hook"), accelerator=names["accelerator"], state=names["state"])
        return names["accelerator"], names["model"], names["optimizer"], model

    same = _resumed(rank, begin, folder)
    return {**_trained(names["trained"], names["state"]), "resumed": same}


def _accelerate_without_hook(rank: int, size: int, folder: str) -> dict[str, Any]:
    """An optimizer of the package in the place of the hook's state: residuals, and the whole of its own."""
    _as_launched(rank, size)
    accelerate = import_module("accelerate")

    def begin() -> tuple[Any, ...]:
        model, accelerator = Net(), accelerate.Accelerator()
        optimizer = DataParallelOptimizer(model, "qsgd", lr=0.1, error_feedback=True)
        _run(_block("register_save_state_pre_hook"), accelerator=accelerator, state=optimizer)
        return accelerator, model, optimizer, model

    same = _resumed(rank, begin, folder)
    lone = accelerate.Accelerator()
    lone.register_for_checkpointing(DataParallelOptimizer(Net(), "qsgd", lr=0.1, error_feedback=True))
    lone.save_state(f"{folder}/lone")
    lone.wait_for_everyone()
    try:
        lone.load_state(f"{folder}/lone")
        word = ""
    except LayoutError as error:
        word = str(error)
    return {"resumed": same, "lone": word}


class _Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(place)
        return {"x": torch.randn(8, generator=generator), "labels": torch.randn(3, generator=generator)}


class _WithLoss(Net):
    """What transformers' Trainer trains: it answers the loss."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:  # type: ignore[override]
        return {"loss": nn.functional.mse_loss(super().forward(x), labels)}


def _trainer(rank: int, size: int, folder: str) -> dict[str, Any]:
    _as_launched(rank, size)
    both = _block("accelerator = Accelerator()").partition("accelerator = ")[0] + _block("CompressedTrainer")
    cls = _run(both)["CompressedTrainer"]
    import_module("logging").disable()
    arguments = import_module("transformers").TrainingArguments(
        output_dir=folder, max_steps=3, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="steps", save_steps=2, disable_tqdm=True,
    )  # fmt: skip
    ends = []
    for resumed in (None, f"{folder}/checkpoint-2"):
        model = _WithLoss()
        trainer = cls(model=model, args=arguments, train_dataset=_Data())
        trainer.train(resume_from_checkpoint=resumed)
        ends.append([p.detach().clone() for p in model.parameters()])
    same = all(map(torch.equal, *ends))
    return {**_trained(model, trainer.accelerator.ddp_handler.state), "resumed": same}


def _lightning(rank: int, size: int, folder: str) -> dict[str, Any]:
    """Without the package, as Lightning 2.6.6 calls: `strategy.model` is in its wrapper when training starts, and a callback's
    state was loaded before."""
    _as_launched(rank, size)
    names = ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks")
    sys.modules.update({name: _modules(Callback=_Callback) for name in names})
    cls = _run(_block("on_train_start"))["Compressed"]
    saved: list[Any] = [None]
    ends: list[list[Tensor]] = []
    for resumed in (False, True):
        model: nn.Module = Net()
        callback = cls()
        if resumed:
            model.load_state_dict(saved[1])
            dist.broadcast_object_list(saved, src=0)  # rank 0 alone has written
            callback.load_state_dict(saved[0])
        wrapped = DistributedDataParallel(model)
        callback.on_train_start(
            types.SimpleNamespace(strategy=types.SimpleNamespace(model=wrapped)), module=model
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not resumed:
            _steps(wrapped, optimizer, _batches(rank, 2), lambda loss: loss.backward())
            saved = [callback.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}]
        _steps(wrapped, optimizer, _batches(rank, 3)[2:], lambda loss: loss.backward())
        ends.append([p.detach().clone() for p in model.parameters()])
        if not resumed:
            found = _trained(model, callback.state)
    return {**found, "resumed": all(map(torch.equal, *ends))}


RECIPES = {"accelerate": _accelerate, "transformers": _trainer, "lightning": _lightning}


@pytest.mark.parametrize("package", RECIPES)
def test_the_recipe_of_the_package(package: str, tmp_path: Path) -> None:
    for result in _all(RECIPES[package], 2, str(tmp_path)):
        _held(result)


def test_accelerate_s_save_state_with_an_optimizer_of_the_package(tmp_path: Path) -> None:
    for rank, result in enumerate(_all(_accelerate_without_hook, 2, str(tmp_path))):
        assert result["resumed"]
        assert ("All ranks must save: each a file of its own" in result["lone"]) == (rank > 0)


def test_every_block_of_the_page_is_run() -> None:
    elsewhere = 3  # two in tests/test_docs.py, one in tests/bandwise/test_training_log.py
    here = [
        "streaming-diloco", "register_step_pre_hook", 'ddp_hook("qsgd", ddp', "fsdp_hook(model",
        "fsdp_optimizer(model", "consolidate()", "register_save_state_pre_hook",
    ]  # fmt: skip
    assert all(_block(marker) for marker in here)
    assert len(blocks(PAGE, "python")) == elsewhere + len(here) + len(RECIPES)
    assert (Path(__file__).parents[1] / PAGE).is_file()
