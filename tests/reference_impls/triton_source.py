"""What the compiler would write for a GPU, on a machine without one: the Triton source of a function of tensors.

The function is traced on the CPU, the graph is moved to a device that does not exist, and the compiler's back end is
told that it does. Nothing is run, and neither a GPU nor the package triton is needed.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from unittest import mock

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, decomposition
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

GPU = torch.device("cuda:0")
HOPPER = SimpleNamespace(
    name="none", major=9, minor=0, multi_processor_count=132, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32, total_memory=1 << 36,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, L2_cache_size=1 << 25, gcnArchName="",
)  # fmt: skip


@contextlib.contextmanager
def _a_gpu():
    with contextlib.ExitStack() as stack:
        for place, answer in {
            "torch._inductor.scheduler.has_triton": True,
            "torch.utils._triton.triton_hash_with_backend": "none",
            "torch.cuda.get_device_properties": HOPPER,
            "torch.cuda.get_device_capability": (9, 0),
            "torch.cuda.current_device": 0,
        }.items():
            stack.enter_context(mock.patch(place, lambda *_, answer=answer: answer))
        for name, answer in {"get_device_properties": HOPPER, "get_compute_capability": 90}.items():
            stack.enter_context(
                mock.patch.object(CudaInterface, name, staticmethod(lambda *_, answer=answer: answer))
            )
        yield


def _alike(args, device) -> list[torch.Tensor]:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in tensors]


def _traced(function, args, options) -> torch.fx.GraphModule:
    """The function as a graph of torch's own operations, without writes in place but at the end."""
    places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

    def of_tensors(*tensors):
        full = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        result = function(*full)
        return () if result is None else result

    table = decomposition.select_decomp_table()
    with config.patch(options):
        functional = make_fx(
            torch.func.functionalize(of_tensors), decomposition_table=table, tracing_mode="fake"
        )
        return functional(*_alike(args, "cpu"))


def divides_by_a_number(function, args) -> bool:
    """Whether a tensor is divided by a Python number: a GPU takes the product with 1 / number."""
    return any(
        node.target is torch.ops.aten.div.Tensor and isinstance(node.args[1], int | float)
        for node in _traced(function, args, {}).graph.nodes
    )


def triton_source(function, args, options) -> str:
    """Python source: kernels and the code that launches them.

    Args:
        function: of tensors and scalars; may write into its arguments.
        args: its arguments, tensors on the CPU.
        options: what `torch.compile` would be given.
    """
    traced = _traced(function, args, options)
    for node in traced.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": GPU}
    traced.graph.eliminate_dead_code()
    traced.recompile()
    with _a_gpu(), config.patch(options):
        mode = FakeTensorMode()
        with mode:
            inputs = _alike(args, GPU)
        FakeTensorProp(traced, mode).propagate_dont_convert_inputs(*inputs)
        graph = GraphLowering(traced, example_inputs=inputs, shape_env=mode.shape_env)
        with V.set_fake_mode(mode), V.set_graph_handler(graph), V.set_debug_handler(mock.MagicMock()):
            graph.run(*inputs)
            code, _ = graph.codegen()
    return code.value
