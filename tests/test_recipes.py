"""The recipes of docs/in-your-training.md, run as they stand on gloo processes.

Those of other packages run against the package where it is installed, and everywhere against a stand-in: it calls what the
package's sources call (the versions that the page names), and shows no more than that.
"""

from __future__ import annotations

import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.reference_impls.gloo import run_ranks
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


def _plain(rank: int, size: int) -> dict[str, Any]:
    model = Net()
    names = _run(
        _block('ddp_hook("qsgd"'), model=model, loss=nn.functional.mse_loss, batches=_batches(rank, 3)
    )
    frame = names["state"].ledger.frame()
    return {
        "equal": _equal_replicas(model.parameters()),
        "steps": sorted(frame["step"].unique()),
        "sent": float(frame["wire_bytes"].sum()),
        "saved": names["saved"]["hook"]["step"],
    }


def test_the_plain_loop() -> None:
    elements = sum(p.numel() for p in Net().parameters())
    for result in _all(_plain, 2):
        assert result["equal"]
        assert result["steps"] == [0, 1, 2]
        assert result["saved"] == 3
        assert result["sent"] == 3 * (
            -(-elements // 2) + 4
        )  # 4 bits an element, a norm for up to 512 of them


def _around_an_optimizer(rank: int, size: int) -> dict[str, Any]:
    local, reduced = Net(), Net()
    names = _run(
        _block("streaming-diloco"), model=local, loss=nn.functional.mse_loss, batches=_batches(rank, 5)
    )
    batches = [_batches(10 * rank + step, 2) for step in range(3)]
    _run(_block("register_step_pre_hook"), model=reduced, loss=nn.functional.mse_loss, batches=batches)
    return {
        "equal": [_equal_replicas(model.parameters()) for model in (local, reduced)],
        "kinds": list(dict.fromkeys(names["frame"]["kind"])),
        "saved": names["saved"]["step"],
        "rate": names["saved"]["optimizer"]["param_groups"][0]["lr"],
    }


def test_the_loop_with_an_optimizer_of_ones_own() -> None:
    for result in _all(_around_an_optimizer, 2):
        assert result == {"equal": [True, True], "kinds": ["average", "final"], "saved": 5, "rate": 0.0}


def _sharded(rank: int, size: int) -> dict[str, Any]:
    model = Net()
    batches = [_batches(10 * rank + step, 2) for step in range(2)]
    names = _run(
        _block("fsdp_hook(model"), model=model, loss=nn.functional.mse_loss, batches=batches,
        device="cpu", nodes=2, ranks_a_node=2,
    )  # fmt: skip
    whole = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    return {
        "equal": _equal_replicas(whole),
        "calls": names["state"].state_dict()["calls"],
        "groups": set(names["state"].ledger.frame()["group"]),
    }


def test_the_sharded_loop() -> None:
    for result in _all(_sharded, 4):
        assert result["equal"]
        assert result["calls"] == {"the model": 2, "layers.0": 2, "layers.1": 2}  # a step, not a micro-batch
        assert result["groups"] == {"world"}


def _intsgd(rank: int, size: int) -> dict[str, Any]:
    model = Net()
    names = _run(
        _block("intsgd_for_hook"), model=model, loss=nn.functional.mse_loss, batches=_batches(rank, 3)
    )
    kinds = list(names["state"].ledger.frame()["kind"].unique())
    return {"equal": _equal_replicas(model.parameters()), "kinds": kinds}


def test_the_loop_with_intsgd() -> None:
    for result in _all(_intsgd, 2):
        assert result == {"equal": True, "kinds": ["warm-up", "integer"]}


def _any_method_sharded(rank: int, size: int) -> dict[str, Any]:
    model = Net()
    batches = [_batches(10 * rank + step, 2) for step in range(2)]
    names = _run(
        _block("fsdp_optimizer(model"), model=model, loss=nn.functional.mse_loss, batches=batches,
        device="cpu", nodes=2, ranks_a_node=2,
    )  # fmt: skip
    whole = [p.full_tensor() for p in model.parameters()]  # type: ignore[attr-defined]
    return {"equal": _equal_replicas(whole), "groups": set(names["optimizer"].ledger.frame()["group"])}


def test_the_sharded_loop_with_any_method() -> None:
    for result in _all(_any_method_sharded, 4):
        assert result == {"equal": True, "groups": {"world"}}


# ---- Accelerate, and the Trainer that stands on it -----------------------------------------------------------------------


@dataclass
class _Kwargs:
    """Stand-in for accelerate.utils.DistributedDataParallelKwargs."""

    find_unused_parameters: bool = False

    def to_kwargs(self) -> dict[str, Any]:
        default = asdict(type(self)())
        return {key: value for key, value in asdict(self).items() if default[key] != value}

    def register_comm_hook(self, model: nn.Module) -> None:
        raise AssertionError("the recipe does not replace this")


class _Accelerator:
    """Stand-in: `prepare` wraps, and then asks the handler for a hook (Accelerate 1.15.0, accelerator.py: prepare_model)."""

    def __init__(self, kwargs_handlers: Iterable[Any] = ()) -> None:
        self.ddp_handler: Any = next(iter(kwargs_handlers), None)
        assert type(self.ddp_handler) in (_Kwargs, type(None)), "KeyError in Accelerate"

    def prepare(self, model: nn.Module, *others: Any) -> Any:
        kwargs = self.ddp_handler.to_kwargs() if self.ddp_handler is not None else {}
        wrapped = DistributedDataParallel(model, **kwargs)
        if self.ddp_handler is not None:
            self.ddp_handler.register_comm_hook(wrapped)
        return wrapped, *others


class _Trainer:
    """Stand-in for transformers.Trainer 5.23.0, which makes its Accelerator in this method, and prepares the model later."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.create_accelerator_and_postprocess()

    def create_accelerator_and_postprocess(self) -> None:
        self.accelerator = _Accelerator(kwargs_handlers=[_Kwargs(find_unused_parameters=True)])

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        wrapped, optimizer = self.accelerator.prepare(
            self.model, torch.optim.SGD(self.model.parameters(), lr=0.1)
        )
        _steps(wrapped, optimizer, batches, lambda loss: loss.backward())


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


def _stand_ins() -> None:
    sys.modules.update(
        {
            "accelerate": _modules(Accelerator=_Accelerator),
            "accelerate.utils": _modules(DistributedDataParallelKwargs=_Kwargs),
            "transformers": _modules(Trainer=_Trainer),
            "lightning": _modules(),
            "lightning.pytorch": _modules(),
            "lightning.pytorch.callbacks": _modules(Callback=_Callback),
        }
    )


def _as_launched(rank: int, size: int) -> None:
    """What torchrun would have told the packages."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29599", ACCELERATE_USE_CPU="true", TORCHELASTIC_RUN_ID="none", GROUP_RANK="0", WANDB_DISABLED="true",
    )  # fmt: skip


def _trained(model: nn.Module, state: Any) -> dict[str, Any]:
    return {
        "equal": _equal_replicas(model.parameters()),
        "steps": state.state_dict()["step"],
        "sent": sum(row["wire_bytes"] for row in state.ledger.totals()),
    }


def _held(result: dict[str, Any]) -> None:
    assert result["equal"]
    assert result["steps"] == 3
    assert (
        0 < result["sent"] < 3 * 4 * sum(p.numel() for p in Net().parameters())
    )  # 8 bits and a scale, not 32


def _accelerate(rank: int, size: int, real: bool) -> dict[str, Any]:
    _as_launched(rank, size)
    if not real:
        _stand_ins()
    model = Net()
    names = _run(_block("Accelerator()"), model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    backward = names["accelerator"].backward if real else lambda loss: loss.backward()
    _steps(names["model"], names["optimizer"], _batches(rank, 3), backward)
    return _trained(model, names["accelerator"].ddp_handler.state)


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


def _trainer(rank: int, size: int, real: bool) -> dict[str, Any]:
    _as_launched(rank, size)
    if not real:
        _stand_ins()
    both = _block("Accelerator()").partition("accelerator = ")[0] + _block("CompressedTrainer")
    cls = _run(both)["CompressedTrainer"]
    if not real:
        model: nn.Module = Net()
        trainer = cls(model)
        trainer.train(_batches(rank, 3))
        return _trained(model, trainer.accelerator.ddp_handler.state)
    from importlib import import_module

    import_module("logging").disable()
    arguments = import_module("transformers").TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = _WithLoss()
    trainer = cls(model=model, args=arguments, train_dataset=_Data())
    trainer.train()
    return _trained(model, trainer.accelerator.ddp_handler.state)


def _lightning(rank: int, size: int, real: bool) -> dict[str, Any]:
    _as_launched(rank, size)
    if not real:
        _stand_ins()
    callback = _run(_block("on_train_start"))["Compressed"]()
    if not real:  # Lightning 2.6.6: `strategy.model` is in its wrapper when training starts
        model: nn.Module = Net()
        wrapped = DistributedDataParallel(model)
        callback.on_train_start(
            types.SimpleNamespace(strategy=types.SimpleNamespace(model=wrapped)), module=model
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _steps(wrapped, optimizer, _batches(rank, 3), lambda loss: loss.backward())
        return _trained(model, callback.state)
    from importlib import import_module

    pytorch = import_module("lightning.pytorch")

    class Lit(pytorch.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, _: int) -> Tensor:
            return nn.functional.mse_loss(self.net(batch["x"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    lit = Lit()
    trainer = pytorch.Trainer(
        strategy="ddp", accelerator="cpu", devices=size, max_steps=3, callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(lit, torch.utils.data.DataLoader(_Data(), batch_size=4))
    return _trained(lit.net, callback.state)


RECIPES = {"accelerate": _accelerate, "transformers": _trainer, "lightning": _lightning}


@pytest.mark.parametrize("package", RECIPES)
def test_the_recipe_against_a_stand_in(package: str) -> None:
    for result in _all(RECIPES[package], 2, False):
        _held(result)


@pytest.mark.parametrize("package", RECIPES)
def test_the_recipe_with_the_package(package: str) -> None:
    pytest.importorskip(package, reason="an optional package; the stand-in above runs everywhere")
    for result in _all(RECIPES[package], 2, True):
        _held(result)


def test_every_block_of_the_page_is_run() -> None:
    # tests/test_docs.py: DataParallelOptimizer; tests/bandwise/test_training_log.py; tests/reference_impls/test_under_hooks.py
    elsewhere = 3
    here = [
        "streaming-diloco", "register_step_pre_hook", 'ddp_hook("qsgd"', "intsgd_for_hook", "fsdp_hook(model",
        "fsdp_optimizer(model",
    ]  # fmt: skip
    assert all(_block(marker) for marker in here)
    assert len(blocks(PAGE, "python")) == elsewhere + len(here) + len(RECIPES)
    assert (Path(__file__).parents[1] / PAGE).is_file()
